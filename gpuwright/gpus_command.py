"""`gpuwright gpus`: the graphics cards that have a row."""

from __future__ import annotations

import argparse
import sys

from gpuwright.explain import list_gpus
from gpuwright.load import load_matrix


def configure(parser: argparse.ArgumentParser) -> None:
    """It takes no options."""


def run(arguments: argparse.Namespace) -> int:
    sys.stdout.write(list_gpus(load_matrix()) + "\n")
    return 0
