"""Layers over devices, as an engine that keeps each layer whole splits them."""

from __future__ import annotations

from collections.abc import Sequence

Run = tuple[int, int]
"""So many layers in a row, of so many bytes each."""


def layer_split(runs: Sequence[Run], rooms: Sequence[int], tail: int = 0) -> tuple[int, ...]:
    """Layers for each device, in order, so that each gets its part of the bytes by its room.

    `runs` make up the model, first layers first. A layer stands where its middle falls. `tail` are
    bytes behind the layers, which are the last device's.
    """
    total, whole = sum(count * size for count, size in runs) + tail, max(1, sum(rooms))
    counts: list[int] = []
    room = 0
    for each in rooms[:-1]:
        room += each
        counts.append(_layers_before(2 * room * total // whole, runs) - sum(counts))
    return (*counts, sum(count for count, _ in runs) - sum(counts))


def _layers_before(twice_bytes: int, runs: Sequence[Run]) -> int:
    """How many layers have their middle in the first bytes. Doubled, every middle is whole: that of
    a run's layer number n, counted from 0, stands 2 n + 1 sizes behind where the run begins."""
    found = 0
    for count, size in runs:
        sizes = twice_bytes // max(1, size)
        found += max(0, min(count, (sizes + 1) // 2))
        twice_bytes -= 2 * count * size
    return found
