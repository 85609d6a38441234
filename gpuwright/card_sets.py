"""Sets of a node's cards that a build may be given, and what keeps it from computing on them."""

from __future__ import annotations

from collections.abc import Iterator

from gpuwright import compat
from gpuwright.card_rules import sound, whole
from gpuwright.engine_rows import BuildTagRow, ReleaseRow
from gpuwright.host import Gpu
from gpuwright.kernel_compilers import unknown_card
from gpuwright.memory.request import DeviceMemory
from gpuwright.model_rows import ModelRow
from gpuwright.pace import bytes_per_second
from gpuwright.pins import pinned_gpus
from gpuwright.refusals import Needs, Reason
from gpuwright.rows import Device
from gpuwright.site import CardSet, Site, cards_label, splits_tensors
from gpuwright.unified import shares_ram

_COUNTS = (1, 2, 3, 4, 6, 8)
"""Numbers of cards that are tried where layers are split, beside all of them."""


def card_sets(
    site: Site, release: ReleaseRow, tag: BuildTagRow, model: ModelRow
) -> tuple[CardSet, ...]:
    """Sets of cards to try: none for the CPU, the pinned ones, or growing sets."""
    sizes = model.tensor_parallel_sizes if splits_tensors(release) else ()
    key = (release, tag, sizes)
    if key not in site.card_sets:
        found = _device_sets(site, release, tag, sizes)
        site.card_sets[key] = tuple(card_set(site, release, tag, gpus) for gpus in found)
    return site.card_sets[key]


def card_reason(site: Site, release: ReleaseRow, tag: BuildTagRow, gpu: Gpu) -> Reason | None:
    """Why the card, its driver or the build cannot compute on it."""
    key = (tag, gpu.uuid)
    if key in site.card_reasons:
        return site.card_reasons[key]
    reason = (
        whole(gpu, release.id)
        or (sound(gpu, release.id) if site.want.gpus is None else None)
        or site.undriven[gpu.uuid]
        or compat.kernels(gpu, release, tag, site.host.architecture)
        or unknown_card(site, release, gpu)
    )
    site.card_reasons[key] = reason
    return reason


def card_set(site: Site, release: ReleaseRow, tag: BuildTagRow, gpus: tuple[Gpu, ...]) -> CardSet:
    """`gpus` as a set, with what every candidate of the build asks of it."""
    kinds = tuple({(gpu.name, gpu.compute_capability): gpu for gpu in reversed(gpus)}.values())
    devices = tuple(site.rooms[gpu.uuid] for gpu in gpus)
    return CardSet(
        gpus=gpus,
        label=cards_label(gpus),
        devices=devices,
        capabilities=tuple(dict.fromkeys(gpu.compute_capability for gpu in gpus)),
        kinds=kinds[::-1],
        unusable=compat.first(
            [
                card_reason(site, release, tag, gpu) or compat.toolkit(gpu, tag, site.matrix)
                for gpu in gpus
            ]
        ),
        untold=compat.first([_untold(site, release, gpu) for gpu in gpus]),
        unequal=compat.equal_cards(gpus, release.id) if gpus else None,
        bytes_per_second=bytes_per_second(gpus, release, site.matrix),
        most_weights_bytes=_most_weights_bytes(release, devices),
    )


def _most_weights_bytes(release: ReleaseRow, devices: tuple[DeviceMemory, ...]) -> int:
    """Of equal shares the smallest device sets the size; layers go by the room of each."""
    rooms = [each.available_bytes for each in devices]
    return min(rooms) * len(rooms) if rooms and splits_tensors(release) else sum(rooms)


def _untold(site: Site, release: ReleaseRow, gpu: Gpu) -> Reason | None:
    if gpu.total_bytes is None and shares_ram(gpu, site.matrix):
        return Needs(
            subject=gpu.name,
            needed="the size of the node's RAM, which is its memory",
            found="unknown",
            row=release.id,
            help="`/proc/meminfo` readable on the node, which tells its RAM",
        )
    if gpu.total_bytes is None:
        return Needs(subject=gpu.name, needed="a memory size", found="unknown", row=release.id)
    return site.untold[gpu.uuid]


def _device_sets(
    site: Site, release: ReleaseRow, tag: BuildTagRow, sizes: tuple[int, ...]
) -> Iterator[tuple[Gpu, ...]]:
    want = site.want
    if tag.device is Device.CPU:
        yield ()
        return
    cards = pinned_gpus(site.host, want)
    if want.gpus is not None:
        yield cards
        return
    # A card that the build has no code for is left out, not stumbled on.
    usable = tuple(gpu for gpu in cards if _usable(site, release, tag, gpu)) or cards
    by_room = sorted(usable, key=lambda gpu: (-site.rooms[gpu.uuid].available_bytes, gpu.index))
    if splits_tensors(release):
        yield from _equal_sets(site, sizes, by_room)
        return
    pinned = want.tensor_parallel_size
    for count in range(1, len(by_room) + 1):
        if count in _COUNTS or count == len(by_room) or pinned not in (None, 1):
            yield tuple(sorted(by_room[:count], key=lambda gpu: gpu.index))


def _equal_sets(
    site: Site, sizes: tuple[int, ...], by_room: list[Gpu]
) -> Iterator[tuple[Gpu, ...]]:
    """Sets of one kind of card, so that no tensor is split over unequal ones."""
    kinds: dict[tuple[str | None, int], list[Gpu]] = {}
    for gpu in by_room:
        kinds.setdefault(compat.kind(gpu), []).append(gpu)
    pinned = site.want.tensor_parallel_size
    for equal in kinds.values():
        # All of a kind are tried even where that count does not divide: the reason says so.
        for size in sorted({1, len(equal), pinned or 1, *sizes}):
            if size <= len(equal) and pinned in (None, size):
                yield tuple(sorted(equal[:size], key=lambda gpu: gpu.index))
    if pinned and all(len(equal) < pinned for equal in kinds.values()):
        yield tuple(sorted(by_room[:pinned], key=lambda gpu: gpu.index))


def _usable(site: Site, release: ReleaseRow, tag: BuildTagRow, gpu: Gpu) -> bool:
    return (
        gpu.total_bytes is not None
        and card_reason(site, release, tag, gpu) is None
        and site.untold[gpu.uuid] is None
    )
