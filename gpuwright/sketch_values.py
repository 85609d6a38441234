"""The values of a sketch: each reader answers with the value in one form, or a ValueError.

The text of the ValueError reads behind the key's name and a colon.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpuwright.catalogue import Matrix
from gpuwright.gpu_names import is_size_of, label
from gpuwright.quoting import clipped, nearest, quoted
from gpuwright.refusals import WantError
from gpuwright.rows import DistroRow, GpuRow
from gpuwright.site import VISIBLE_PERCENT

GIB = 2**30
MIB = 2**20
NO_GPUS = "none"
ENVIRONMENTS = {"bare": "none", "kvm": "kvm", "lxc": "lxc", "wsl2": "wsl"}
"""How a sketch and how the probe call what a node runs in."""
_INTERCONNECTS = ("pcie", "nvlink")
_MOST_GPUS = 64
_MOST_GIB = 1_048_576
_MOST_THREADS = 4096
_CARD_KEYS = ("name", "compute_capability", "memory_gib")
_NUMBER = re.compile(r"\d{1,6}(?:\.\d{1,6})?", re.ASCII)
_VERSION = re.compile(r"\d{1,6}(?:\.\d{1,6}){0,4}", re.ASCII)
_OTHER = re.compile("[tmke]", re.IGNORECASE)
"""In a size whose digits are no GiB: the letter of another unit, or of an exponent."""
_DRIVER_DIGITS = 3
_CAPABILITY = re.compile(r"\d{1,2}\.\d", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """A card with all its memory and what CUDA sees of it."""

    name: str
    pci_id: str | None
    compute_capability: str
    total_bytes: int
    visible_bytes: int
    row: GpuRow | None
    told_by: str | None = None
    """Why this card and no other of its name, where the name leaves it open."""


def _read_gpus(value: object, matrix: Matrix) -> tuple[Card, ...]:
    if value == NO_GPUS or value == []:
        return ()
    entries = value if isinstance(value, list) else [value]
    if len(entries) > _MOST_GPUS:
        raise ValueError(f"needs at most {_MOST_GPUS} cards, found {len(entries)}")
    cards: list[Card] = []
    faults: list[str] = []
    for index, entry in enumerate(entries):
        path = f"gpus[{index}]"
        try:
            if entry == NO_GPUS:
                raise ValueError(f"{NO_GPUS!r} stands alone: it says that there is no card")
            if entry == "":
                raise ValueError("needs a card's name, found none")
            if type(entry) is int and 0 < entry < 10**6:
                # To YAML the name 3090 is a number.
                entry = str(entry)
            if isinstance(entry, str):
                cards.append(_named(entry, path, matrix))
            else:
                cards.append(_described(entry, matrix))
        except WantError as error:
            faults.extend(f"{fault} (gpus/)" for fault in error.faults)
        except ValueError as error:
            faults.append(f"{path}: {error}")
    if faults:
        raise WantError(*faults)
    return tuple(cards)


def _named(text: str, path: str, matrix: Matrix) -> Card:
    row = matrix.gpu_index.find(text, path)
    others = matrix.gpu_index.variants(text, row)
    told_by = f"{text} is {label(row)}, not {' or '.join(map(label, others))}" if others else None
    return replace(_listed(row), told_by=told_by)


def _listed(row: GpuRow) -> Card:
    total = row.memory_mib * MIB
    visible = total * VISIBLE_PERCENT // 100
    if row.visible_mib is not None:
        visible = min(total, row.visible_mib * MIB)
    return Card(
        name=row.name,
        pci_id=row.pci_ids[0] if row.pci_ids else None,
        compute_capability=row.compute_capability,
        total_bytes=total,
        visible_bytes=visible,
        row=row,
    )


def _described(entry: object, matrix: Matrix) -> Card:
    """A card without a row, from its compute capability and memory; one that has a row may say them
    as its row does."""
    if not isinstance(entry, Mapping):
        raise ValueError(f"needs a card's name as text, found {quoted(entry)}")
    for key in entry:
        if key not in _CARD_KEYS:
            raise ValueError(f"unknown key {quoted(key)}; known: {', '.join(_CARD_KEYS)}")
    for key in _CARD_KEYS:
        if key not in entry:
            raise ValueError(f"{key} missing, which a card without a row needs")
    name, capability = entry["name"], entry["compute_capability"]
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        raise ValueError(f"name needs text, found {quoted(name)}")
    if not isinstance(capability, str) or not _CAPABILITY.fullmatch(capability):
        raise ValueError(f'compute_capability needs text such as "8.6", found {quoted(capability)}')
    try:
        total = int(_read_gib(entry["memory_gib"]) * GIB)
    except ValueError as error:
        raise ValueError(f"memory_gib {error}") from None
    listed = matrix.gpu_index.called(name)
    if listed:
        return _listed(_as_described(name, capability, total, listed))
    return Card(
        name=name,
        pci_id=None,
        compute_capability=capability,
        total_bytes=total,
        visible_bytes=total * VISIBLE_PERCENT // 100,
        row=None,
    )


def _as_described(
    name: str, capability: str, total_bytes: int, listed: tuple[GpuRow, ...]
) -> GpuRow:
    """The row of `listed` that has these figures; ValueError with the row's own where none has."""
    row = min(listed, key=lambda row: abs(row.memory_mib * MIB - total_bytes))
    if row.compute_capability != capability:
        raise ValueError(
            f"compute_capability of {clipped(name)} needs {row.compute_capability!r} (row "
            f"{row.id}), found {quoted(capability)}; a card that is not this one needs another name"
        )
    if is_size_of(total_bytes, row):
        return row
    sizes = " or ".join(f"{each.memory_mib / 1024:g}" for each in listed)
    raise ValueError(
        f"memory_gib of {name} needs {sizes} (row {row.id}), found {total_bytes / GIB:g}; a card "
        "that is not this one needs another name"
    )


