"""A record as YAML text: equal answers share blocks of cells, one block a line."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from gpuwright.records import AXES, Cell

_CONSTRUCTS = {True: "yes", False: "no", None: "unknown"}
Block = tuple[frozenset[str], ...]


def record_text(
    head: Mapping[str, str],
    defaults: Mapping[str, Any],
    flags: Iterable[Mapping[str, Any]],
    answers: Mapping[Cell, Mapping[str, Any]],
) -> str:
    axes = {axis: list(dict.fromkeys(getattr(cell, axis) for cell in answers)) for axis in AXES}
    groups: dict[tuple[Any, ...], list[Cell]] = {}
    for cell, told in answers.items():
        because = told.get("because")
        # The text names the card: without the number it is one reason for all of them.
        if because:
            because = because.replace(f" {cell.capability}", "")
        key = (*outcome(told), told.get("version"), because)
        groups.setdefault(key, []).append(cell)
    lines = [
        "# What the engine's own code answered, in its own words, on stand-in cards, offline.",
        "# Written by `python -m tools.ask_engine`; keys: gpuwright/records.py, docs/records.md.",
        *(f'{key}: "{value}"' for key, value in head.items()),
        f"defaults: {_flow(dict(defaults))}",
    ]
    lines += [
        "axes:",
        *(f"  {axis}: {_flow(values)}" for axis, values in axes.items()),
        "answers:",
    ]
    for key, cells in sorted(groups.items(), key=lambda group: -len(group[1])):
        lines += _answer(key, cells, axes)
    lines.append("flags:")
    for flag in flags:
        lines.append(_flag(flag))
    return "\n".join(lines) + "\n"


def flags_text(
    engine: str, release: str, flags: Iterable[Mapping[str, Any]], *, tool: str, asked: str
) -> str:
    """The record of a server that is asked for its flags alone: `asked` says where they are from,
    `tool` by what."""
    head = {
        "engine": engine,
        "release": release,
        "asked": datetime.date.today().isoformat(),
        "python": "none",
        "cuda": "none",
    }
    lines = [
        f"# Every flag that the server's own {asked}.",
        f"# Written by `python -m tools.{tool}`; keys: gpuwright/records.py, docs/records.md.",
        *(f'{key}: "{value}"' for key, value in head.items()),
        f"defaults: {_flow({})}",
        "axes: {}",
        "answers: []",
        "flags:",
        *map(_flag, flags),
    ]
    return "\n".join(lines) + "\n"


def outcome(told: Mapping[str, Any]) -> tuple[str, str]:
    """What was chosen, and whether it is made, in a record's words."""
    if told["chosen"] is None:
        return "none", "yes"
    return told["chosen"], _CONSTRUCTS[told["constructs"]]


def _answer(key: tuple[Any, ...], cells: list[Cell], axes: dict[str, list[str]]) -> list[str]:
    chosen, constructs, version, because = key
    lines = [f"  - chosen: {_flow(chosen)}"]
    if constructs != "yes":
        lines.append(f"    constructs: {_flow(constructs)}")
    if version is not None:
        lines.append(f"    version: {version}")
    if because:
        lines.append(f"    because: {_flow(because)}")
    lines.append("    cells:")
    for block in blocks(cells):
        named = {
            axis: [value for value in axes[axis] if value in values]
            for axis, values in zip(AXES, block, strict=True)
            if len(values) < len(axes[axis])
        }
        lines.append(f"      - {_flow(named)}")
    return lines


def blocks(cells: Iterable[Cell]) -> list[Block]:
    """The cells as few blocks: two that differ in one axis become one, until none are left."""
    singles = [tuple(frozenset((value,)) for value in cell) for cell in cells]
    orders = itertools.permutations(range(len(AXES)), 2)
    best: list[Block] | None = None
    for first in orders:
        order = [*first, *(axis for axis in range(len(AXES)) if axis not in first)]
        found = _merge(singles, order)
        if best is None or len(found) < len(best):
            best = found
    return sorted(best or [], key=lambda block: [sorted(values) for values in block])


def _merge(found: list[Block], order: list[int]) -> list[Block]:
    for _ in range(2):
        for axis in order:
            merged: dict[Block, frozenset[str]] = {}
            for block in found:
                rest = (*block[:axis], *block[axis + 1 :])
                merged[rest] = merged.get(rest, frozenset()) | block[axis]
            found = [(*rest[:axis], values, *rest[axis:]) for rest, values in merged.items()]
    return found


def _flag(flag: Mapping[str, Any]) -> str:
    names = sorted(flag["names"], key=lambda name: (not name.startswith("--"), len(name)))
    row: dict[str, Any] = {}
    if names[1:]:
        row["also"] = names[1:]
    if flag["takes"] != "1":
        row["takes"] = flag["takes"]
    if flag.get("values"):
        row["values"] = flag["values"]
    return f"  {_flow(names[0])}: {_flow(row)}"


def _flow(value: Any) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10**9, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")
