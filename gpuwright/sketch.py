"""A node of which only a few things are known, as a node document: what is not said is assumed.

A sketch takes the way of a node that was looked at, so that nothing is decided differently for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import Any

from gpuwright.catalogue import Matrix
from gpuwright.host import SCHEMA
from gpuwright.layout import ARCHIVES, SYSTEM, Layout
from gpuwright.quoting import clipped, counted, kind, nearest
from gpuwright.refusals import HostError, WantError
from gpuwright.rows import DistroRow, GpuRow
from gpuwright.sketch_values import ENVIRONMENTS, GIB, KEYS, NO_GPUS, Card
from gpuwright.versions import parse_version

UNSAID = ": assumed, the sketch does not say"
"""How each sentence about what is assumed ends."""
ASSUMED_DISTRO = "debian-12"
ASSUMED_MEMORY_GIB = 64
ASSUMED_DISK_GIB = 500
ASSUMED_THREADS = 16
_ASSUMED_FLAGS = ("avx", "avx2", "bmi2", "f16c", "fma", "sse4_2")
_OTHER_PID = 2
"""Process that holds what is not free of a card; no service of ours has it."""


def read_sketch(
    data: object, matrix: Matrix, layout: Layout | None = None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The node document of a sketch, and a sentence for each thing that it leaves unsaid.

    `layout` names the directories whose filesystem `disk_free_gib` describes. Raises HostError with
    every fault: an unknown key, card or word with the nearest one, a value out of range, and values
    that contradict each other.
    """
    if not isinstance(data, Mapping):
        raise HostError(f"a sketch needs a mapping, found {kind(data)}")
    faults: list[str] = []
    said: dict[str, Any] = {}
    for key, value in data.items():
        if key not in KEYS:
            faults.append(f"{clipped(key)}: unknown key{nearest(key, KEYS)}")
        elif value is not None:
            try:
                said[key] = KEYS[key](value, matrix)
            except (ValueError, WantError) as error:
                texts = error.faults if isinstance(error, WantError) else (f"{key}: {error}",)
                faults.extend(texts)
    if "gpus" not in said and not any(fault.startswith("gpus") for fault in faults):
        faults.append(f"gpus: missing; needs names of cards, or {NO_GPUS!r}")
    if faults:
        raise HostError(*faults)
    faults.extend(_contradictions(said))
    if faults:
        raise HostError(*faults)
    assumed: list[str] = []
    document = _document(said, matrix, layout or Layout(), assumed)
    return document, tuple(text + UNSAID for text in assumed)


def _contradictions(said: Mapping[str, Any]) -> Iterable[str]:
    cards: tuple[Card, ...] = said["gpus"]
    free = said.get("free_memory_gib")
    if isinstance(free, tuple) and len(free) != len(cards):
        yield f"free_memory_gib: {counted(len(free), 'figure')} for {counted(len(cards), 'card')}"
    elif free is not None:
        for card, each in zip(cards, _for_each(free, cards), strict=True):
            if each * GIB > card.total_bytes:
                size = card.total_bytes / GIB
                yield f"free_memory_gib: {each:g} of a card of {size:g} GiB ({card.name})"
    if said.get("interconnect") == "nvlink":
        if len(cards) < 2:
            yield f"interconnect: nvlink needs two cards, found {len(cards)}"
        for card in cards:
            if card.row is not None and card.row.nvlink is False:
                yield f"interconnect: {card.name} has no NVLink (row {card.row.id})"
        if said.get("p2p") is False:
            yield "p2p: false contradicts interconnect nvlink"
    if len(cards) == 1 and said.get("p2p"):
        yield "p2p: needs two cards, found 1"
    if not cards:
        for key in ("driver", "free_memory_gib", "interconnect", "p2p"):
            if key in said:
                yield f"{key}: needs a card, and gpus says none"


