"""A tiny random Llama as one GGUF file, in 16 bits: what an engine of GGUF files really serves.

Written byte by byte, so that its hash is the same on every machine and no library is needed.
"""

import random
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.lab import tiny_rows

MODEL = "tiny-gguf"
FILE = "tiny-f16.gguf"
CONTEXT = 2048
HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD = 128, 256, 2, 2, 1, 64
BYTES = [f"<0x{number:02X}>" for number in range(256)]
WORDS = [f"\u2581word{number}" for number in range(61)]
TOKENS = ["<unk>", "<s>", "</s>", *BYTES, *WORDS]
# Unknown, control, bytes, words.
KINDS = [2, 3, 3, *(6 for _ in BYTES), *(1 for _ in WORDS)]
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
_ALIGNMENT = 32
U32, I32, F32, BOOL, STRING = 4, 5, 6, 7, 8
_ARRAY = 9
_FORMATS = {U32: "<I", I32: "<i", F32: "<f", BOOL: "<?"}
_FLOAT, _HALF = 0, 1

Keys = Mapping[str, tuple[int, Any]]
"""Name -> type and value of a key, or the type and values of an array."""


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def _value(kind: int, value: Any) -> bytes:
    return _text(value) if kind == STRING else struct.pack(_FORMATS[kind], value)


def _pair(name: str, kind: int, value: Any) -> bytes:
    if not isinstance(value, list):
        return _text(name) + struct.pack("<I", kind) + _value(kind, value)
    head = struct.pack("<IIQ", _ARRAY, kind, len(value))
    return _text(name) + head + b"".join(_value(kind, each) for each in value)


def uniform(chance: random.Random, count: int) -> list[float]:
    return [chance.uniform(-0.3, 0.3) for _ in range(count)]


def written(keys: Keys, tensors: Mapping[str, tuple[tuple[int, ...], list[float]]]) -> bytes:
    """A GGUF file. A tensor is its shape, columns first, and its values: in 32 bits if it has one
    dimension, else in 16."""
    infos, data = bytearray(), bytearray()
    for name, (shape, values) in tensors.items():
        kind, letter = (_FLOAT, "f") if len(shape) == 1 else (_HALF, "e")
        infos += _text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        infos += struct.pack("<IQ", kind, len(data))
        data += struct.pack(f"<{len(values)}{letter}", *values)
        data += bytes(-len(data) % _ALIGNMENT)
    pairs = b"".join(_pair(name, kind, value) for name, (kind, value) in keys.items())
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + pairs + infos
    return bytes(head + bytes(-len(head) % _ALIGNMENT) + data)


def _keys(name: str) -> Keys:
    return {
        "general.architecture": (STRING, "llama"),
        "general.name": (STRING, name),
        "general.file_type": (U32, 1),
        "llama.context_length": (U32, CONTEXT),
        "llama.embedding_length": (U32, HIDDEN),
        "llama.block_count": (U32, LAYERS),
        "llama.feed_forward_length": (U32, INNER),
        "llama.attention.head_count": (U32, HEADS),
        "llama.attention.head_count_kv": (U32, KV_HEADS),
        "llama.attention.layer_norm_rms_epsilon": (F32, 1e-5),
        "llama.rope.dimension_count": (U32, HEAD),
        "llama.rope.freq_base": (F32, 10000.0),
        "llama.vocab_size": (U32, len(TOKENS)),
        "tokenizer.ggml.model": (STRING, "llama"),
        "tokenizer.ggml.bos_token_id": (U32, 1),
        "tokenizer.ggml.eos_token_id": (U32, 2),
        "tokenizer.ggml.unknown_token_id": (U32, 0),
        "tokenizer.ggml.add_bos_token": (BOOL, True),
        "tokenizer.chat_template": (STRING, TEMPLATE),
        "tokenizer.ggml.tokens": (STRING, TOKENS),
        "tokenizer.ggml.scores": (F32, [0.0 for _ in TOKENS]),
        "tokenizer.ggml.token_type": (I32, KINDS),
    }


def _shapes() -> dict[str, tuple[int, ...]]:
    """Columns first, as the file has them."""
    found: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (HIDDEN, len(TOKENS)),
        "output_norm.weight": (HIDDEN,),
        "output.weight": (HIDDEN, len(TOKENS)),
    }
    for layer in range(LAYERS):
        at = f"blk.{layer}"
        found |= {
            f"{at}.attn_norm.weight": (HIDDEN,),
            f"{at}.attn_q.weight": (HIDDEN, HEADS * HEAD),
            f"{at}.attn_k.weight": (HIDDEN, KV_HEADS * HEAD),
            f"{at}.attn_v.weight": (HIDDEN, KV_HEADS * HEAD),
            f"{at}.attn_output.weight": (HEADS * HEAD, HIDDEN),
            f"{at}.ffn_norm.weight": (HIDDEN,),
            f"{at}.ffn_gate.weight": (HIDDEN, INNER),
            f"{at}.ffn_up.weight": (HIDDEN, INNER),
            f"{at}.ffn_down.weight": (INNER, HIDDEN),
        }
    return found


def _values(name: str, shape: tuple[int, ...], chance: random.Random) -> list[float]:
    if len(shape) == 1:
        return [1.0] * shape[0]
    values = uniform(chance, shape[0] * shape[1])
    if name == "output.weight":
        # Only words are ever said.
        silent = shape[0] * (len(TOKENS) - len(WORDS))
        values[:silent] = [0.0] * silent
    return values


def content(name: str = MODEL, seed: int = 7) -> bytes:
    """The file. One of another name and the same seed says the same words."""
    chance = random.Random(seed)
    tensors = {each: (shape, _values(each, shape, chance)) for each, shape in _shapes().items()}
    return written(_keys(name), tensors)


def checkpoint(name: str, path: str, held: bytes, url: str) -> dict[str, Any]:
    """The row of a checkpoint that is one file, which is at `url`."""
    return {
        "id": name,
        "format": "gguf",
        "quantization": "f16",
        "repo": f"lab/{name}",
        "size": f"{len(held)} B",
        "engines": {"llama.cpp": "", "ik_llama.cpp": ""},
        "files": [tiny_rows.file(path, held, {"kind": "url", "url": url})],
    }


def write_row(
    path: Path,
    url: str,
    *beside: dict[str, Any],
    vision: bool = False,
    held: bytes | None = None,
) -> Path:
    """Its row, as an operator's file of further models has it; the file is at `url`, and is `held`
    where that is another one. `beside` are further checkpoints."""
    row = tiny_rows.model(
        MODEL,
        context=CONTEXT,
        vocabulary=len(TOKENS),
        hidden=HIDDEN,
        layers=LAYERS,
        heads=HEADS,
        kv_heads=KV_HEADS,
        head=HEAD,
        checkpoints=[checkpoint(f"{MODEL}-f16", FILE, held or content(), url), *beside],
        vision=vision,
    )
    return tiny_rows.write(path, row)
