"""Files put in place so that a crash at any time leaves the old one or the new one, never half."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator

from gpuwright.onnode.outcome import NodeError, say


def sync_directory(path: str) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_filesystem(path: str) -> None:
    """Make everything on the filesystem of `path` durable, and nothing on others.

    Of tens of thousands of files one call for all is quicker than one for each. OSError: the disk
    did not take it.
    """
    try:
        import ctypes

        call = ctypes.CDLL(None, use_errno=True).syncfs
    except (ImportError, AttributeError, OSError):
        os.sync()
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if call(descriptor) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), path)
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
                    say(waiting)
                time.sleep(0.2)
        yield descriptor
    finally:
        os.close(descriptor)
