"""Hold a command's arguments to the options that an engine's release takes, offline or on a node.

An engine that does not know one flag does not start, and says so minutes later in a log.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence

from gpuwright.records import Flag

_NUMBER = re.compile(r"-\d")


def lint(arguments: Sequence[str], flags: Mapping[str, Flag]) -> list[str]:
    """What is wrong with `arguments`, in their order; empty where the parser takes them.

    `flags` are a record's, or what the parser of an installed engine says of itself. Words before
    the first flag are the command's own: a program, a model. A shortened name counts as unknown:
    what it means changes when a release adds a longer one.
    """
    names = {name: flag for first, flag in flags.items() for name in (first, *flag.also)}
    return [fault for name, values in _options(arguments) for fault in _faults(name, values, names)]


def _options(arguments: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Each flag with the words that follow it; `--x=y` is one of both."""
    name, values = "", list[str]()
    for word in arguments:
        if not word.startswith("-") or _NUMBER.match(word):
            values.append(word)
            continue
        if name:
            yield name, values
        name, equals, value = word.partition("=")
        values = [value] if equals else []
    if name:
        yield name, values


def _faults(name: str, values: list[str], names: Mapping[str, Flag]) -> Iterator[str]:
    flag = names.get(name)
    if flag is None:
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.8)
        yield f"{name}: no such flag" + (f"; nearest: {near[0]}" if near else "")
        return
    most = {"0": 0, "1": 1, "?": 1}.get(flag.takes, len(values))
    least = 1 if flag.takes == "1" else 0
    if not least <= len(values) <= most:
        yield f"{name}: takes {flag.takes} values, found {len(values)}"
    for value in values if flag.values else ():
        if value not in flag.values:
            near = difflib.get_close_matches(value, flag.values, n=1)
            legal = f"nearest: {near[0]}" if near else f"legal: {', '.join(flag.values)}"
            yield f"{name}: {value!r} is not legal; {legal}"
