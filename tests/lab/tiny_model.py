"""A tiny random Llama with a tokenizer of a few words: what an engine of safetensors really serves.

Written byte by byte, so that its hashes are the same on every machine and no library is needed.
"""

import json
import random
import struct
from pathlib import Path
from typing import Any

from tests.lab import tiny_rows

MODEL = "tiny-llama"
CHECKPOINT, DRAFTER = "tiny-llama-bf16", "tiny-llama-drafter"
REPOSITORY = "lab/tiny-llama"
CONTEXT = 2048
WORDS = ("<unk>", "<s>", "</s>", *(f"word{number}" for number in range(61)))
HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD = 64, 128, 2, 2, 1, 32

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD,
    "vocab_size": len(WORDS),
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
TOKENIZER = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [
        {
            "id": number,
            "content": WORDS[number],
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for number in range(3)
    ],
    "normalizer": None,
    "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": None,
    "decoder": None,
    "model": {
        "type": "WordLevel",
        "vocab": {word: number for number, word in enumerate(WORDS)},
        "unk_token": "<unk>",
    },
}
TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "unk_token": "<unk>",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "model_max_length": CONTEXT,
    "chat_template": "{% for message in messages %}{{ message['content'] }} {% endfor %}",
}


def _shapes() -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (len(WORDS), HIDDEN),
        "model.norm.weight": (HIDDEN,),
        "lm_head.weight": (len(WORDS), HIDDEN),
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        found |= {
            f"{at}.input_layernorm.weight": (HIDDEN,),
            f"{at}.post_attention_layernorm.weight": (HIDDEN,),
            f"{at}.self_attn.q_proj.weight": (HEADS * HEAD, HIDDEN),
            f"{at}.self_attn.k_proj.weight": (KV_HEADS * HEAD, HIDDEN),
            f"{at}.self_attn.v_proj.weight": (KV_HEADS * HEAD, HIDDEN),
            f"{at}.self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD),
            f"{at}.mlp.gate_proj.weight": (INNER, HIDDEN),
            f"{at}.mlp.up_proj.weight": (INNER, HIDDEN),
            f"{at}.mlp.down_proj.weight": (HIDDEN, INNER),
        }
    return found


def _weights() -> bytes:
    chance, header, data = random.Random(7), {}, bytearray()
    for name, shape in _shapes().items():
        begin, count = len(data), 1
        for size in shape:
            count *= size
        for _ in range(count):
            value = 1.0 if len(shape) == 1 else chance.uniform(-0.3, 0.3)
            # A bfloat16 is the upper half of a float.
            data += struct.pack("<f", value)[2:]
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, len(data)]}
    text = json.dumps(header, sort_keys=True).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(data)


def files() -> dict[str, bytes]:
    """The checkpoint, file by file."""
    return {
        "config.json": json.dumps(CONFIG, indent=1).encode(),
        "generation_config.json": json.dumps({"bos_token_id": 1, "eos_token_id": 2}).encode(),
        "model.safetensors": _weights(),
        "tokenizer.json": json.dumps(TOKENIZER).encode(),
        "tokenizer_config.json": json.dumps(TOKENIZER_CONFIG, indent=1).encode(),
    }


def row(commit: str) -> dict[str, Any]:
    """Its row, as an operator's file of further models has it; its files are on the lab's hub. The
    drafter is the model once more, so that it says the same words."""
    groups = tiny_rows.groups(LAYERS, KV_HEADS, HEAD)
    drafts = {"method": "draft", "tokens": 3, "groups": groups}
    return tiny_rows.model(
        MODEL,
        context=CONTEXT,
        vocabulary=len(WORDS),
        hidden=HIDDEN,
        layers=LAYERS,
        heads=HEADS,
        kv_heads=KV_HEADS,
        head=HEAD,
        checkpoints=[
            _checkpoint(CHECKPOINT, commit),
            _checkpoint(DRAFTER, commit) | {"role": "drafter", "drafts": drafts},
        ],
    )


def _checkpoint(name: str, commit: str) -> dict[str, Any]:
    contents = files()
    at = {"kind": "hub", "repo": REPOSITORY, "revision": commit}
    return {
        "id": name,
        "format": "safetensors",
        "quantization": "bf16",
        "repo": REPOSITORY,
        "size": f"{len(contents['model.safetensors'])} B",
        "engines": {"vllm": "", "sglang": ""},
        "files": [
            tiny_rows.file(path, content, at | {"path": path}) for path, content in contents.items()
        ],
    }


def write_row(path: Path, commit: str) -> Path:
    return tiny_rows.write(path, row(commit))


def write_files(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files().items():
        (directory / name).write_bytes(content)
    return directory
