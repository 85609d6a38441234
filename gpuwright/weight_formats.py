"""Formats of weights on cards: which is to be taken, and in which a card computes."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from gpuwright.catalogue import Matrix
from gpuwright.engine_rows import ReleaseRow
from gpuwright.model_rows import CheckpointRow
from gpuwright.versions import within


class Formats(NamedTuple):
    """What is to be said of a checkpoint's format on cards of some compute capabilities."""

    preferred: bool
    """Whether it is the one to take on every card."""
    spared: bool
    """Whether finer weights come first where they have all the room that they need."""
    native: bool
    """Whether every card computes in it, rather than in 16 bits."""


@lru_cache(maxsize=1 << 14)
def formats_of(
    matrix: Matrix,
    release: ReleaseRow,
    checkpoint: CheckpointRow,
    capabilities: tuple[str | None, ...],
) -> Formats:
    """For weights that `release` loads on cards of these compute capabilities."""
    row = matrix.quantization(checkpoint.quantization)
    native = row.engines[release.engine].native
    return Formats(
        preferred=all(_in_any(each, row.preferred) for each in capabilities),
        spared=all(_spared(each, release, matrix) for each in capabilities),
        native=all(each is not None and within(each, native) for each in capabilities),
    )


def _spared(capability: str | None, release: ReleaseRow, matrix: Matrix) -> bool:
    """Whether what is preferred on this card under `release` is so for the room that it saves."""
    return any(
        row.saves_room_only and release.engine in row.engines and _in_any(capability, row.preferred)
        for row in matrix.quantizations
    )


def _in_any(capability: str | None, ranges: tuple[str, ...]) -> bool:
    return capability is not None and any(within(capability, each) for each in ranges)
