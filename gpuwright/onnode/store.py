"""One directory of verified files: what stands in it, what an interrupted run left, its stamp."""

from __future__ import annotations

import os
import re
import stat
from typing import Any

from gpuwright.onnode.archives import clear
from gpuwright.onnode.download import Meter
from gpuwright.onnode.outcome import NodeError
from gpuwright.onnode.room import nearest, require_together
from gpuwright.onnode.stamps import (
    HASHED_BYTES,
    STAMP,
    read_stamp,
    same_as_stamped,
    stamped,
    vouched,
    write_stamp,
)
from gpuwright.onnode.storage import sha256_of, sync_directory

_STAGING = ".partial"


def _checked(files: Any) -> list[dict[str, Any]]:
    """The rows of the spec. NodeError: a path that leads out or is there twice, a hash or size that
    is none."""
    seen: set[str] = set()
    for file in files:
        path = file.get("path")
        plain = isinstance(path, str) and os.path.normpath(path) == path
        if not plain or path.startswith(("/", "..", _STAGING)) or path in (".", STAMP):
            raise NodeError(f"file path {path!r} is not a plain path below the directory")
        if not re.match(r"[0-9a-f]{64}\Z", str(file.get("sha256"))):
            raise NodeError(f"{path}: no sha256 is known, and without one nothing is fetched")
        if not isinstance(file.get("bytes"), int) or file["bytes"] < 0:
            raise NodeError(f"{path}: no size in bytes is known")
        if path in seen:
            raise NodeError(f"file path {path!r} stands twice")
        seen.add(path)
    return list(files)


class Store:
    """One directory of verified files."""

    def __init__(self, spec: dict[str, Any], trusting: bool) -> None:
        self.directory = str(spec["directory"])
        if not self.directory.startswith("/"):
            raise NodeError(f"directory {self.directory!r} is not absolute")
        self.files = _checked(spec["files"])
        self.staging = f"{self.directory}/{_STAGING}"
        self.lock = str(spec["lock"])
        self.trusting = trusting
        self.entries = vouched(read_stamp(self.directory))
        self.missing: list[dict[str, Any]] = []
        """Files that must be fetched, once that is known."""

    def path(self, file: dict[str, Any]) -> str:
        return f"{self.directory}/{file['path']}"

    def partial(self, file: dict[str, Any]) -> str:
        """Named by content: what one source began, another may finish. Each file has its own, also
        where two have the same content."""
        alike = [each["path"] for each in self.files if each["sha256"] == file["sha256"]]
        number = alike.index(file["path"])
        return f"{self.staging}/{file['sha256']}" + (f".{number}" if number else "")

    def vouched_for(self, file: dict[str, Any]) -> bool:
        """True if the stamp says of the file as it lies there that it is the right one."""
        entry = self.entries.get(file["path"], {})
        return same_as_stamped(self.path(file), entry) and (
            (entry.get("bytes"), entry.get("sha256")) == (file["bytes"], file["sha256"])
        )

    def stands(self, file: dict[str, Any], hashing: bool) -> str | None:
        """ "kept" or "verified" if the right file is in place; None if it must be fetched.

        A stamp is believed for large files only, and only where the store is `trusting`. Without
        `hashing` a large file of the right size is taken for the right one.
        """
        path = self.path(file)
        believed = self.trusting and self.vouched_for(file)
        small = file["bytes"] <= HASHED_BYTES
        if believed and not small:
            return "kept"
        try:
            found = os.lstat(path)
        except OSError:
            return None
        if not stat.S_ISREG(found.st_mode) or found.st_size != file["bytes"]:
            return None
        if hashing or small:
            meter = Meter("check", file["path"], file["bytes"])
            if sha256_of(path, meter.at) != file["sha256"]:
                return None
        return "kept" if believed else "verified"

    def check_places(self) -> None:
        """NodeError: something that is not ours to remove is where a file or the stamp belongs."""
        for name in (STAMP, *(file["path"] for file in self.files)):
            path = f"{self.directory}/{name}"
            if os.path.isdir(path) and not os.path.islink(path):
                raise NodeError(f"{path} is a directory", "move it away")
            above = nearest(os.path.dirname(path))
            if not os.path.isdir(above):
                raise NodeError(f"{above} is no directory", "move it away")

    @property
    def needed_bytes(self) -> int:
        """What is still to come, and the largest package that a file is unpacked from."""
        needed = largest_archive = 0
        for file in self.missing:
            needed += max(0, file["bytes"] - _size(self.partial(file)))
            for source in file["sources"]:
                if source.get("member"):
                    held = _size(self.partial(file) + ".archive")
                    archive = int(source.get("bytes") or 0) - held
                    largest_archive = max(largest_archive, archive)
        return needed + largest_archive

    def make(self) -> None:
        """Make the staging directory, or clear it of all that this run cannot take up again.

        A link in its place, or in it, may point anywhere: nothing is written through one.
        """
        if os.path.islink(self.staging) or not os.path.isdir(self.staging):
            clear(self.staging)
        os.makedirs(self.staging, exist_ok=True)
        wanted = {os.path.basename(self.partial(file)) for file in self.files}
        for entry in list(os.scandir(self.staging)):
            plain = entry.is_file(follow_symlinks=False) and entry.stat().st_nlink == 1
            if not plain or entry.name.split(".")[0] not in wanted:
                clear(entry.path)

    def put(self, file: dict[str, Any]) -> None:
        """Give the verified partial file its name."""
        path = self.path(file)
        parent = os.path.dirname(path)
        os.makedirs(parent, mode=0o755, exist_ok=True)
        os.chmod(self.partial(file), 0o644)
        os.replace(self.partial(file), path)
        sync_directory(parent)

    def record(self, file: dict[str, Any]) -> None:
        """Vouch for a file that was just verified; others of the stamp stay if they still stand."""
        self.entries[file["path"]] = stamped(self.path(file), file["sha256"])
        self.entries = {
            name: entry
            for name, entry in self.entries.items()
            if same_as_stamped(f"{self.directory}/{name}", entry)
        }
        write_stamp(self.directory, {"schema": 1, "files": self.entries})


def need_room(stores: list[Store], reserve: int) -> None:
    """NodeError unless what is still to come fits, with the reserve left on each filesystem."""
    due = [(store.directory, store.needed_bytes) for store in stores if store.missing]
    if due:
        places = " and ".join(directory for directory, _ in due)
        require_together(due, f"fetching into {places}", reserve)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