def _read_version(value: object, _matrix: Matrix) -> str:
    if type(value) is int and value >= 0:
        value = str(value)
    if not isinstance(value, str) or not _VERSION.fullmatch(value):
        # What it was is lost: 3.10 and 3.1 are one number.
        quote = "; quote it" if isinstance(value, float) else ""
        raise ValueError(f'needs a version as text, such as "3.12", found {quoted(value)}{quote}')
    return value


def _read_driver(value: object, matrix: Matrix) -> str:
    try:
        text = _read_version(value, matrix)
    except ValueError as error:
        raise ValueError(str(error).replace("3.12", "580.95.05")) from None
    if len(text.split(".")[0]) != _DRIVER_DIGITS:
        raise ValueError(
            f'needs the version of a driver, such as "580.95.05", found {quoted(value)}; the '
            "version of CUDA is another"
        )
    return text


def _read_python(value: object, matrix: Matrix) -> str:
    text = _read_version(value, matrix)
    if not text.startswith("3."):
        raise ValueError(f'needs a version of Python 3, such as "3.12", found {quoted(value)}')
    return text


def _read_distro(value: object, matrix: Matrix) -> DistroRow:
    names = [row.id for row in matrix.distros]
    if not isinstance(value, str):
        raise ValueError(f"needs one of {', '.join(names)}, found {quoted(value)}")
    row = next((row for row in matrix.distros if row.id == value.casefold()), None)
    if row is None:
        near = _nearest_distro(value, matrix)
        raise ValueError(f"{quoted(value)} is unknown{near} (distros.yaml)")
    return row


def _nearest_distro(value: str, matrix: Matrix) -> str:
    """The end of a sentence: of the distribution that is meant, the release that stands next."""
    ids = [row.id for row in matrix.distros]
    for row in matrix.distros:
        version = _NUMBER.search(value)
        same = [each for each in matrix.distros if each.os_id == row.os_id]
        if row.os_id in value.casefold() and version is not None:
            wanted = float(version[0])
            near = min(same, key=lambda each: abs(float(each.version_id) - wanted))
            return f"; nearest: {near.id}; known: {', '.join(ids)}"
    return nearest(value, ids, {row.codename: row.id for row in matrix.distros})


def _read_gib(value: object, _matrix: Matrix | None = None) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        number = _NUMBER.match(value) if isinstance(value, str) else None
        near = f"; nearest: {number[0]}" if number and not _OTHER.search(str(value)) else ""
        raise ValueError(f"needs a number of GiB, without a unit, found {quoted(value)}{near}")
    if not 0 < value <= _MOST_GIB:
        raise ValueError(f"needs more than 0 and at most {_MOST_GIB:,} GiB, found {quoted(value)}")
    return value


def _read_free(value: object, matrix: Matrix) -> float | tuple[float, ...]:
    if isinstance(value, list):
        return tuple(_read_gib(each) for each in value)
    return _read_gib(value)


def _one_of(words: Iterable[str]) -> Callable[[object, Matrix], str]:
    words = tuple(words)

    def read(value: object, _matrix: Matrix) -> str:
        if isinstance(value, str) and value.casefold() in words:
            return value.casefold()
        raise ValueError(f"{quoted(value)} is unknown{nearest(value, words)}")

    return read


def _read_switch(value: object, _matrix: Matrix) -> bool:
    if type(value) is not bool:
        raise ValueError(f"needs true or false, found {quoted(value)}")
    return value


def _read_threads(value: object, _matrix: Matrix) -> int:
    if type(value) is not int or not 1 <= value <= _MOST_THREADS:
        raise ValueError(f"needs 1 to {_MOST_THREADS:,}, found {quoted(value)}")
    return value


KEYS: dict[str, Callable[[Any, Matrix], Any]] = {
    "gpus": _read_gpus,
    "driver": _read_driver,
    "distro": _read_distro,
    "python": _read_python,
    "memory_gib": _read_gib,
    "disk_free_gib": _read_gib,
    "free_memory_gib": _read_free,
    "interconnect": _one_of(_INTERCONNECTS),
    "p2p": _read_switch,
    "environment": _one_of(ENVIRONMENTS),
    "cpu_threads": _read_threads,
}
"""What a sketch may say, and how each value is read."""
