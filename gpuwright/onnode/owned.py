"""What gpuwright keeps on a node: its user, its directories and files, and their stamps."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from typing import Any

from gpuwright.onnode.outcome import clean
from gpuwright.onnode.tree import Tree

USER = "gpuwright"
STAMP = "gpuwright.json"
HASHED_BYTES = 1 << 20
"""Files up to this size are always hashed, larger ones only when everything is verified."""
_MOST_ENTRIES = 2000
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


def variables(text: str) -> dict[str, str]:
    """The assignments of an environment file, without quotes; other lines are passed over."""
    found = {}
    for line in text.splitlines():
        match = re.match(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)\Z", line.strip())
        if match:
            found[match.group(1)] = match.group(2).strip().strip("\"'")
    return found


def valid_key(value: str) -> bool:
    """True if a server may be protected by this key: 8 or more visible ASCII characters."""
    return re.match(r"[\x21-\x7e]{8,}\Z", value) is not None


def api_key(text: str) -> str | None:
    """The value of the first variable whose name ends in API_KEY."""
    for name, content in variables(text).items():
        if name.endswith("API_KEY"):
            return content or None
    return None


class Census:
    """The files of ours, each looked at once."""

    def __init__(self, tree: Tree, hash_everything: bool) -> None:
        self.tree = tree
        self.limit = (1 << 62) if hash_everything else HASHED_BYTES
        self.owners = accounts(tree.text("/etc/passwd") or "")
        self.groups = accounts(tree.text("/etc/group") or "")
        self.files: dict[str, dict[str, object] | None] = {}
        self.stamps: dict[str, object] = {}

    def look(self, path: str) -> dict[str, object] | None:
        """Record one path: what is there, or None. Links are not followed."""
        try:
            found = os.lstat(self.tree.at(path))
        except (OSError, ValueError):
            self.files[path] = None
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

    def stamp(self, path: str) -> None:
        """Record one path and, where a file is there, the JSON value in it."""
        if self.look(path) is not None:
            self.stamps[path] = self.tree.parsed(path)

    def below(self, directory: str) -> None:
        """Record every file below a directory, whatever is half done left out."""
        for name in self.tree.names(directory):
            path = f"{directory}/{name}"
            if name == ".partial" or len(self.files) >= _MOST_ENTRIES or _odd(name):
                continue
            if name == STAMP:
                self.stamp(path)
                continue
            found = self.look(path)
            if found is not None and found["type"] == "dir":
                self.below(path)

    def _sha256(self, path: str) -> str | None:
        digest = hashlib.sha256()
        try:
            descriptor = os.open(self.tree.at(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return None
        with open(descriptor, "rb") as file:
            while True:
                chunk = file.read(1 << 20)
                if not chunk:
                    return digest.hexdigest()
                digest.update(chunk)


def _odd(name: str) -> bool:
    """A name that cannot be shown as it is: never one of ours."""
    return clean(name, 255) != name


def census(tree: Tree, spec: dict[str, Any]) -> dict[str, object]:
    """The document's user, files and stamps.

    Looked at are our directories, the service's files, each engine's stamp and bin, each
    checkpoint's files, each plan record, and `paths` of the spec. The environment file's entry
    has `variables`, the names (never the values) of those that hold a valid key.
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
        secrets = f"{services}/{service}.env"
        entry = found.look(secrets)
        if entry is not None:
            held = variables(tree.text(secrets, 1 << 16) or "")
            entry["variables"] = sorted(name for name in held if valid_key(held[name]))
        found.stamp(f"{plans}/{service}.json")
    for name in tree.names(plans):
        if name.endswith(".json") and not _odd(name):
            found.stamp(f"{plans}/{name}")
    for name in _complete(tree, layout["engines"]):
        engine = f"{layout['engines']}/{name}"
        found.look(engine)
        found.stamp(f"{engine}/{STAMP}")
        found.look(f"{engine}/bin")
        found.below(f"{engine}/bin")
    for name in _complete(tree, layout["model_store"]):
        found.look(f"{layout['model_store']}/{name}")
        found.stamp(f"{layout['model_store']}/{name}/{STAMP}")
        found.below(f"{layout['model_store']}/{name}")
    for path in spec.get("paths") or []:
        found.look(path)
    return {"user": user(tree), "files": found.files, "stamps": found.stamps}


def _complete(tree: Tree, directory: str) -> list[str]:
    return [
        name
        for name in tree.names(directory)
        if not name.startswith(".") and not name.endswith(".partial") and not _odd(name)
    ]
