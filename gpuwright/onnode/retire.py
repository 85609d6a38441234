"""Which engines of old are removed: none that anything uses, and of the rest all but the newest."""

from __future__ import annotations

import os
import re

from gpuwright.onnode.archives import clear
from gpuwright.onnode.outcome import say

KEPT = 2


def used(engines: str, places: list[str]) -> set[str]:
    """Names below `engines` that a running process, or a file in `places`, speaks of."""
    pattern = re.compile(re.escape(engines.rstrip("/")).encode() + rb"/([A-Za-z0-9][\w.+-]*)")
    found: set[str] = set()

    def read(path: str) -> None:
        try:
            with open(path, "rb") as file:
                found.update(name.decode() for name in pattern.findall(file.read()))
        except OSError:
            return  # it has ended, or is a directory

    for place in places:
        for name in _names(place):
            read(f"{place}/{name}")
    for pid in _names("/proc"):
        if pid.isdigit():
            read(f"/proc/{pid}/cmdline")
            read(f"/proc/{pid}/maps")
    return found


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def retire(engine_dir: str, stamp_name: str, places: list[str], kept: int = KEPT) -> list[str]:
    """Remove old directories of the same engine as `engine_dir`; their names.

    Only complete ones, which have a stamp, count: what is half made is another run's.
    """
    engines, own = os.path.split(engine_dir.rstrip("/"))
    family = re.match(r"(.+?)-\d", own)
    prefix = (family.group(1) if family else own) + "-"
    taken = used(engines, places)
    old = []
    for name in _names(engines):
        stamp = f"{engines}/{name}/{stamp_name}"
        if name != own and name not in taken and re.match(re.escape(prefix) + r"b?\d", name):
            try:
                old.append((os.stat(stamp).st_mtime_ns, name))
            except OSError:
                continue
    removed = [name for _, name in sorted(old, reverse=True)[kept:]]
    for name in removed:
        say(f"removing {name}: {kept} newer ones are kept, and nothing uses it")
        # Renamed first: what is left of a removal that is cut short is no engine.
        gone = f"{engines}/{name}.partial.old"
        clear(gone)
        os.rename(f"{engines}/{name}", gone)
        clear(gone)
    return removed
