"""A tiny random Llama as one GGUF file, in 16 bits: what an engine of GGUF files really serves.

Written byte by byte, so that its hash is the same on every machine and no library is needed.
"""

import random
import struct
from collections.abc import Iterator
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
_U32, _I32, _F32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
_FORMATS = {_U32: "<I", _I32: "<i", _F32: "<f", _BOOL: "<?"}
_FLOAT, _HALF = 0, 1


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def _value(kind: int, value: Any) -> bytes:
    return _text(value) if kind == _STRING else struct.pack(_FORMATS[kind], value)


def _keys() -> Iterator[bytes]:
    plain: dict[str, tuple[int, Any]] = {
        "general.architecture": (_STRING, "llama"),
        "general.name": (_STRING, MODEL),
        "general.file_type": (_U32, 1),
        "llama.context_length": (_U32, CONTEXT),
        "llama.embedding_length": (_U32, HIDDEN),
        "llama.block_count": (_U32, LAYERS),
        "llama.feed_forward_length": (_U32, INNER),
        "llama.attention.head_count": (_U32, HEADS),
        "llama.attention.head_count_kv": (_U32, KV_HEADS),
        "llama.attention.layer_norm_rms_epsilon": (_F32, 1e-5),
        "llama.rope.dimension_count": (_U32, HEAD),
        "llama.rope.freq_base": (_F32, 10000.0),
        "llama.vocab_size": (_U32, len(TOKENS)),
        "tokenizer.ggml.model": (_STRING, "llama"),
        "tokenizer.ggml.bos_token_id": (_U32, 1),
        "tokenizer.ggml.eos_token_id": (_U32, 2),
        "tokenizer.ggml.unknown_token_id": (_U32, 0),
        "tokenizer.ggml.add_bos_token": (_BOOL, True),
        "tokenizer.chat_template": (_STRING, TEMPLATE),
    }
    for name, (kind, value) in plain.items():
        yield _text(name) + struct.pack("<I", kind) + _value(kind, value)
    arrays: dict[str, tuple[int, list[Any]]] = {
        "tokenizer.ggml.tokens": (_STRING, TOKENS),
        "tokenizer.ggml.scores": (_F32, [0.0 for _ in TOKENS]),
        "tokenizer.ggml.token_type": (_I32, KINDS),
    }
    for name, (kind, values) in arrays.items():
        head = struct.pack("<IIQ", _ARRAY, kind, len(values))
        yield _text(name) + head + b"".join(_value(kind, value) for value in values)


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


def _data(name: str, shape: tuple[int, ...], chance: random.Random) -> bytes:
    if len(shape) == 1:
        return struct.pack("<f", 1.0) * shape[0]
    values = [chance.uniform(-0.3, 0.3) for _ in range(shape[0] * shape[1])]
    if name == "output.weight":
        # Only words are ever said.
        silent = shape[0] * (len(TOKENS) - len(WORDS))
        values[:silent] = [0.0] * silent
    return struct.pack(f"<{len(values)}e", *values)


def content() -> bytes:
    """The file."""
    chance, infos, data = random.Random(7), bytearray(), bytearray()
    shapes = _shapes()
    for name, shape in shapes.items():
        kind = _FLOAT if len(shape) == 1 else _HALF
        infos += _text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        infos += struct.pack("<IQ", kind, len(data))
        data += _data(name, shape, chance)
        data += bytes(-len(data) % _ALIGNMENT)
    keys = list(_keys())
    head = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(keys)) + b"".join(keys) + infos
    return bytes(head + bytes(-len(head) % _ALIGNMENT) + data)


def write_row(path: Path, url: str) -> Path:
    """Its row, as an operator's file of further models has it; the file is at `url`."""
    held = content()
    row = tiny_rows.model(
        MODEL,
        context=CONTEXT,
        vocabulary=len(TOKENS),
        hidden=HIDDEN,
        layers=LAYERS,
        heads=HEADS,
        kv_heads=KV_HEADS,
        head=HEAD,
        checkpoint={
            "id": f"{MODEL}-f16",
            "format": "gguf",
            "quantization": "f16",
            "repo": "lab/tiny-gguf",
            "size": f"{len(held)} B",
            "engines": {"llama.cpp": "", "ik_llama.cpp": ""},
            "files": [tiny_rows.file(FILE, held, {"kind": "url", "url": url})],
        },
    )
    return tiny_rows.write(path, row)
