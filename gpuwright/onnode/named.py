"""Files that an operator names in a want: what is there, and whether who reads them may.

Nothing but the kernel knows the latter, with links, groups and access lists: a child becomes the
reader and tries.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pwd
import stat
from collections.abc import Iterator
from functools import partial
from typing import Any

from gpuwright.onnode.children import start, value
from gpuwright.onnode.outcome import clean
from gpuwright.onnode.owned import USER
from gpuwright.onnode.storage import sha256_of
from gpuwright.onnode.tree import Tree

_SECONDS = 3.0
_MOST_NAMES = 1000
_HASHED_BYTES = 1 << 20
_NOBODY = 65534
_CONFIGURATION, _WEIGHTS = "adapter_config.json", "adapter_model."
_GGUF = b"GGUF"
_BEYOND = ("use_dora", "lora_bias", "modules_to_save", "layer_replication", "use_qalora")
"""Settings of an adapter that make more of it than two small matrices for each layer."""


def named(tree: Tree, asked: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    """Each path of `asked`, which says by path whether the service itself reads it, else root."""
    found: dict[str, Any] = {}
    for served in (False, True):
        paths = [path for path in asked if bool(asked[path]) is served]
        if not paths:
            continue
        told = value(start(partial(_look, tree, paths, served), _SECONDS))
        if not isinstance(told, dict):
            notes.append("named: a filesystem does not answer")
            told = {}
        # What nobody could look at has no entry; null is that nothing is there.
        found.update(told)
    return found


def _look(tree: Tree, paths: list[str], served: bool) -> dict[str, Any]:
    if served and tree.is_node and os.geteuid() == 0:
        _become(USER)
    return {path: _entry(tree, path, served) for path in paths}


def _become(name: str) -> None:
    """The user `name` for good; nobody where there is none yet, as who will be made then has no
    more rights."""
    try:
        user = pwd.getpwnam(name)
        os.initgroups(name, user.pw_gid)
        group, number = user.pw_gid, user.pw_uid
    except KeyError:
        os.setgroups([])
        group = number = _NOBODY
    os.setresgid(group, group, group)
    os.setresuid(number, number, number)


def _entry(tree: Tree, path: str, served: bool) -> dict[str, Any] | None:
    place = tree.at(path)
    barred = next((each for each in _above(path) if not _enters(tree.at(each))), None)
    found = None
    if barred is None:
        try:
            found = os.stat(place)
        except PermissionError:
            barred = path
        except OSError:
            return None
    entry: dict[str, Any] = {
        "type": None,
        "bytes": None,
        "identity": None,
        "resolved": clean(os.path.realpath(place)[len(tree.root) :], 4096),
        "barred": barred,
        "adapter": None,
    }
    if found is not None and stat.S_ISREG(found.st_mode):
        entry.update(type="file", bytes=found.st_size)
        entry["identity"] = _identity({"": (place, found)}) if served else None
        head = tree.data(path, len(_GGUF))
        entry["barred"] = None if head is not None else path
        if head == _GGUF:
            entry["adapter"] = _adapter("gguf")
    elif found is not None and stat.S_ISDIR(found.st_mode):
        names = tree.names(path, _MOST_NAMES)
        files: dict[str, tuple[str, os.stat_result]] = {}
        entry.update(type="dir", bytes=0)
        entry["barred"] = None if os.access(place, os.R_OK | os.X_OK) else path
        for name in names:
            with contextlib.suppress(OSError):
                inner = os.stat(f"{place}/{name}")
                if stat.S_ISREG(inner.st_mode):
                    entry["bytes"] += inner.st_size
                    files[name] = (f"{place}/{name}", inner)
                    if not os.access(f"{place}/{name}", os.R_OK):
                        entry["barred"] = entry["barred"] or clean(f"{path}/{name}", 4096)
        entry["identity"] = _identity(files) if served else None
        if _CONFIGURATION in names and any(name.startswith(_WEIGHTS) for name in names):
            entry["adapter"] = _read(_parsed(tree, f"{path}/{_CONFIGURATION}"))
    elif found is not None:
        entry.update(type="other")
    return entry


def _identity(files: dict[str, tuple[str, os.stat_result]]) -> str:
    """Hex digits that are others when a file is: a small one by what it holds, a large one by its
    size and time. One that is put back from a copy is older than what it replaces."""
    told = []
    for name, (path, found) in sorted(files.items()):
        state = f"{found.st_size} {found.st_mtime_ns}"
        if found.st_size <= _HASHED_BYTES:
            with contextlib.suppress(OSError):
                state = sha256_of(path)
        told.append(f"{state} {name}\n")
    return hashlib.sha256("".join(told).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _above(path: str) -> Iterator[str]:
    """Directories that lead to `path`, the root first."""
    parts = path.strip("/").split("/")[:-1]
    for count in range(len(parts) + 1):
        yield "/" + "/".join(parts[:count])


def _enters(place: str) -> bool:
    return not os.path.isdir(place) or os.access(place, os.X_OK)


def _adapter(form: str) -> dict[str, Any]:
    return {"format": form, "rank": None, "base": None, "beyond": []}


def _parsed(tree: Tree, path: str) -> object:
    """A JSON file's value, through links too: caches of hubs have nothing else."""
    try:
        return json.loads(tree.text(path, 1 << 20) or "")
    except (ValueError, RecursionError):
        return None


def _read(told: object) -> dict[str, Any]:
    """An adapter's own configuration, as PEFT writes it: `rank` is its highest."""
    found = _adapter("peft")
    if not isinstance(told, dict):
        return found
    pattern = told.get("rank_pattern")
    ranks = [told.get("r"), *(pattern.values() if isinstance(pattern, dict) else ())]
    whole = [rank for rank in ranks if type(rank) is int and 0 < rank < 1 << 20]
    base = told.get("base_model_name_or_path")
    found["rank"] = max(whole) if whole else None
    found["base"] = clean(base, 200) if isinstance(base, str) else None
    found["beyond"] = [name for name in _BEYOND if told.get(name)]
    return found
