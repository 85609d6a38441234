"""Filesystems: what is mounted how, and the room where a path is, or would be."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

from gpuwright.onnode.outcome import clean
from gpuwright.onnode.tree import Tree

REMOTE = re.compile(r"nfs\d?|cifs|smb3?|9p|ceph|glusterfs|lustre|beegfs|afs|fuse(\..*)?")
"""Types whose server may be away: asking them can hang."""
_PSEUDO = frozenset(
    ("proc", "sysfs", "devtmpfs", "devpts", "cgroup", "cgroup2", "securityfs", "debugfs", "tracefs")
) | {
    *("pstore", "bpf", "mqueue", "hugetlbfs", "configfs", "fusectl", "autofs", "binfmt_misc"),
    *("efivarfs", "rpc_pipefs", "nsfs", "ramfs", "squashfs", "selinuxfs", "fuse.lxcfs", "nfsd"),
    *("fuse.gvfsd-fuse", "fuse.portal", "fuse.snapfuse"),
}
_UNSHOWN = re.compile(r"/(?:proc|sys|run|snap|var/lib/(?:docker|containers|kubelet|lxcfs))(?:/|\Z)")
_MOST = 40
_NOTHING: dict[str, Any] = dict.fromkeys(
    ("mount", "free_bytes", "total_bytes", "type", "read_only", "noexec")
)


def existing_ancestor(path: str, tree: Tree) -> str:
    """`path` itself or the nearest directory above it that exists, links followed."""
    path = os.path.normpath("/" + path.lstrip("/"))
    while path != "/" and not tree.exists(path):
        path = os.path.dirname(path)
    return os.path.realpath(path) if tree.is_node else path


def disk(path: str, tree: Tree) -> dict[str, Any]:
    """Mount point, type, size, what an ordinary user may still write, in bytes, and its limits."""
    place = existing_ancestor(path, tree)
    found = {**_NOTHING, **_mounted(place, tree.text("/proc/self/mountinfo") or "")}
    found.pop("device", None)
    return {**found, **_room(tree, place)}


def unknown_disk() -> dict[str, Any]:
    return dict(_NOTHING)


def mounted(tree: Tree) -> list[dict[str, Any]]:
    """Each real filesystem and where it is mounted: the first place of those that are alike."""
    on_top = {row["mount"]: row for row in mounts(tree.text("/proc/self/mountinfo") or "")}
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for place, row in on_top.items():
        hidden = row["type"] in _PSEUDO or _UNSHOWN.match(place)
        if not hidden and (not re.match(r"/dev(?!/shm\Z)(?:/|\Z)", place)):
            alike = (row.pop("device"), row["read_only"], row["noexec"])
            found.setdefault(alike, row)
    rows = sorted(found.values(), key=lambda row: str(row["mount"]))[:_MOST]
    return [{**row, "mount": clean(row["mount"]), "type": clean(row["type"], 60)} for row in rows]


def rooms(tree: Tree, rows: list[dict[str, Any]]) -> list[dict[str, int | None]]:
    """Size and free bytes of each; to be run in a child, since a filesystem may hang."""
    return [_room(tree, row["mount"]) for row in rows]


def _room(tree: Tree, place: str) -> dict[str, int | None]:
    try:
        room = os.statvfs(tree.at(place))
    except (OSError, ValueError):
        return {"free_bytes": None, "total_bytes": None}
    return {
        "free_bytes": room.f_bavail * room.f_frsize,
        "total_bytes": room.f_blocks * room.f_frsize,
    }


def mounts(mountinfo: str) -> Iterator[dict[str, Any]]:
    """The rows of a mount table, in its order; broken ones are passed over."""
    for line in mountinfo.splitlines():
        fields, dash, rest = line.partition(" - ")
        words, more = fields.split(" "), rest.split(" ")
        if dash and len(words) > 5 and words[4].startswith("/"):
            options = words[5].split(",")
            yield {
                "mount": _unescaped(words[4]),
                "type": more[0] or None,
                "read_only": "ro" in options or "ro" in more[-1].split(","),
                "noexec": "noexec" in options,
                "device": words[2],
            }


def _mounted(place: str, mountinfo: str) -> dict[str, Any]:
    """The row of the longest mount point above `place`; of several at one point the last lies on
    top."""
    best: dict[str, Any] = {}
    for row in mounts(mountinfo):
        mount = row["mount"]
        inside = place == mount or place.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best.get("mount", "")):
            best = row
    return best


def _unescaped(text: str) -> str:
    """mountinfo writes blanks and backslashes as three octal digits."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)
