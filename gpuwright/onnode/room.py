"""Room on filesystems: asked for before work begins, and what is said when it ran out."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

from gpuwright.onnode.outcome import NodeError

GIB = 1 << 30
FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors that mean no room: the disk's or the quota's."""


def nearest(path: str) -> str:
    """`path` or the nearest name above it that exists."""
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


def require_together(needs: list[tuple[str, int]], purpose: str, reserve: int = 0) -> None:
    """The same of several directories, each with its bytes: those of one filesystem together.
    `reserve` bytes more are to stay free of each filesystem."""
    together: dict[int, tuple[str, int]] = {}
    for directory, needed_bytes in needs:
        device = os.stat(nearest(directory)).st_dev
        first, so_far = together.get(device, (directory, 0))
        together[device] = (first, so_far + needed_bytes)
    for directory, needed_bytes in together.values():
        require_room(directory, needed_bytes + reserve, purpose)


def full(path: str, **more: object) -> NodeError:
    """What is said when the filesystem of `path` has no room for it."""
    where = mount_of(path)
    return NodeError(
        f"{path}: no space is left on the filesystem {where}",
        f"make room on {where}, then run again",
        **more,
    )


def unwritable(problem: OSError, path: str) -> NodeError:
    """A disk's refusal of what belongs at `path`, as a sentence."""
    if problem.errno in FULL:
        return full(path)
    return NodeError(f"{path}: {problem.strerror or problem}", "see to the disk, then run again")


@contextlib.contextmanager
def on_disk(path: str) -> Iterator[None]:
    """Work on files below `path`: an OSError in it becomes a NodeError that names the place."""
    try:
        yield
    except OSError as problem:
        named = problem.filename2 or problem.filename
        raise unwritable(problem, named if isinstance(named, str) else path) from None
