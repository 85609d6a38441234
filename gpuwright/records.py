"""What engines' own code answered when it was asked, cell by cell, and every flag they take.

The words are the engine's own, as it said them: a record is evidence, not a row of ours. It is read
by tests and by people, never by a decision.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from gpuwright.refusals import MatrixError
from gpuwright.rows import Claim
from gpuwright.strict import read_row, read_yaml

RECORDS = Path(__file__).parent / "matrix/records"


class Cell(NamedTuple):
    """One question: a card, what is beside the engine, and what a model and a plan ask of it."""

    capability: str
    toolchain: str
    """`none`, `nvcc` (with ninja, without a network), `prebuilt` (kernels that are downloaded)."""
    dtype: str
    """Of the activations."""
    kv: str
    head: str
    """A head size, or `mla`."""
    sliding: str
    sinks: str


AXES = Cell._fields


@dataclass(frozen=True, kw_only=True, slots=True)
class Cells:
    """A block of cells: every combination of the values; an axis that is not named has all."""

    capability: tuple[str, ...] = ()
    toolchain: tuple[str, ...] = ()
    dtype: tuple[str, ...] = ()
    kv: tuple[str, ...] = ()
    head: tuple[str, ...] = ()
    sliding: tuple[str, ...] = ()
    sinks: tuple[str, ...] = ()

    def covers(self, cell: Cell) -> bool:
        return all(
            not (values := getattr(self, axis)) or value in values
            for axis, value in zip(AXES, cell, strict=True)
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The backend that the engine chose (`none`: it found none) and whether it is then made."""

    chosen: str
    cells: tuple[Cells, ...]
    constructs: str = "yes"
    """`no`: it refuses when it is made; `unknown`: only a real card could tell."""
    version: int | None = None
    """Of FlashAttention, where that is chosen."""
    because: str | None = None

    def faults(self) -> Iterator[str]:
        if self.constructs not in ("yes", "no", "unknown"):
            yield f".constructs: {self.constructs!r} is none of yes, no, unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class Flag:
    """An option of the server's command."""

    also: tuple[str, ...] = ()
    """Its other names; `--no-x` among them switches `--x` off."""
    takes: str = "1"
    """How many values: 0, 1, ? (none or one) or * (any number)."""
    values: tuple[str, ...] = ()
    """Those that are legal; empty: any."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    engine: str
    release: str
    asked: str
    python: str
    cuda: str
    defaults: dict[str, str]
    axes: Cells
    answers: tuple[Answer, ...]
    flags: dict[str, Flag]

    def table(self) -> dict[Cell, Answer]:
        """Every cell that was asked, with what was said."""
        found: dict[Cell, Answer] = {}
        for answer in self.answers:
            for cells in answer.cells:
                axes = [getattr(cells, axis) or getattr(self.axes, axis) for axis in AXES]
                for values in itertools.product(*axes):
                    found[Cell(*values)] = answer
        return found

    def flag(self, name: str) -> Flag | None:
        """The option that `name` is a name of, `--x` or `-x`; None where the release has none."""
        if name in self.flags:
            return self.flags[name]
        return next((flag for flag in self.flags.values() if name in flag.also), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class DifferenceRow:
    """Cells where our rows answer otherwise than the engine, and why we know better."""

    engine: str
    releases: str
    cells: tuple[Cells, ...]
    ours: str
    theirs: str
    because: str
    sources: tuple[Claim, ...]


@lru_cache(maxsize=8)
def load_record(engine: str, release: str) -> Record:
    """The record of a release; MatrixError where there is none or it cannot be read."""
    record: Record = _read(f"{engine}-{release}.yaml", Record)
    return record


@lru_cache(maxsize=1)
def load_differences() -> tuple[DifferenceRow, ...]:
    return tuple(_read("differences.yaml", DifferenceRow, listed=True))


def recorded() -> list[tuple[str, str]]:
    """Engine and release of every record there is."""
    names = [path.name.removesuffix(".yaml") for path in sorted(RECORDS.glob("*-*.yaml"))]
    return [(engine, release) for name in names for engine, _, release in [name.partition("-")]]


def with_answers() -> list[tuple[str, str]]:
    """Those of engines that choose an attention backend: llama.cpp's has its flags alone."""
    return [pair for pair in recorded() if load_record(*pair).answers]


def _read(name: str, kind: type, *, listed: bool = False) -> Any:
    faults: list[str] = []
    label = f"records/{name}"
    data = read_yaml(RECORDS / name, label, faults)
    found: Any = None
    if not faults and listed and isinstance(data, list):
        found = [read_row(kind, row, f"{label}[{i}]", faults) for i, row in enumerate(data)]
    elif not faults:
        found = read_row(kind, data, label, faults)
    if faults:
        raise MatrixError(*faults)
    return found
