"""Stamps: what was verified in a directory, told by size, time, inode and hash of each file."""

from __future__ import annotations

import json
import os
import stat
from typing import Any

from gpuwright.onnode.storage import replace_file

STAMP = "gpuwright.json"
HASHED_BYTES = 1 << 20
"""Files up to this size are hashed whenever they are looked at: no stamp is believed for them."""


def stamped(path: str, sha256: str) -> dict[str, object]:
    """A stamp's entry for one file: enough to see later, unread, that it is the same."""
    found = os.stat(path)
    return {
        "bytes": found.st_size,
        "sha256": sha256,
        "mtime_ns": found.st_mtime_ns,
        "inode": found.st_ino,
    }


def same_as_stamped(path: str, entry: object) -> bool:
    """True if size, time and inode are those of the stamp's entry."""
    if not isinstance(entry, dict):
        return False
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and (
        (found.st_size, found.st_mtime_ns, found.st_ino)
        == (entry.get("bytes"), entry.get("mtime_ns"), entry.get("inode"))
    )


def vouched(stamp: object) -> dict[str, Any]:
    """The entries of a stamp's files by name; empty for a stamp that is none."""
    files = stamp.get("files") if isinstance(stamp, dict) else None
    return dict(files) if isinstance(files, dict) else {}


def read_stamp(directory: str) -> dict[str, Any]:
    """A directory's stamp; empty where there is none or it does not parse."""
    try:
        with open(os.path.join(directory, STAMP), encoding="utf-8") as file:
            value = json.load(file)
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def write_stamp(directory: str, value: dict[str, Any]) -> None:
    text = json.dumps(value, indent=1, sort_keys=True) + "\n"
    replace_file(os.path.join(directory, STAMP), text.encode())
