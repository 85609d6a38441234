"""`gpuwright gpus`: the graphics cards that have a row."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterable, Iterator

from gpuwright.load import load_matrix
from gpuwright.rows import GpuRow

_LINK = {True: "yes", False: "no", None: "?"}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="every key of every row, as JSON")


def run(arguments: argparse.Namespace) -> int:
    gpus = load_matrix().gpus
    if arguments.json:
        text = json.dumps([dataclasses.asdict(row) for row in gpus], indent=1)
    else:
        text = "\n".join(_table(gpus))
    sys.stdout.write(text + "\n")
    return 0


def _table(gpus: Iterable[GpuRow]) -> Iterator[str]:
    """A line for each card, below a heading for each group of cards that compute alike."""
    yield f"{'id':<22}{'memory':>10}{'bandwidth':>12}  NVLink  name"
    groups: dict[str, list[str]] = {}
    for row in gpus:
        groups.setdefault(_heading(row), []).append(_line(row))
    for heading, lines in groups.items():
        yield from ("", heading, *lines)


def _heading(row: GpuRow) -> str:
    lacks = f", without {' and '.join(row.lacks)}" if row.lacks else ""
    modules = {None: "", "either": ""}
    driver = modules.get(row.kernel_module, f", {row.kernel_module} kernel module")
    return f"{row.kind}, compute capability {row.compute_capability}{lacks}{driver}"


def _line(row: GpuRow) -> str:
    bandwidth = "?" if row.bandwidth_gb_per_s is None else f"{row.bandwidth_gb_per_s:,} GB/s"
    memory = f"{row.memory_mib / 1024:.0f} GiB"
    return f"{row.id:<22}{memory:>10}{bandwidth:>12}  {_LINK[row.nvlink]:<6}  {row.name}"
