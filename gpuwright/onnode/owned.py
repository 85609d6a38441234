"""What gpuwright keeps on a node: its user, its directories and files, and their stamps.

What cannot be looked at is never taken for absent: the look fails as a whole then.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
from typing import Any

from gpuwright.onnode.contents import difference, unlisted
from gpuwright.onnode.envfile import is_key, valid_key, variables
from gpuwright.onnode.outcome import NodeError, clean
from gpuwright.onnode.stamps import HASHED_BYTES, STAMP, vouched
from gpuwright.onnode.tree import Tree

USER = "gpuwright"
_MOST_NAMES = 1000
"""In one stamp or one bin directory; ours have a few dozen."""
_KINDS = ((stat.S_ISREG, "file"), (stat.S_ISDIR, "dir"), (stat.S_ISLNK, "link"))


def accounts(text: str) -> dict[int, str]:
    """Number to name, from the text of /etc/passwd or /etc/group; broken lines are passed over."""
    found: dict[int, str] = {}
    for line in text.splitlines():
        words = line.split(":")
        if len(words) > 3 and words[0] and words[2].isdigit():
            found.setdefault(int(words[2]), clean(words[0], 100))
    return found


def user(tree: Tree, name: str = USER) -> dict[str, object] | None:
    for line in (tree.text("/etc/passwd") or "").splitlines():
        words = line.split(":")
        if len(words) == 7 and words[0] == name and words[2].isdigit():
            return {
                "name": name,
                "uid": int(words[2]),
                "shell": clean(words[6], 200),
                "home": clean(words[5], 200),
            }
    return None


class Census:
    """The files of ours, each looked at once. OSError, NodeError: one cannot be looked at."""

    def __init__(self, tree: Tree, hash_everything: bool) -> None:
        self.tree = tree
        self.thorough = hash_everything
        self.limit = (1 << 62) if hash_everything else HASHED_BYTES
        self.owners = accounts(_needed(tree, "/etc/passwd"))
        self.groups = accounts(_needed(tree, "/etc/group"))
        self.files: dict[str, dict[str, object] | None] = {}
        self.stamps: dict[str, object] = {}
        self.partials: dict[str, int] = {}
        self.altered: dict[str, str] = {}

    def look(self, path: str) -> dict[str, Any] | None:
        """Record one path: what is there, or None. Links are not followed."""
        self.files[path] = None
        try:
            found = os.lstat(self.tree.at(path))
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None
        kind = next((word for test, word in _KINDS if test(found.st_mode)), "other")
        hashed = kind == "file" and found.st_size <= self.limit
        self.files[path] = {
            "type": kind,
            "mode": f"{stat.S_IMODE(found.st_mode):04o}",
            "owner": self.owners.get(found.st_uid, str(found.st_uid)),
            "group": self.groups.get(found.st_gid, str(found.st_gid)),
            "size": found.st_size,
            "mtime_ns": found.st_mtime_ns,
            "inode": found.st_ino,
            "sha256": self._sha256(path) if hashed else None,
        }
        return self.files[path]

    def stamp(self, path: str) -> object:
        """Record one path and, where a file is there, the JSON value in it, which is given too."""
        if self.look(path) is None:
            return None
        self.stamps[path] = self.tree.parsed(path)
        return self.stamps[path]

    def secrets(self, path: str) -> None:
        """Record an environment file, with the names of its keys: those that are usable and not."""
        entry = self.look(path)
        if entry is not None and entry["type"] == "file":
            held = variables(_needed(self.tree, path))
            keys = {name: valid_key(held[name]) for name in held if is_key(name) and held[name]}
            entry["variables"] = sorted(name for name, valid in keys.items() if valid)
            entry["unusable"] = sorted(
                clean(name, 100) for name, valid in keys.items() if not valid
            )

    def engine(self, path: str) -> None:
        """Record an engine that has our stamp; another's directory is passed over."""
        if self._stamped(path):
            self.look(f"{path}/bin")
            for name in _names(self.tree, f"{path}/bin")[:_MOST_NAMES]:
                self.look(f"{path}/bin/{name}")
            self._compare(path, self.stamps[f"{path}/{STAMP}"])

    def _compare(self, path: str, stamp: object) -> None:
        """Record what is otherwise than it was installed, of what `files` do not show."""
        if not isinstance(stamp, dict):
            return
        found = unlisted(self.tree.at(path), stamp, self.thorough)
        python = stamp.get("python")
        if found is None and isinstance(python, str):
            found = difference(self.tree.at(python), self.thorough)
        if found is not None:
            self.altered[path] = clean(found, 400)

    def checkpoint(self, path: str) -> None:
        """Record a checkpoint that has our stamp, and what an interrupted download left in it."""
        staging = f"{path}/.partial"
        if self._stamped(path) or self._begun(staging):
            self.partial(staging)

    def _begun(self, staging: str) -> bool:
        """True if a first download was interrupted here: there is no stamp yet."""
        with contextlib.suppress(PermissionError):
            return any(re.match(r"[0-9a-f]{64}\b", name) for name in _names(self.tree, staging))
        return False

    def _stamped(self, path: str) -> bool:
        """True after recording a directory with our stamp and the files the stamp vouches for."""
        try:
            os.lstat(self.tree.at(f"{path}/{STAMP}"))
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return False  # what root may not enter, on a network's filesystem, is not ours
        self.look(path)
        names = vouched(self.stamp(f"{path}/{STAMP}"))
        for name in sorted(names)[:_MOST_NAMES]:
            if _plain(name):
                self.look(f"{path}/{name}")
        return True

    def partial(self, path: str) -> None:
        """Record how much an interrupted run left below a name of ours, if anything."""
        total = 0
        for place, _, names in os.walk(self.tree.at(path)):
            for name in names:
                with contextlib.suppress(FileNotFoundError):  # that run may be at work still
                    total += os.lstat(os.path.join(place, name)).st_blocks * 512
        if total:
            self.partials[path] = total

    def _sha256(self, path: str) -> str | None:
        digest = hashlib.sha256()
        try:
            descriptor = os.open(self.tree.at(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except (FileNotFoundError, PermissionError):
            return None
        with open(descriptor, "rb") as file:
            while True:
                chunk = file.read(1 << 20)
                if not chunk:
                    return digest.hexdigest()
                digest.update(chunk)


def _needed(tree: Tree, path: str) -> str:
    """A file without which nothing true can be said."""
    text = tree.text(path)
    if text is None:
        raise NodeError(f"{path} cannot be read")
    return text


def _plain(name: str) -> bool:
    """A path below a directory that can be shown as it is: a stamp's text may be anybody's."""
    inside = os.path.normpath(name) == name and not name.startswith("/")
    return inside and name.split("/")[0] not in ("", ".", "..", STAMP) and clean(name) == name


def _names(tree: Tree, path: str, directories: bool = False) -> list[str]:
    """Names in a directory, sorted, or those of directories alone; empty where there is none."""
    try:
        with os.scandir(tree.at(path)) as entries:
            return sorted(
                entry.name
                for entry in entries
                if clean(entry.name) == entry.name and (not directories or _is_directory(entry))
            )
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False  # a link in a circle


def census(tree: Tree, spec: dict[str, Any]) -> dict[str, object]:
    """The document's files, stamps, partials and altered. OSError, NodeError: one of them cannot be
    looked at.

    Looked at are our directories, the service's files, each engine and checkpoint with our stamp,
    the stamp of each toolkit, each plan record, and `paths` of the spec.
    """
    layout = spec["layout"]
    service = spec.get("service")
    found = Census(tree, spec.get("verify") == "full")
    plans, services = f"{layout['state']}/plans", f"{layout['config']}/services"
    for key in ("model_store", "engines", "state", "cache", "config"):
        found.look(layout[key])
    found.look(os.path.dirname(layout["engines"]))
    for path in (plans, services, f"{layout['cache']}/sources", f"{layout['cache']}/ccache"):
        found.look(path)
    if service:
        found.look(f"{layout['units']}/gpuwright-{service}.service")
        found.secrets(f"{services}/{service}.env")
        found.stamp(f"{plans}/{service}.json")
    for name in _names(tree, plans):
        if name.endswith(".json"):
            found.stamp(f"{plans}/{name}")
    for name in _names(tree, layout["engines"], directories=True):
        if re.search(r"\.partial(\.old)?\Z", name):
            found.partial(f"{layout['engines']}/{name}")
        else:
            found.engine(f"{layout['engines']}/{name}")
    toolkits = f"{os.path.dirname(layout['engines'])}/toolkits"
    for name in _names(tree, toolkits, directories=True):
        if name.endswith(".partial"):
            found.partial(f"{toolkits}/{name}")
        elif _names(tree, f"{toolkits}/{name}"):
            found.stamp(f"{toolkits}/{name}/{STAMP}")
    for name in _names(tree, layout["model_store"], directories=True):
        found.checkpoint(f"{layout['model_store']}/{name}")
    for path in (f"{layout['cache']}/sources/.partial", f"{layout['cache']}/build"):
        found.partial(path)
    for path in spec.get("paths") or []:
        found.look(path)
    return {
        "files": found.files,
        "stamps": found.stamps,
        "partials": found.partials,
        "altered": found.altered,
    }
