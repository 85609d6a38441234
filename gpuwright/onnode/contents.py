"""What an installed tree holds, file by file: listed once, and compared with that list later."""

from __future__ import annotations

import base64
import csv
import glob
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gpuwright.onnode.stamps import (
    HASHED_BYTES,
    STAMP,
    read_stamp,
    same_as_stamped,
    stamped,
    vouched,
    write_stamp,
)
from gpuwright.onnode.storage import replace_file, sha256_of, sync_filesystem

LIST = "gpuwright.sha256"
"""Beside the stamp: every file with its hash, as `sha256sum --check` reads it."""
_SITE = re.compile(r"lib/python[\d.]+(/site-packages)?\Z")
"""Directories from which a Python starts: what stands there runs in every process."""


def walked(directory: str) -> Iterator[os.DirEntry[str]]:
    """Everything below a directory but directories and what Python compiles."""
    with os.scandir(directory) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        if entry.is_dir(follow_symlinks=False):
            if entry.name != "__pycache__":
                yield from walked(entry.path)
        else:
            yield entry


def _below(directory: str, path: str) -> str:
    return path[len(directory) + 1 :]


def misfits(directory: str, stock: dict[str, str]) -> dict[str, list[str]]:
    """Package -> its files, of packages with one in the stock that is not what RECORD says.

    A file that several packages bring is one of theirs. What is compiled counts for nothing.
    """
    owned: dict[str, list[str]] = {}
    claims: dict[str, set[str]] = {}
    sites = f"{glob.escape(directory)}/lib/python*/site-packages"
    for record in glob.glob(f"{sites}/*.dist-info/RECORD"):
        info = os.path.dirname(record)
        files = owned.setdefault(os.path.basename(info).partition("-")[0], [])
        with open(record, encoding="utf-8", errors="surrogateescape", newline="") as file:
            rows = [row for row in csv.reader(file) if len(row) > 1]
        for row in rows:
            path = os.path.normpath(f"{os.path.dirname(info)}/{row[0]}")
            if "/__pycache__/" not in path:
                files.append(_below(directory, path))
                if row[1].startswith("sha256="):
                    claims.setdefault(files[-1], set()).add(_digest(row[1][7:]))
    wrong = {name for name, digests in claims.items() if stock.get(name) not in digests}
    return {package: files for package, files in owned.items() if not wrong.isdisjoint(files)}


def _digest(written: str) -> str:
    """A hash as RECORD writes it, in hex digits; one that is none is nobody's."""
    try:
        return base64.urlsafe_b64decode(written + "==").hex()
    except ValueError:
        return ""


def take_stock(directory: str, going_on: Callable[[], bool] = lambda: True) -> dict[str, str]:
    """Path -> hash of every file below a tree, as far as `going_on` says yes before each."""
    found = {}
    for entry in walked(directory):
        if not going_on():
            break
        if not entry.is_symlink():
            found[_below(directory, entry.path)] = sha256_of(entry.path)
    return found


class Stock:
    """A tree's hashes, taken while something else goes on; meanwhile it comes to the disk, too."""

    def __init__(self, directory: str) -> None:
        self._wanted = True
        self._pool = ThreadPoolExecutor(2)
        self._disk = self._pool.submit(sync_filesystem, directory)
        self._hashes = self._pool.submit(take_stock, directory, lambda: self._wanted)

    def taken(self) -> dict[str, str]:
        """Path -> hash, once all is on the disk. OSError: the disk did not take it."""
        self._disk.result()
        return self._hashes.result()

    def close(self) -> None:
        self._wanted = False
        self._pool.shutdown()


def seal(directory: str, stock: dict[str, str], value: dict[str, Any]) -> None:
    """Write the list and, last, the stamp with `value`. Before it is called, all is on the disk.

    The stamp itself vouches for the list, for each package's RECORD, for large libraries and
    compilers, for links, and for what runs by itself: `bin`, and the
    single files of the directories that a Python starts from.
    """
    lines = [f"{digest}  {name}\n" for name, digest in sorted(stock.items())]
    replace_file(f"{directory}/{LIST}", "".join(lines).encode())
    files = {LIST: stamped(f"{directory}/{LIST}", sha256_of(f"{directory}/{LIST}"))}
    for name, digest in stock.items():
        place, base = os.path.split(name)
        runs = ".so" in base or place.endswith("/bin")
        large = runs and os.stat(f"{directory}/{name}").st_size > HASHED_BYTES
        record = base == "RECORD" and place.endswith(".dist-info")
        if large or record or place in ("", "bin") or _SITE.match(place):
            files[name] = stamped(f"{directory}/{name}", digest)
    links = {
        _below(directory, entry.path): os.readlink(entry.path)
        for entry in walked(directory)
        if entry.is_symlink()
    }
    sites = {
        place: _names_digest(os.listdir(f"{directory}/{place}"))
        for place in sorted({os.path.dirname(name) for name in stock})
        if _SITE.match(place)
    }
    write_stamp(directory, {"schema": 2, "files": files, "links": links, "sites": sites, **value})


