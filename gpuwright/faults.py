"""Faults that rows of any kind can have: words that dangle or stand twice, what does not parse."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpuwright.versions import check_range, parse_version


def dangling_faults(path: str, words: Iterable[str], known: Iterable[str]) -> Iterator[str]:
    """Words at `path` that are no id of the `known` ones."""
    known = set(known)
    for word in words:
        if word not in known:
            yield f"{path}: no row has the id {word!r}"


def range_faults(path: str, spec: str) -> Iterator[str]:
    """Whether a range of versions parses."""
    try:
        check_range(spec)
    except ValueError as error:
        yield f"{path}: {error}"


def version_faults(path: str, version: str) -> Iterator[str]:
    """Whether a version parses."""
    try:
        parse_version(version)
    except ValueError as error:
        yield f"{path}: {error}"


def twice_faults(what: str, words: Iterable[str]) -> Iterator[str]:
    """Words that stand more than once."""
    seen = set()
    for word in words:
        if word in seen:
            yield f"{what} {word!r}: two rows have it"
        seen.add(word)
