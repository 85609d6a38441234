"""A strict reader of node documents: every fault becomes one sentence with the value's path."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gpuwright.quoting import kind as sort_of
from gpuwright.quoting import quoted, sentence
from gpuwright.refusals import HostError

_REQUIRED = object()
_MOST = 2**63 - 1
"""What a kernel counts bytes with."""
_VERSION = re.compile(r"\d{1,9}(?:\.\d{1,9})*(?!\d)", re.ASCII)
"""Numbers of nine digits at most: what has more is none, and int() may refuse it."""


class Reader:
    """A mapping in the document with its path. Values may be null, which is unknown: None.

    `unknown`: what is absent from it, and from what it holds, is unknown as well.
    """

    def __init__(self, value: object, path: str, *, unknown: bool = False) -> None:
        if not isinstance(value, Mapping):
            raise HostError(f"{path or 'document'}: needs a mapping, found {sort_of(value)}")
        self.value = value
        self.path = path
        self.unknown = unknown

    def at(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def get(self, key: str, kind: type, default: Any = _REQUIRED) -> Any:
        value = self.value.get(key, None if self.unknown else default)
        if value is _REQUIRED:
            raise HostError(f"{self.at(key)}: missing")
        if isinstance(value, str) and kind is str and not value.isprintable():
            # What a node calls its parts goes to terminals and command lines.
            return "".join(char if char.isprintable() else "?" for char in value)
        if value is None or (isinstance(value, kind) and (kind is bool) == (type(value) is bool)):
            return value
        raise HostError(f"{self.at(key)}: needs {sort_of(kind)}, found {sort_of(value)}")

    def count(self, key: str, default: Any = _REQUIRED) -> int | None:
        """A size or a number of things: never below 0, nor above what a kernel can count."""
        value: int | None = self.get(key, int, default)
        if value is not None and value < 0:
            raise HostError(f"{self.at(key)}: needs 0 or more, found {value}")
        if value is not None and value > _MOST:
            raise HostError(f"{self.at(key)}: needs at most {_MOST}, found more")
        return value

    def amount(self, key: str) -> float | None:
        """A number of any kind, from 0 to a billion; None where a document has none."""
        value = self.value.get(key)
        if value is None:
            return None
        if isinstance(value, (int, float)) and type(value) is not bool and 0 <= value <= 10**9:
            return float(value)
        raise HostError(f"{self.at(key)}: needs a number of 0 or more, found {quoted(value)}")

    def texts(self, key: str) -> tuple[str, ...] | None:
        """A list of texts, printable; None where a document has none."""
        found = self.get(key, list, None)
        if found is None:
            return None
        return tuple(sentence(each) if isinstance(each, str) else quoted(each) for each in found)

    def version(self, key: str) -> str | None:
        """The leading numbers of a version: Python's own may end in `rc1` or `+`."""
        text = self.get(key, str)
        if text is None:
            return None
        match = _VERSION.match(text)
        if match is None:
            raise HostError(f"{self.at(key)}: {quoted(text)} is not a version")
        return match[0]

    def child(self, key: str) -> Reader:
        """The mapping at `key`; where it is null, everything in it is unknown."""
        if self.value.get(key, None if self.unknown else _REQUIRED) is None:
            return Reader({}, self.at(key), unknown=True)
        return Reader(self.value.get(key), self.at(key), unknown=self.unknown)

    def part(self, key: str) -> Reader:
        """The mapping at `key`; empty where an older document, or a sketch, has none."""
        return Reader(self.get(key, dict, None) or {}, self.at(key), unknown=True)

    def children(self, key: str) -> list[Reader]:
        entries = self.get(key, list) or []
        return [
            Reader(entry, f"{self.at(key)}[{n}]", unknown=self.unknown)
            for n, entry in enumerate(entries)
        ]

    def entries(self, key: str) -> list[tuple[str, Reader | None]]:
        entries = self.get(key, dict) or {}
        return [
            (str(name), None if entry is None else Reader(entry, f"{self.at(key)}[{name}]"))
            for name, entry in entries.items()
        ]
