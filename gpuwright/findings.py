"""What is wrong with a box, from its document and the rows of findings: pure, worst first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuwright.finding_rows import Condition, FindingRow, Severity
from gpuwright.quoting import clipped
from gpuwright.refusals import gib
from gpuwright.rows import Claim
from gpuwright.versions import parse_version

_PLACE = re.compile(r"\{([^{}]*)\}")
_NUMBERS = re.compile(r"\d{1,9}(?:\.\d{1,9})*(?!\d)", re.ASCII)
_PACKAGES = "packages."
_LONGEST = 400
_ABSURD_BYTES = 2**80
_SLOT = "{index}"
_MOST_TOLD = 8
"""Entries of one list that a finding names one by one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """`says` has a sentence for each entry that the row was found for."""

    id: str
    severity: Severity
    says: tuple[str, ...]
    remedy: str
    sources: tuple[Claim, ...]


def findings(document: Mapping[str, Any], rows: Sequence[FindingRow]) -> tuple[Finding, ...]:
    """Every finding of `rows` in `document`, worst first, then in the order of the rows."""
    met = {row.id: list(_entries(row, document)) for row in rows}
    order = list(Severity)
    told = [
        _finding(row, document, entries)
        for row in rows
        if (entries := [each for each in met[row.id] if not _explained(row, each, rows, met)])
    ]
    return tuple(sorted(told, key=lambda each: order.index(each.severity)))


def _explained(
    row: FindingRow, entry: Any, rows: Iterable[FindingRow], met: Mapping[str, list[Any]]
) -> bool:
    """Whether another finding stands in this one's place: of the same entry, where both are asked
    of one list."""
    return any(
        row.id in other.instead_of
        and (met[other.id] if other.each != row.each else any(entry is e for e in met[other.id]))
        for other in rows
    )


def asked_packages(rows: Iterable[FindingRow]) -> frozenset[str]:
    """Packages that rows look at, so that a probe must be asked for them."""
    paths = (path for row in rows for path in row.paths())
    return frozenset(path.removeprefix(_PACKAGES) for path in paths if path.startswith(_PACKAGES))


def _finding(row: FindingRow, document: Mapping[str, Any], entries: Sequence[Any]) -> Finding:
    """Entries that differ in nothing but their index share a sentence."""
    groups: dict[tuple[str, str], list[Any]] = {}
    for entry in entries:
        bare = {**entry, "index": _SLOT} if isinstance(entry, Mapping) else entry
        texts = _filled(row.says, document, bare), _filled(row.remedy, document, bare)
        groups.setdefault(texts, []).append(entry)
    says, remedies = [], []
    for (sentence, remedy), alike in groups.items():
        indexes = [str(each.get("index")) for each in alike if isinstance(each, Mapping)]
        says.append(sentence.replace(_SLOT, ", ".join(indexes)))
        remedies.append(remedy.replace(_SLOT, ",".join(indexes)))
    if len(says) > _MOST_TOLD:
        says = [*says[:_MOST_TOLD], f"and {len(says) - _MOST_TOLD} more"]
    return Finding(
        id=row.id,
        severity=row.severity,
        says=tuple(says),
        remedy="; ".join(dict.fromkeys(remedies[:_MOST_TOLD])),
        sources=row.sources,
    )


def _entries(row: FindingRow, document: Mapping[str, Any]) -> Iterator[Any]:
    """Entries of `each` that the row holds for; the document itself where it asks for none."""
    for entry in _listed(_at(document, row.each)) if row.each else (document,):
        if all(_holds(one, document, entry) for one in row.when) and not any(
            _holds(one, document, entry) for one in row.unless
        ):
            yield entry


def _listed(value: Any) -> Sequence[Any]:
    """Entries of a list; those of a mapping with the name of each as `key`."""
    if isinstance(value, Mapping):
        return [{**each, "key": name} for name, each in value.items() if isinstance(each, Mapping)]
    return value if isinstance(value, list) else ()