def _document(
    said: Mapping[str, Any], matrix: Matrix, layout: Layout, assumed: list[str]
) -> dict[str, Any]:
    def take(key: str, default: Any, sentence: str) -> Any:
        if key in said:
            return said[key]
        assumed.append(sentence)
        return default

    cards: tuple[Card, ...] = said["gpus"]
    assumed += dict.fromkeys(card.told_by for card in cards if card.told_by is not None)
    driver = None
    nvlink = p2p = False
    if cards:
        newest = max((row.min_driver for row in matrix.cuda), key=parse_version)
        driver = take("driver", newest, f"driver {newest}")
    usual = next(row for row in matrix.distros if row.id == ASSUMED_DISTRO)
    distro: DistroRow = take("distro", usual, f"distro {usual.id}")
    python = take("python", distro.python, f"Python {distro.python}, that of {distro.id}")
    unified = [card for card in cards if card.row is not None and card.row.unified_memory]
    rows = [card.row for card in cards if card.row is not None]
    size = unified[0].total_bytes / GIB if unified else _joined(rows, "node_memory_gib")
    size = size or ASSUMED_MEMORY_GIB
    memory = int(take("memory_gib", size, f"{size:g} GiB of RAM") * GIB)
    disk = int(
        take("disk_free_gib", ASSUMED_DISK_GIB, f"{ASSUMED_DISK_GIB} GiB of free disk") * GIB
    )
    cores = _joined(rows, "node_threads") or ASSUMED_THREADS
    threads = take("cpu_threads", cores, f"{cores} CPU threads")
    environment = take("environment", "bare", "bare metal")
    if cards:
        free = take("free_memory_gib", None, "nothing else uses the cards")
    if len(cards) > 1:
        nvlink = take("interconnect", "pcie", "no NVLink between the cards") == "nvlink"
        p2p = nvlink or take("p2p", False, "no peer access between the cards")
    joined = [card.row.architecture for card in cards if card.row and card.row.architecture]
    architecture = joined[0] if joined else "x86_64"
    assumed.append(architecture if joined else f"{architecture} with AVX2")
    assumed.append("root and systemd, and nothing of ours or on our port yet")
    own_kernel = environment in ("bare", "kvm")
    return {
        "schema": SCHEMA,
        "uid": 0,
        "gpus": {
            "status": "ok" if cards else "no_gpu",
            "detail": "",
            "driver_version": driver,
            "devices": [
                _device(index, card, available, own_kernel) | {"nvlink": nvlink}
                for index, (card, available) in enumerate(
                    zip(cards, _for_each(free if cards else None, cards), strict=True)
                )
            ],
            "pairs": [
                {"a": a, "b": b, "nvlinks": int(nvlink), "p2p": "ok" if p2p else "not_supported"}
                for a, b in combinations(range(len(cards)), 2)
            ],
            "pci": [{"id": card.pci_id or "10de:0000"} for card in cards],
        },
        "os": {
            "id": distro.os_id,
            "version_id": distro.version_id,
            "name": distro.id,
            "architecture": architecture,
        },
        "glibc": distro.glibc,
        "python": {"version": python},
        "cpu": {
            "model": None,
            "threads": threads,
            "flags": [] if joined else list(_ASSUMED_FLAGS),
        },
        "memory": {"total_bytes": memory, "available_bytes": memory},
        "systemd": {"version": None, "running": True},
        "virtualization": ENVIRONMENTS[environment],
        "disks": {
            path: {"mount": "/", "free_bytes": disk}
            for path in (layout.engines, layout.cache, layout.model_store, ARCHIVES, SYSTEM)
        },
        "ports": [],
        "ours": {"files": {}, "stamps": {}, "partials": {}, "service": None},
    }


def _joined(rows: Iterable[GpuRow], key: str) -> int:
    """What processors that cards are joined with bring, each its own; 0 where no row says it."""
    return sum(getattr(row, key) or 0 for row in rows)


def _device(index: int, card: Card, free_gib: float | None, own_kernel: bool) -> dict[str, Any]:
    free = card.visible_bytes if free_gib is None else int(free_gib * GIB)
    used = max(0, card.visible_bytes - free)
    processes = [{"pid": _OTHER_PID, "used_bytes": used}] if used else []
    return {
        "index": index,
        "uuid": f"GPU-00000000-0000-4000-8000-{index:012d}",
        "pci_id": card.pci_id,
        "name": card.name,
        "compute_capability": card.compute_capability,
        "memory_total_bytes": card.total_bytes,
        "memory_free_bytes": card.visible_bytes - used,
        "processes": processes if own_kernel else None,
    }


def _for_each(free: Any, cards: tuple[Card, ...]) -> tuple[Any, ...]:
    return free if isinstance(free, tuple) else (free,) * len(cards)
