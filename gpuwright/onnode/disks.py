"""Room on the filesystem that a path is, or would be, on."""

from __future__ import annotations

import os
import re

from gpuwright.onnode.tree import Tree


def existing_ancestor(path: str, tree: Tree) -> str:
    """`path` itself or the nearest directory above it that exists, links followed."""
    path = os.path.normpath("/" + path.lstrip("/"))
    while path != "/" and not tree.exists(path):
        path = os.path.dirname(path)
    return os.path.realpath(path) if tree.is_node else path


def disk(path: str, tree: Tree) -> dict[str, object]:
    """Mount point, type, size and what an ordinary user may still write, in bytes."""
    place = existing_ancestor(path, tree)
    mount, kind = _mounted(place, tree.text("/proc/self/mountinfo") or "")
    try:
        room = os.statvfs(tree.at(place))
    except OSError:
        return {"mount": mount, "free_bytes": None, "total_bytes": None, "type": kind}
    return {
        "mount": mount,
        "free_bytes": room.f_bavail * room.f_frsize,
        "total_bytes": room.f_blocks * room.f_frsize,
        "type": kind,
    }


def _mounted(place: str, mountinfo: str) -> tuple[str | None, str | None]:
    """The longest mount point above `place`; of several at one point the last lies on top."""
    best: tuple[str | None, str | None] = (None, None)
    for line in mountinfo.splitlines():
        fields, dash, rest = line.partition(" - ")
        words = fields.split(" ")
        if not dash or len(words) < 5:
            continue
        mount = _unescaped(words[4])
        inside = place == mount or place.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best[0] or ""):
            best = (mount, rest.split(" ")[0] or None)
    return best


def _unescaped(text: str) -> str:
    """mountinfo writes blanks and backslashes as three octal digits."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)
