"""`gpuwright models`: the catalogue's models and checkpoints."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gpuwright.explain import list_models
from gpuwright.load import load_matrix


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--extra-models",
        type=Path,
        metavar="FILE",
        help="further model rows, in the format of ours",
    )


def run(arguments: argparse.Namespace) -> int:
    sys.stdout.write(list_models(load_matrix(arguments.extra_models)) + "\n")
    return 0
