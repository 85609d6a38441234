"""What the names of a checkpoint's files must be, so that none that serves has to be guessed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

_PART = re.compile(r"(.+-)\d{5}(-of-(\d{5})\.gguf)", re.ASCII)
"""One of several parts of a GGUF file: engines are given the first, and find the others by it."""


def misnamed(form: str, paths: list[str]) -> Iterator[str]:
    """Faults of `paths` in a checkpoint of the format `form`."""
    paths = sorted(paths)
    for path, following in pairwise(paths):
        if path == following:
            yield f".files: {path!r} stands twice"
    if form != "gguf":
        return
    found = [path for path in paths if path.endswith(".gguf")]
    if not found or found != _whole(found[0]):
        names = ", ".join(map(repr, found)) or "none"
        yield f".files: a GGUF checkpoint is one file or all its parts, found {names}"


def _whole(path: str) -> list[str]:
    """The GGUF file at `path`, or all parts of the one that it is a part of."""
    part = _PART.fullmatch(path)
    if part is None:
        return [path]
    return [f"{part[1]}{number:05}{part[2]}" for number in range(1, int(part[3]) + 1)]
