"""Put directories, files, owners and modes in place; what is right already is not touched."""

from __future__ import annotations

import base64
import grp
import os
import pwd
import re
import stat
from typing import Any

from gpuwright.onnode.envfile import ENGINES_OWN, KEY_RULE, valid_key, variables, with_key
from gpuwright.onnode.fallback import keep
from gpuwright.onnode.outcome import NodeError
from gpuwright.onnode.room import unwritable
from gpuwright.onnode.storage import replace_file, sync_directory

_KEY_BYTES = 32
_BEGUN = stat.S_ISVTX
"""Marks a tree that is being given back: it keeps no one from reading what serves meanwhile."""


def _mode(row: dict[str, Any], default: str) -> int:
    text = str(row.get("mode") or default)
    if not re.match(r"[0-7]{3,4}\Z", text):
        raise NodeError(f"{row.get('path')}: mode {text!r} is not three or four octal digits")
    return int(text, 8)


def _owner(row: dict[str, Any]) -> tuple[int, int]:
    """Numbers of owner and group; -1, which changes nothing, where the row names none."""
    uid = gid = -1
    try:
        if row.get("owner") is not None:
            uid = pwd.getpwnam(str(row["owner"])).pw_uid
        if row.get("group") is not None:
            gid = grp.getgrnam(str(row["group"])).gr_gid
    except KeyError as unknown:
        raise NodeError(f"{row['path']}: no such user or group: {unknown.args[0]}") from None
    return uid, gid


def _path(row: dict[str, Any]) -> str:
    path = row.get("path")
    if not isinstance(path, str) or not path.startswith("/") or os.path.normpath(path) != path:
        raise NodeError(f"path {path!r} is not absolute and plain")
    return path


def _settle(path: str, mode: int, owner: tuple[int, int]) -> bool:
    """Give an existing file or directory its owner and mode. True if something was changed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as problem:
        raise unwritable(problem, path) from None
    try:
        found = os.fstat(descriptor)
        uid, gid = owner
        moved = (uid, gid) != (-1, -1) and (
            uid not in (-1, found.st_uid) or gid not in (-1, found.st_gid)
        )
        if moved:
            os.fchown(descriptor, uid, gid)
        # A change of owner can clear bits of the mode: the mode comes second.
        changed = moved or stat.S_IMODE(found.st_mode) != mode
        if changed:
            os.fchmod(descriptor, mode)
        return changed
    finally:
        os.close(descriptor)


def _give_back(row: dict[str, Any]) -> None:
    """Of a directory that is to be taken back as a `whole`, and belongs to another, all below:
    nobody but its owner may write to any of it then. NodeError: some of it cannot be given.

    The top is marked until the caller gives it its mode, so what was broken off is gone on with.
    """
    path, owner = _path(row), _owner(row)
    if not row.get("whole") or not os.path.isdir(path) or os.path.islink(path):
        return
    found = os.lstat(path)
    if (found.st_uid, found.st_gid) == owner and not found.st_mode & _BEGUN:
        return
    begun = stat.S_IMODE(found.st_mode) & 0o755 | _BEGUN
    # Marked before it is root's, and again, should who had it have taken the mark off.
    _settle(path, begun, (-1, -1))
    _settle(path, begun, owner)
    places, stuck = [path], []
    while places:
        # Looked into once it is given: who had it puts nothing more in.
        place = places.pop()
        for below in sorted(f"{place}/{name}" for name in os.listdir(place)):
            kind = os.lstat(below).st_mode
            try:
                if stat.S_ISLNK(kind):
                    os.chown(below, *owner, follow_symlinks=False)
                elif stat.S_ISREG(kind) or stat.S_ISDIR(kind):
                    _settle(below, stat.S_IMODE(kind) & 0o755, owner)
            except (OSError, NodeError) as problem:
                stuck.append((below, problem))
            if stat.S_ISDIR(kind):
                places.append(below)
    if stuck:
        below, first = stuck[0]
        why = first.strerror if isinstance(first, OSError) else first
        more = f", and {len(stuck) - 1} more" if stuck[1:] else ""
        raise NodeError(f"{below}: cannot be given back to {row.get('owner')}: {why}{more}")


def _mended(row: dict[str, Any]) -> bool:
    _give_back(row)
    return _settle(_path(row), _mode(row, ""), _owner(row))


def _directory(row: dict[str, Any]) -> bool:
    path, mode, owner = _path(row), _mode(row, "0755"), _owner(row)
    if os.path.islink(path) or (os.path.exists(path) and not os.path.isdir(path)):
        raise NodeError(f"{path}: is there and is no directory", "move it away")
    _give_back(row)
    made = not os.path.isdir(path)
    if made:
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        os.mkdir(path, 0o700)
        sync_directory(os.path.dirname(path))
    return _settle(path, mode, owner) or made


def _current(path: str) -> bytes | None:
    """What a regular file holds; None where there is none. NodeError: it is something else."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise NodeError(f"{path}: is there and cannot be replaced: {problem.strerror}") from None
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise NodeError(f"{path}: is there and is no regular file", "move it away")
        return file.read()


