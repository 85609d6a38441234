"""The rows of the tiny random models, as an operator's file of further models has them."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

_SAID = {"url": "https://example.org/tiny", "says": "made by this test", "read": "2026-11-30"}


def model(
    name: str,
    *,
    context: int,
    vocabulary: int,
    hidden: int,
    layers: int,
    heads: int,
    kv_heads: int,
    head: int,
    checkpoints: Sequence[Mapping[str, Any]],
    vision: bool = False,
) -> dict[str, Any]:
    """A random Llama of these sizes with its checkpoints."""
    return {
        "id": name,
        "name": name,
        "aliases": [],
        "family": "llama",
        "licence": "none",
        "merit": 1,
        "max_context_tokens": context,
        "architecture": {
            "attention_heads": heads,
            "hidden_size": hidden,
            "vocabulary": vocabulary,
            "parameters_millions": 1,
            "groups": groups(layers, kv_heads, head),
            "vision": vision,
        },
        "sources": [_SAID | {"covers": ["architecture"]}],
        "checkpoints": [
            {
                "aliases": [],
                "confidence": "verified",
                "sources": [_SAID | {"covers": ["files", "size"]}],
                **checkpoint,
            }
            for checkpoint in checkpoints
        ],
    }


def groups(layers: int, kv_heads: int, head: int) -> list[dict[str, Any]]:
    """Its layers, which all attend to all."""
    return [{"kind": "full", "layers": layers, "kv_heads": kv_heads, "head_size": head}]


def file(path: str, content: bytes, source: Mapping[str, str]) -> dict[str, Any]:
    """One file of a checkpoint, by its hash."""
    digest = hashlib.sha256(content).hexdigest()
    return {"path": path, "bytes": len(content), "sha256": digest, "sources": [dict(source)]}


def write(path: Path, row: Mapping[str, Any]) -> Path:
    path.write_text(yaml.safe_dump([row], sort_keys=False))
    return path
