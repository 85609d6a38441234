"""Files put in place so that a crash at any time leaves the old one or the new one, never half."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import stat
import time
from collections.abc import Callable, Iterator
from typing import Any

from gpuwright.onnode.outcome import NodeError, say

STAMP = "gpuwright.json"
GIB = 1 << 30


def sync_directory(path: str) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(
    path: str, data: bytes, mode: int = 0o644, owner: tuple[int, int] | None = None
) -> None:
    """Put `data` at `path` atomically and durably.

    The content is never readable by more than `mode` allows, not even while it is written: the
    new file is private until owner and mode are set. A leftover of a killed run is replaced.
    """
    directory, name = os.path.split(path)
    beside = os.path.join(directory, f".{name}.gpuwright-new")
    holder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(holder, fcntl.LOCK_EX)  # two writers never share the name beside
        with contextlib.suppress(FileNotFoundError):
            os.unlink(beside)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with open(os.open(beside, flags, 0o600), "wb") as file:
                file.write(data)
                file.flush()
                if owner is not None:
                    os.fchown(file.fileno(), *owner)
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
            os.replace(beside, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(beside)
            raise
        os.fsync(holder)
    finally:
        os.close(holder)


def sha256_of(path: str, seen: Callable[[int], None] | None = None) -> str:
    """The hash of a file; `seen` is told the bytes read so far."""
    digest = hashlib.sha256()
    total = 0
    with open(path, "rb", buffering=0) as file:
        while True:
            chunk = file.read(1 << 20)
            if not chunk:
                return digest.hexdigest()
            digest.update(chunk)
            total += len(chunk)
            if seen is not None:
                seen(total)


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


def nearest(path: str) -> str:
    """`path` or the nearest directory above it that exists."""
    path = os.path.abspath(path)
    while path != "/" and not os.path.exists(path):
        path = os.path.dirname(path)
    return path


def mount_of(path: str) -> str:
    """The mount point of the filesystem that `path` is on."""
    place = os.path.realpath(nearest(path))
    device = os.stat(place).st_dev
    while place != "/" and os.stat(os.path.dirname(place)).st_dev == device:
        place = os.path.dirname(place)
    return place


def require_room(directory: str, needed_bytes: int, purpose: str) -> None:
    """NodeError if the filesystem of `directory` has less room than needed, in one sentence."""
    room = os.statvfs(nearest(directory))
    found = room.f_bavail * room.f_frsize
    if needed_bytes > found:
        raise NodeError(
            f"{purpose} needs {needed_bytes / GIB:.1f} GiB on the filesystem {mount_of(directory)}"
            f", found {found / GIB:.1f} GiB free",
            f"free {(needed_bytes - found) / GIB:.1f} GiB there, or move that directory",
        )


@contextlib.contextmanager
def locked(path: str, waiting: str) -> Iterator[int]:
    """Hold the lock file at `path`; while another holds it, say `waiting` every ten seconds.

    The kernel frees the lock when its holders are gone, however they ended. The descriptor is
    given so that child processes can hold the lock too.
    """
    os.makedirs(os.path.dirname(path), exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        said = 0.0
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() - said >= 10 or not said:
                    said = time.monotonic()
                    say(waiting)
                time.sleep(0.2)
        yield descriptor
    finally:
        os.close(descriptor)