def _content(row: dict[str, Any], current: bytes | None) -> bytes:
    kinds = [key for key in ("content", "generate") if row.get(key) is not None]
    if len(kinds) != 1:
        raise NodeError(f"{row['path']}: needs one of content, generate")
    if kinds == ["content"]:
        return str(row["content"]).encode()
    text = (current or b"").decode("utf-8", "surrogateescape")
    for name in row["generate"]:
        if not re.match(r"[A-Z][A-Z0-9_]*API_KEY\Z", str(name)):
            raise NodeError(f"{row['path']}: nothing known generates {name!r}")
        held = variables(text).get(name, "")
        if held and not valid_key(held):
            raise NodeError(
                f"{name} in {row['path']} {KEY_RULE}",
                "write such a key there, or leave it empty to have one generated",
            )
        if not held:
            text = with_key(text, name, _key_of_the_service(text) or _new_key())
    return text.encode("utf-8", "surrogateescape")


def _key_of_the_service(text: str) -> str | None:
    """A key that clients know from another engine: a new one would shut them out."""
    held = variables(text)
    for name in ENGINES_OWN:
        key = held.get(name, "").split(",")[0]
        if key and valid_key(key) and not key.startswith("-"):
            return key
    return None


def _new_key() -> str:
    """A random key. None begins with `-`: some engines would take it for an option."""
    while True:
        key = base64.urlsafe_b64encode(os.urandom(_KEY_BYTES)).decode().rstrip("=")
        if not key.startswith("-"):
            return key


def _file(row: dict[str, Any]) -> bool:
    path, mode, owner = _path(row), _mode(row, "0644"), _owner(row)
    current = _current(path)
    content = _content(row, current)
    if current == content:
        return _settle(path, mode, owner)
    replace_file(path, content, mode, owner)
    return True


def main(spec: dict[str, Any], carried: str | None) -> dict[str, Any]:
    """Make everything as the spec says: directories first, then files, then modes, in order.

    spec: `keep` [paths of files that are first kept beside, for the gate to put back],
    `directories` [{path, mode, owner, group, whole}], `files` [{path, mode, owner, group and one
    of content, generate (names of variables: each that is absent or empty gets a random key)}],
    `modes` [{path, mode, owner, group, whole}] of what exists. Missing parents of a directory are
    made, root's and 0755; of a `whole` one that belongs to another, all below gets the owner.
    Answers with the paths `changed` and `same`.
    """
    changed: list[str] = []
    same: list[str] = []
    for path in spec.get("keep") or []:
        try:
            keep(_path({"path": path}))
        except OSError as problem:
            raise unwritable(problem, str(path)) from None
    for rows, work in (
        (spec.get("directories") or [], _directory),
        (spec.get("files") or [], _file),
        (spec.get("modes") or [], _mended),
    ):
        for row in rows:
            try:
                (changed if work(row) else same).append(row["path"])
            except OSError as problem:
                raise unwritable(problem, str(row.get("path"))) from None
    return {"ok": True, "changed": changed, "same": same}
