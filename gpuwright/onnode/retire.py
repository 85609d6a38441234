"""What is removed of what stands on a node: nothing in use, and of the rest not the newest."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import time
from typing import Any

from gpuwright.onnode.archives import clear
from gpuwright.onnode.outcome import say

_LEFT_SECONDS = 86400
_FAMILY = re.compile(r"(.+?)-b?\d")
_HALF_MADE = re.compile(r"\.partial(\.old)?\Z")


def used(directory: str, places: list[str]) -> set[str]:
    """Names below `directory` that a running process, or a file of `places` (patterns), names."""
    pattern = re.compile(re.escape(directory).encode() + rb"/([A-Za-z0-9][\w.+-]*)")
    found: set[str] = set()

    def read(path: str) -> None:
        try:
            with open(path, "rb") as file:
                found.update(name.decode() for name in pattern.findall(file.read()))
        except OSError:
            return  # it has ended, or is a directory

    for place in places:
        for path in glob.glob(place):
            read(path)
    for pid in _names("/proc"):
        if pid.isdigit():
            read(f"/proc/{pid}/cmdline")
            read(f"/proc/{pid}/maps")
    # uv names a Python by a link that leads to the one that is meant.
    return found | {os.path.basename(os.path.realpath(f"{directory}/{name}")) for name in found}


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def old_ones(aged: list[tuple[int, str]], keep: int) -> list[str]:
    """Of names, each with the time of its making, all but the newest `keep` of each engine, toolkit
    or whatever stands before a version. Names without a version are nothing that we made."""
    families: dict[str, list[tuple[int, str]]] = {}
    for made, name in aged:
        family = _FAMILY.match(name)
        if family:
            families.setdefault(family.group(1), []).append((made, name))
    return [name for each in families.values() for _, name in sorted(each, reverse=True)[keep:]]


def retire(spec: dict[str, Any], own: str) -> list[str]:
    """Remove what is old; the paths.

    spec: `rooms`, each with directory, complete (a file that only a whole one has; "": any
    directory is), used_by (patterns of files that name what is in use), engines (where one of the
    same name and a key stands it is in use, or null) and keep; and `leftovers`, patterns of files
    that a run which ended early has left. `own` is the engine that was just made.
    """
    removed = []
    for room in spec["rooms"]:
        directory = str(room["directory"]).rstrip("/")
        taken = used(directory, [str(place) for place in room["used_by"]])
        taken.add(os.path.basename(own.rstrip("/")))
        if room["engines"]:
            taken.update(name.rpartition("-")[0] for name in _names(str(room["engines"])))
        aged = []
        for name in _names(directory):
            path = f"{directory}/{name}"
            if name in taken or _HALF_MADE.search(name) or os.path.islink(path):
                continue
            try:
                aged.append((os.stat(f"{path}/{room['complete']}").st_mtime_ns, name))
            except OSError:
                continue  # half made by another run, or no directory
        for name in old_ones(aged, int(room["keep"])):
            with contextlib.suppress(FileNotFoundError):  # another run was quicker
                _remove(f"{directory}/{name}")
                removed.append(f"{directory}/{name}")
    for place in spec["leftovers"]:
        for path in glob.glob(str(place)):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - os.lstat(path).st_mtime > _LEFT_SECONDS:
                    clear(path)
                    removed.append(path)
    return removed


def _remove(path: str) -> None:
    # Renamed first: what is left of a removal that is cut short is nothing whole.
    gone = f"{path}.partial.old"
    clear(gone)
    os.rename(path, gone)
    say(f"removing {path}: nothing uses it")
    clear(gone)
