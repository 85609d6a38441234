"""Layers over devices, as an engine that keeps each layer whole splits them."""

from __future__ import annotations

from collections.abc import Sequence


def layer_split(sizes: Sequence[int], rooms: Sequence[int]) -> tuple[int, ...]:
    """Layers for each device, in order, so that each gets its part of the bytes by its room.

    `sizes` are the layers' bytes, first layer first. A layer stands where its middle falls.
    """
    total, whole = sum(sizes), sum(rooms)
    last = len(rooms) - 1
    counts = [0] * len(rooms)
    device, filled, bound = 0, 0, rooms[0] * total
    for size in sizes:
        while device < last and (filled + size / 2) * whole > bound:
            device += 1
            bound += rooms[device] * total
        counts[device] += 1
        filled += size
    return tuple(counts)
