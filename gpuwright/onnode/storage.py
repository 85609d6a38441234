"""Files put in place so that a crash at any time leaves the old one or the new one, never half."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator

from gpuwright.onnode.outcome import NodeError, say

_HERE, _EXCHANGE = -100, 2  # AT_FDCWD, RENAME_EXCHANGE


def sync_directory(path: str) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _system_call(name: str) -> Callable[..., int] | None:
    """One of the C library's functions; None where it, or ctypes, is missing."""
    try:
        import ctypes

        found = getattr(ctypes.CDLL(None, use_errno=True), name)
    except (ImportError, AttributeError, OSError):
        return None

    def call(*arguments: object) -> int:
        return 0 if found(*arguments) == 0 else ctypes.get_errno()

    return call


def sync_filesystem(path: str) -> None:
    """Make everything on the filesystem of `path` durable, and nothing on others.

    Of tens of thousands of files one call for all is quicker than one for each. OSError: the disk
    did not take it.
    """
    call = _system_call("syncfs")
    if call is None:
        os.sync()
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        problem = call(descriptor)
    finally:
        os.close(descriptor)
    if problem:
        raise OSError(problem, os.strerror(problem), path)


def put_in_place(new: str, path: str, aside: str) -> None:
    """Give `new` the name `path`, and what has it the name `aside`: at once, where the kernel can
    exchange two names, so that no power cut finds neither there."""
    if os.path.lexists(path):
        call = _system_call("renameat2")
        names = (_HERE, os.fsencode(new), _HERE, os.fsencode(path), _EXCHANGE)
        if call is not None and call(*names) == 0:
            os.rename(new, aside)
            sync_directory(os.path.dirname(path))
            return
        os.rename(path, aside)
    os.rename(new, path)
    sync_directory(os.path.dirname(path))


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


def holder(path: str) -> str:
    """The end of a sentence on who holds the lock of that file: a run that is gone may have left
    its compiler or installer at work, which nobody would look for."""
    for pid in sorted(filter(str.isdigit, os.listdir("/proc")), key=int):
        try:
            for name in os.listdir(f"/proc/{pid}/fd"):
                if os.readlink(f"/proc/{pid}/fd/{name}") != path:
                    continue
                with open(f"/proc/{pid}/fdinfo/{name}", encoding="utf-8") as file:
                    holds = "FLOCK" in file.read()
                with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
                    if holds:
                        return f" for process {pid} ({file.read().strip()})"
        except OSError:
            continue  # it has ended
    return ""


@contextlib.contextmanager
def locked(path: str, waiting: str) -> Iterator[int]:
    """Hold the lock file at `path`; while another holds it, say `waiting` every ten seconds.

    The kernel frees the lock when its holders are gone, however they ended. The descriptor is
    given so that child processes can hold the lock too. NodeError: something else is in its place.
    """
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as problem:
        what = "is a symbolic link" if os.path.islink(path) else problem.strerror
        raise NodeError(f"the lock file {path} cannot be had: {what}", "move it away") from None
    try:
        said = 0.0
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() - said >= 10 or not said:
                    said = time.monotonic()
                    say(f"{waiting}{holder(path)}")
                time.sleep(0.2)
        yield descriptor
    finally:
        os.close(descriptor)
