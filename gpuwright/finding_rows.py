"""Rows about what can be wrong with a box, each a set of conditions on its node document."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from enum import StrEnum

from gpuwright.rows import Claim
from gpuwright.versions import parse_version

Value = str | int | bool
_PLACE = re.compile(r"\{([^{}]*)\}")
WORDS = frozenset(("gib", "list"))
"""How a value is shown in a sentence where it is not shown as it is."""


class Severity(StrEnum):
    """Worst first."""

    BLOCKS = "blocks"
    """A card, or the node, cannot serve until it is mended."""
    WARNS = "warns"
    """It serves worse than it could, or will fail later."""
    NOTES = "notes"
    """Something that explains other things."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """A path and one comparison. A value that is unknown meets none but `known: false`."""

    path: str
    equals: Value | None = None
    one_of: tuple[Value, ...] = ()
    begins: tuple[str, ...] = ()
    """Text that begins with one of these."""
    includes: tuple[str, ...] = ()
    """Text that has one of these somewhere in it."""
    contains: tuple[Value, ...] = ()
    """A list with one of these in it."""
    lacks: tuple[Value, ...] = ()
    """A list, with none of these in it."""
    below: int | str | None = None
    """A number less than this one, or than the one at this path."""
    above: int | str | None = None
    percent: int = 100
    """Of the other number."""
    older: str = ""
    """A version before this one."""
    differs_from: str = ""
    """Another known value than the one at this path."""
    empty: bool | None = None
    """A list or mapping without entries, or with some."""
    known: bool | None = None
    some: tuple[Condition, ...] = ()
    """A list with an entry that meets all of these; their paths begin with a dot."""
    none: tuple[Condition, ...] = ()
    """A list, without such an entry."""

    def said(self) -> tuple[str, ...]:
        """Names of the comparisons that are made."""
        own = {"path": self.path, "percent": self.percent}
        return tuple(
            each.name
            for each in fields(self)
            if each.name not in own and getattr(self, each.name) != each.default
        )

    def paths(self) -> Iterator[str]:
        """Every path that is looked at; those of nested conditions below their list's."""
        yield self.path
        yield from (each for each in (self.below, self.above) if isinstance(each, str))
        yield from filter(None, (self.differs_from,))
        for inner in (*self.some, *self.none):
            for path in inner.paths():
                yield path if not path.startswith(".") else f"{self.path}[]{path}".rstrip(".")

    def faults(self) -> Iterator[str]:
        if len(self.said()) != 1:
            found = ", ".join(self.said()) or "none"
            yield f": needs one comparison, found {found}"
        if self.percent != 100 and self.below is None and self.above is None:
            yield ".percent: stands beside below or above alone"
        if self.older:
            try:
                parse_version(self.older)
            except ValueError as error:
                yield f".older: {error}"
        for inner in (*self.some, *self.none):
            if not inner.path.startswith("."):
                yield f": {inner.path} is within a list, where paths begin with a dot"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FindingRow:
    id: str
    severity: Severity
    when: tuple[Condition, ...]
    """All of them hold."""
    says: str
    remedy: str
    sources: tuple[Claim, ...]
    each: str = ""
    """A list: asked for each of its entries, whose paths begin with a dot."""
    unless: tuple[Condition, ...] = ()
    """None of them holds."""
    instead_of: tuple[str, ...] = ()
    """Ids of findings that this one explains: they are not told beside it."""
    unknown: dict[str, str] = field(default_factory=dict)

    def paths(self) -> Iterator[str]:
        """Every path of the document that the row names, whole."""
        for condition in (*self.when, *self.unless):
            yield from map(self.whole, condition.paths())
        for place in (*_PLACE.findall(self.says), *_PLACE.findall(self.remedy)):
            yield self.whole(place.partition("|")[0])
        if self.each:
            yield self.each

    def whole(self, path: str) -> str:
        return f"{self.each}[]{path}".rstrip(".") if path.startswith(".") else path

    def faults(self) -> Iterator[str]:
        if not self.when:
            yield ".when: names no condition"
        dotted = [one.path for one in (*self.when, *self.unless) if one.path.startswith(".")]
        if dotted and not self.each:
            yield f".when: {dotted[0]} is of an entry, and `each` names no list"
        if self.each and not dotted:
            yield ".each: no condition looks at an entry"
        for name in ("says", "remedy"):
            for place in _PLACE.findall(getattr(self, name)):
                word = place.partition("|")[2]
                if word and word not in WORDS:
                    yield f".{name}: {{{place}}}: {word} is none of {', '.join(sorted(WORDS))}"
