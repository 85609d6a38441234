"""`gpuwright models`: the catalogue's models and checkpoints."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from gpuwright.explain import list_models
from gpuwright.load import load_matrix
from gpuwright.model_rows import CheckpointRow, ModelRow


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--extra-models",
        type=Path,
        metavar="FILE",
        help="further model rows, in the format of ours",
    )
    parser.add_argument("--json", action="store_true", help="the list as JSON")


def run(arguments: argparse.Namespace) -> int:
    matrix = load_matrix(arguments.extra_models)
    if arguments.json:
        text = json.dumps([model_as_data(model) for model in matrix.models], indent=1)
    else:
        text = list_models(matrix)
    sys.stdout.write(text + "\n")
    return 0


def model_as_data(model: ModelRow) -> dict[str, Any]:
    architecture = model.architecture
    return {
        "id": model.id,
        "name": model.name,
        "aliases": list(model.aliases),
        "family": model.family,
        "licence": model.licence,
        "max_context_tokens": model.max_context_tokens,
        "parameters_millions": architecture.parameters_millions or None,
        "tensor_parallel_sizes": list(model.tensor_parallel_sizes),
        "mtp": model.mtp,
        "vision": architecture.vision,
        "checkpoints": [_checkpoint_as_data(row) for row in model.checkpoints],
        "assumed": list(model.assumptions),
    }


def _checkpoint_as_data(row: CheckpointRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "role": row.role.value,
        "format": row.format,
        "quantization": row.quantization,
        "repo": row.repo,
        "size": row.size,
        "min_bytes": row.min_bytes,
        "max_bytes": row.max_bytes,
        "disk_bytes": row.disk_bytes,
        "confidence": row.confidence.value,
        "engines": row.engines,
        "pinned": row.files is not None,
        "assumed": list(row.assumptions),
    }