def _at(document: Any, path: str, entry: Any = None) -> Any:
    """The value at `path`, None where there is none.

    `.name` is of the entry, and `.` the entry itself. A list in between, `devices[].bytes`, gives
    the sum of what its entries have there; None where one of them has none.
    """
    if path.startswith("."):
        return _at(entry, path[1:]) if path != "." else entry
    before, listed, after = path.partition("[].")
    value = document
    for name in before.split(".") if before else ():
        value = value.get(name) if isinstance(value, Mapping) else None
    if not listed:
        return value
    parts = [_at(each, after) for each in _listed(value)]
    numbers = [part for part in parts if _is_number(part)]
    return sum(numbers) if numbers and len(numbers) == len(parts) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and type(value) is not bool


def _same(one: Any, other: Any) -> bool:
    """Equal, and both or neither true or false: 1 is not true."""
    return (type(one) is bool) == (type(other) is bool) and bool(one == other)


def _holds(condition: Condition, document: Any, entry: Any) -> bool:
    value = _at(document, condition.path, entry)
    if condition.known is not None:
        return (value is not None) == condition.known
    (name,) = condition.said()
    said = getattr(condition, name)
    match name:
        case "equals":
            return _same(value, said)
        case "one_of":
            return any(_same(value, each) for each in said)
        case "begins":
            return isinstance(value, str) and value.startswith(said)
        case "includes":
            return isinstance(value, str) and any(each in value for each in said)
        case "contains" | "lacks":
            held = isinstance(value, list) and any(_same(a, b) for a in value for b in said)
            return held if name == "contains" else isinstance(value, list) and not held
        case "below" | "above":
            other = _at(document, said, entry) if isinstance(said, str) else said
            if not (_is_number(value) and _is_number(other)):
                return False
            mine, bound = value * 100, other * condition.percent
            return bool(mine < bound if name == "below" else mine > bound)
        case "older":
            return _is_older(value, said)
        case "differs_from":
            other = _at(document, said, entry)
            return None not in (value, other) and not _same(value, other)
        case "empty":
            return isinstance(value, (list, Mapping)) and (not value) == said
    found = any(all(_holds(inner, document, each) for inner in said) for each in _listed(value))
    return found if name == "some" else isinstance(value, (list, Mapping)) and not found


def _is_older(value: Any, bound: str) -> bool:
    match = _NUMBERS.match(value) if isinstance(value, str) else None
    return match is not None and parse_version(match[0]) < parse_version(bound)


def _filled(text: str, document: Any, entry: Any) -> str:
    """`text` with each `{path}` as its value; `|gib` of bytes, `|list` of a list."""

    def value(place: re.Match[str]) -> str:
        path, _, word = place[1].partition("|")
        return _shown(_at(document, path, entry), word)

    return _PLACE.sub(value, text)


def _shown(value: Any, word: str) -> str:
    if value is None:
        return "unknown"
    if value is _SLOT:
        return str(value)
    if word == "gib" and type(value) is int and abs(value) < _ABSURD_BYTES:
        return gib(value)
    if word == "list" and isinstance(value, list):
        return ", ".join(clipped(each) for each in value) or "none"
    if isinstance(value, float):
        return f"{value:g}"
    return clipped(value, _LONGEST)


def unseen(document: Mapping[str, Any], rows: Iterable[FindingRow]) -> tuple[str, ...]:
    """Sections that rows look at and of which the document says nothing: no news of them is no
    good news."""
    named = sorted({re.split(r"[.\[]", path)[0] for row in rows for path in row.paths()})
    return tuple(name for name in named if name and _dark(name, document.get(name)))


def _dark(name: str, value: Any) -> bool:
    if isinstance(value, Mapping) and f"{name}." != _PACKAGES:
        return all(_dark(key, inner) for key, inner in value.items())
    # A package that was asked for and is not installed is null, too; one not asked for is absent.
    return not value if f"{name}." == _PACKAGES else value is None