def _names_digest(names: list[str]) -> str:
    kept = sorted(name for name in names if name != "__pycache__")
    return hashlib.sha256("\n".join(kept).encode("utf-8", "surrogateescape")).hexdigest()


def _list_of(directory: str) -> dict[str, str]:
    """The list that was written; empty where there is none."""
    try:
        with open(f"{directory}/{LIST}", encoding="utf-8") as file:
            pairs = [line.rstrip("\n").partition("  ") for line in file]
    except (OSError, ValueError):
        return {}
    return {name: digest for digest, _, name in pairs}


def difference(directory: str, thorough: bool) -> str | None:
    """What below `directory` is not as its stamp says, as a phrase; None: all is.

    Looked at are the files that the stamp vouches for and the names from which a Python starts;
    `thorough`: every file, by its hash.
    """
    stamp = read_stamp(directory)
    files = vouched(stamp)
    if LIST not in files:
        return f"{directory} has no stamp"
    for name, entry in files.items():
        path = f"{directory}/{name}"
        if not same_as_stamped(path, entry):
            return f"{path} is not the file that was installed"
        if (thorough or entry["bytes"] <= HASHED_BYTES) and sha256_of(path) != entry.get("sha256"):
            return f"{path} was changed"
    return unlisted(directory, stamp, thorough)


def unlisted(directory: str, stamp: dict[str, Any], thorough: bool) -> str | None:
    """The same of what the stamp's `files` do not tell, which whoever has its text compares."""
    files = vouched(stamp)
    if LIST not in files:
        return None  # a build, which has no list
    sites, links = _mapping(stamp, "sites"), _mapping(stamp, "links")
    for place, digest in sites.items():
        path = f"{directory}/{place}"
        names = os.listdir(path) if os.path.isdir(path) else []
        if _names_digest(names) != digest:
            return _first_name(directory, place, names, links)
    for name, target in links.items():
        if _target(f"{directory}/{name}") != target:
            return f"{directory}/{name} is not the link that was installed"
    if not thorough:
        return None
    listed = _list_of(directory)
    for entry in walked(directory):
        name = _below(directory, entry.path)
        if name in (STAMP, LIST):
            continue
        if entry.is_symlink():
            if os.readlink(entry.path) != links.pop(name, None):
                return f"{entry.path} is no link that was installed"
        elif name not in listed:
            return f"{entry.path} was not installed"
        elif name in files:
            listed.pop(name)  # its entry in the stamp tells of it
        elif listed.pop(name) != _hash(entry):
            return f"{entry.path} was changed"
    gone = next(iter(sorted({*listed, *links})), None)
    return None if gone is None else f"{directory}/{gone} is missing"


def _target(path: str) -> str | None:
    """Where a link leads; None: it is none, or nothing is there."""
    try:
        return os.readlink(path) if os.path.exists(path) else None
    except OSError:
        return None


def _mapping(stamp: dict[str, Any], key: str) -> dict[str, Any]:
    value = stamp.get(key)
    return dict(value) if isinstance(value, dict) else {}


def _hash(entry: os.DirEntry[str]) -> str | None:
    return sha256_of(entry.path) if entry.is_file(follow_symlinks=False) else None


def _first_name(directory: str, place: str, names: list[str], links: dict[str, str]) -> str:
    """A name that was added to a directory, or is gone from it."""
    below = f"{place}/"
    known = {
        name[len(below) :].partition("/")[0]
        for name in (*_list_of(directory), *links)
        if name.startswith(below)
    }
    for name in sorted(set(names) - known - {"__pycache__"}):
        return f"{directory}/{below}{name} was not installed"
    for name in sorted(known - set(names)):
        return f"{directory}/{below}{name} is missing"
    return f"{directory}/{place} does not hold what was installed"
