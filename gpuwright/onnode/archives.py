"""Taking files out of archives: one verified member, or a whole tree, and nothing outside."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import zipfile
import zlib
from typing import Any

from gpuwright.onnode.download import Meter, SourceError, written_out
from gpuwright.onnode.outcome import NodeError, cause
from gpuwright.onnode.room import FULL, full, on_disk

_MOST_UNPACKED_BYTES = 8 << 30


def settle(content: Any, file: dict[str, Any], partial: str, verb: str) -> None:
    """Stream `content` to `partial`, not a byte more than the file has.

    SourceError: it is another file. NodeError: the disk does not take it. Nothing is left at
    `partial` then: unlike a download, what was copied or unpacked is soon made again.
    """
    try:
        found = _poured(content, file, partial, Meter(verb, file["path"], file["bytes"]))
        if found != (file["bytes"], file["sha256"]):
            raise SourceError(f"it does not hold the file that is needed ({file['path']})")
    except BaseException:
        clear(partial)
        raise


def _poured(content: Any, file: dict[str, Any], partial: str, meter: Meter) -> tuple[int, str]:
    """Size and hash of what came; more than the file has counts, and is not written."""
    digest, done = hashlib.sha256(), 0
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with on_disk(partial):
        descriptor = os.open(partial, flags, 0o600)
    with open(descriptor, "wb", buffering=0) as target:
        while done <= file["bytes"]:
            chunk = content.read(1 << 20)
            done += len(chunk)
            if not chunk or done > file["bytes"]:
                break
            written_out(target, chunk, partial)
            digest.update(chunk)
            meter.at(done)
        with on_disk(partial):
            os.fsync(target.fileno())
    return done, digest.hexdigest()


def extract(archive: str, name: str, member: str, file: dict[str, Any], partial: str) -> None:
    """Take one member out of a verified wheel or source archive."""
    try:
        if name.endswith((".whl", ".zip")):
            with zipfile.ZipFile(archive) as opened, opened.open(member) as content:
                settle(content, file, partial, "unpack")
            return
        with tarfile.open(archive) as opened_tar:
            found = opened_tar.extractfile(member)
            if found is None:
                raise KeyError(member)
            with found as content:
                settle(content, file, partial, "unpack")
    except KeyError:
        raise SourceError(f"{name} has no member {member}") from None
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, RuntimeError) as problem:
        raise SourceError(f"{name} cannot be unpacked: {problem}") from None


def clear(path: str) -> None:
    """Remove what an earlier run left under a name of ours."""
    # Not looked at first: what another run puts there meanwhile would be taken for the other kind.
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except IsADirectoryError:
        shutil.rmtree(path, ignore_errors=True)


def unpack(archive: str, directory: str) -> None:
    """Unpack a whole tar archive into an empty directory.

    NodeError: a member would lie outside, or is no file, directory or link to the inside. Links
    are made last, so that nothing is written through one.
    """
    links: list[tuple[str, str]] = []
    total = 0
    try:
        with tarfile.open(archive, "r:*") as opened:
            for member in opened:
                path = inside(directory, member.name, member.name)
                total += member.size
                if total > _MOST_UNPACKED_BYTES:
                    raise NodeError(f"{archive} unpacks to more than 8 GiB: refused")
                if member.isdir():
                    os.makedirs(path, mode=0o755, exist_ok=True)
                elif member.isreg():
                    _unpack_file(opened, member, path)
                elif member.issym():
                    target = os.path.join(os.path.dirname(member.name), member.linkname)
                    inside(directory, target, member.name)
                    if os.path.isabs(member.linkname):
                        raise NodeError(f"{member.name} in the archive leads out of it: refused")
                    links.append((member.linkname, path))
                else:
                    raise NodeError(f"{member.name} in the archive is no file: refused")
        for target, path in links:
            os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
            os.symlink(target, path)
    except OSError as problem:
        if problem.errno in FULL:
            raise full(directory) from None
        raise NodeError(f"{archive} cannot be unpacked: {cause(problem)}") from None
    except (tarfile.TarError, zlib.error, EOFError) as problem:
        raise NodeError(f"{archive} cannot be unpacked: {problem}") from None


def inside(directory: str, name: str, shown: str) -> str:
    """Where a member lies. NodeError: outside of `directory`."""
    path = os.path.normpath(os.path.join(directory, name))
    if os.path.isabs(name) or not (path + "/").startswith(directory.rstrip("/") + "/"):
        raise NodeError(f"{shown} in the archive leads out of it: refused")
    return path


def _unpack_file(opened: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
    content = opened.extractfile(member)
    if content is None:
        raise NodeError(f"{member.name} in the archive is no file: refused")
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    mode = 0o755 if member.mode & 0o100 else 0o644
    with content, open(os.open(path, flags, mode), "wb") as file:
        shutil.copyfileobj(content, file, 1 << 20)
    # Time stamps tell ninja and ccache nothing here, and one in the future would confuse both.
