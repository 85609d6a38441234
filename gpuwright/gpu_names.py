"""Finding the row of a card: by what the driver says of it, or by what a person calls it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from gpuwright.quoting import quoted
from gpuwright.refusals import WantError
from gpuwright.rows import GpuRow

_WORD = re.compile(r"[a-z0-9.]+")
_SILENT = frozenset({"nvidia", "geforce", "tesla", "gpu", "generation", "edition", "blackwell"}) | {
    "mod",
    "modified",
}
"""Words that people leave out or add, and that tell no two cards apart."""
_SPELLINGS = {"mobile": "laptop", "gib": "gb", "g": "gb"}
_SERIES = re.compile(r"(rtx|gtx)(?=.)")
_SIZE = re.compile(r"(\d+)(gib|gb|g)")
_VARIANT = re.compile(r"(?:pcie|sxm\d?|nvl|hbm\d?e?|\d+gb)+")
"""What a name may end in where two cards differ by their memory or board alone."""
_SIZE_PERCENT = 10
"""How far a card's memory may be from its row's: error correction takes a sixteenth of GDDR, and
drivers keep some. Sizes that are sold lie further apart."""

_NEAREST = 6
"""Cards that a refusal names."""


@lru_cache(maxsize=4096)
def normalized(name: str) -> str:
    """`name` without maker, series, case, spaces and dashes: "RTX 4060 Ti 16 GB" -> 4060ti16gb."""
    words = [
        _SIZE.sub(r"\1gb", _SPELLINGS.get(word, word))
        for word in _WORD.findall(name.casefold().replace("_", " "))
        if word not in _SILENT
    ]
    joined = "".join(words)
    return _SERIES.sub("", joined, count=1) if _SERIES.match(joined) else joined


def label(row: GpuRow) -> str:
    """The row's name, with its memory where the name does not tell it."""
    size = f"{row.memory_mib // 1024} GB"
    told = normalized(size) in normalized(row.name)
    return row.name if told else f"{row.name} {size}"


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuIndex:
    """The rows by everything that names them; ids and aliases name one, the others may several."""

    rows: tuple[GpuRow, ...]
    by_pci_id: dict[str, tuple[GpuRow, ...]]
    by_alias: dict[str, GpuRow]
    by_name: dict[str, tuple[GpuRow, ...]]

    def card(self, pci_id: str | None, name: str, total_bytes: int | None) -> GpuRow | None:
        """The row of a card as the driver shows it: by PCI id, else by name; None where it is
        unlisted.

        Cards with more memory than their maker gave them keep their id and name: rows that share
        those are told apart by name and then by size, and a size that no row has is unlisted.
        """
        wanted = normalized(name)
        for rows in (self.by_pci_id.get(pci_id or "", ()), self.by_name.get(wanted, ())):
            same = [row for row in rows if normalized(row.name) == wanted]
            row = _nearest_size(same or rows, total_bytes)
            if row is not None:
                return row
        alias = self.by_alias.get(wanted)
        return None if alias is None else _nearest_size((alias,), total_bytes)

    def find(self, text: str, key: str = "gpu") -> GpuRow:
        """The card that a person means by `text`; WantError for an unknown or ambiguous name."""
        wanted = normalized(text)
        if wanted in self.by_alias:
            return self.by_alias[wanted]
        rows = self.by_name.get(wanted, ())
        if len(rows) == 1:
            return rows[0]
        if rows:
            raise WantError(
                f"{key}: {quoted(text)} means {' or '.join(label(row) for row in rows)}"
            )
        raise WantError(f"{key}: {quoted(text)} is unknown{self._nearest(wanted)}")

    def called(self, name: str) -> tuple[GpuRow, ...]:
        """Every row that a person may mean by `name`, with all its sizes and boards."""
        wanted = normalized(name)
        found = {row.id: row for row in self.by_name.get(wanted, ())}
        if wanted in self.by_alias:
            row = self.by_alias[wanted]
            found |= {row.id: row, **{each.id: each for each in self.variants(name, row)}}
        return tuple(found.values())

    def variants(self, text: str, row: GpuRow) -> tuple[GpuRow, ...]:
        """Other cards that `text`, which found `row`, is too short to tell from it."""
        return _variants(self.rows, normalized(text), row)

    def _nearest(self, wanted: str) -> str:
        """The end of a sentence: cards whose name holds what was said, or the nearest one."""
        names = {**self.by_name, **{alias: (row,) for alias, row in self.by_alias.items()}}
        holding = [name for name in names if wanted and wanted in name]
        holding.sort(key=lambda name: not name.startswith(wanted))
        if holding:
            cards = dict.fromkeys(label(row) for name in holding for row in names[name])
            return f"; nearest: {', '.join([*cards][:_NEAREST])}"
        near = difflib.get_close_matches(wanted, names, n=1, cutoff=0.5)
        return f"; nearest: {label(names[near[0]][0])}" if near else "; `gpuwright gpus` lists them"


@lru_cache(maxsize=1 << 10)
def _variants(rows: tuple[GpuRow, ...], wanted: str, row: GpuRow) -> tuple[GpuRow, ...]:
    return tuple(
        each
        for each in rows
        if each is not row and any(_is_variant(name, wanted) for name in _names(each))
    )


def _names(row: GpuRow) -> tuple[str, str]:
    return normalized(row.name), normalized(label(row))


def _is_variant(name: str, wanted: str) -> bool:
    return name.startswith(wanted) and _VARIANT.fullmatch(name[len(wanted) :]) is not None


def index_gpus(rows: Iterable[GpuRow]) -> GpuIndex:
    rows = tuple(rows)
    by_pci_id: dict[str, tuple[GpuRow, ...]] = {}
    by_alias: dict[str, GpuRow] = {}
    by_name: dict[str, tuple[GpuRow, ...]] = {}
    for row in rows:
        for pci_id in row.pci_ids or ():
            by_pci_id[pci_id] = (*by_pci_id.get(pci_id, ()), row)
        for alias in (row.id, *row.aliases):
            by_alias.setdefault(normalized(alias), row)
        for name in {normalized(row.name), normalized(f"{row.name} {row.memory_mib // 1024} GB")}:
            by_name[name] = (*by_name.get(name, ()), row)
    return GpuIndex(rows=rows, by_pci_id=by_pci_id, by_alias=by_alias, by_name=by_name)


def find_gpu(rows: Iterable[GpuRow], text: str, key: str = "gpu") -> GpuRow:
    """As GpuIndex.find, for rows that are not indexed."""
    return index_gpus(rows).find(text, key)


def _nearest_size(rows: Iterable[GpuRow], total_bytes: int | None) -> GpuRow | None:
    """The row of the card's size; the smallest where the size is unknown."""
    rows = tuple(rows)
    if total_bytes is None:
        return min(rows, key=lambda row: row.memory_mib, default=None)
    row = min(rows, key=lambda row: abs((row.memory_mib << 20) - total_bytes), default=None)
    if row is None:
        return None
    # What is the node's may be bounded there: by a container, or by a kernel's option.
    return row if row.unified_memory or is_size_of(total_bytes, row) else None


def is_size_of(total_bytes: int, row: GpuRow) -> bool:
    """Whether a card that shows `total_bytes` may be one of the row's."""
    size = row.memory_mib << 20
    return abs(size - total_bytes) * 100 <= size * _SIZE_PERCENT
