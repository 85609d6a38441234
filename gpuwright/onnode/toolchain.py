"""What could compile on a node: Pythons with their headers, compilers, CUDA toolkits.

Versions come from the files around a program and from dpkg: no program of the node is started,
since some of them lie where others than root may write.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from typing import Any

from gpuwright.onnode.dpkg import packages
from gpuwright.onnode.outcome import NodeError, clean
from gpuwright.onnode.tree import Tree

_PLACES = ("/usr/local/bin", "/usr/bin")
_UV = "/root/.local/share/uv/python"
_MOST = 40
_KINDS = {
    "gcc": r"gcc(-\d+)?",
    "g++": r"g\+\+(-\d+)?",
    "clang": r"clang(-\d+)?",
    "cmake": "cmake",
    "ninja": "ninja",
    "make": "make",
    "ccache": "ccache",
}
_PACKAGES = {"ninja": "ninja-build"}
_DEBIAN_TOOLKIT = "/usr/lib/nvidia-cuda-toolkit"
_VERSION = re.compile(r"(?:\d+:)?(\d+(?:\.\d+)*)")


def pythons(tree: Tree) -> list[dict[str, Any]]:
    """Each Python 3 once, links and environments followed to the interpreter itself.

    `version` is as exact as files tell: the minor one at least.
    """
    found: dict[str, dict[str, Any]] = {}
    places = [
        *_PLACES,
        *(f"/opt/{name}/bin" for name in tree.names("/opt", 200)),
        *(f"{_UV}/{name}/bin" for name in tree.names(_UV, 200)),
    ]
    for place in places:
        for name in tree.names(place, 1 << 16):
            if re.match(r"python3(\.\d{1,3})?\Z", name):
                path = tree.resolved(f"{place}/{name}")
                if path not in found and len(found) < _MOST and tree.exists(path):
                    row = _python(tree, path)
                    if row is not None:
                        found[path] = row
    return list(found.values())


def _python(tree: Tree, path: str) -> dict[str, Any] | None:
    prefix, name = os.path.dirname(os.path.dirname(path)) or "/", os.path.basename(path)
    named = re.match(r"python(3\.\d{1,3})\Z", name)
    minors = [named.group(1)] if named else _minors(tree, prefix)
    if len(minors) != 1:
        return None
    minor = minors[0]
    headers = f"{prefix}/include/python{minor}"
    library = f"{prefix}/lib/python{minor}"
    return {
        "executable": clean(path, 1000),
        "version": _python_version(tree, path, minor, headers),
        "headers": tree.exists(f"{headers}/Python.h"),
        "venv": tree.exists(f"{library}/ensurepip/__init__.py"),
    }


def _minors(tree: Tree, prefix: str) -> list[str]:
    names = tree.names(f"{prefix}/lib", 1 << 16)
    return [name[6:] for name in names if re.match(r"python3\.\d{1,3}\Z", name)]


def _python_version(tree: Tree, path: str, minor: str, headers: str) -> str:
    if tree.is_node and path == os.path.realpath(sys.executable or "/"):
        return "{}.{}.{}".format(*sys.version_info[:3])
    told = [
        re.search(r"/cpython-(\d+\.\d+\.\d+)", path),
        re.search(r'PY_VERSION\s+"(\d+\.\d+\.\d+)', tree.text(f"{headers}/patchlevel.h") or ""),
    ]
    if path.startswith("/usr/bin/"):
        own = f"python{minor}-minimal"
        told.append(_VERSION.match(_known(tree, [own]).get(own) or ""))
    for match in told:
        if match and match.group(1).startswith(f"{minor}."):
            return match.group(1)
    return minor


def compilers(tree: Tree) -> list[dict[str, Any]]:
    """Compilers and what builds with them, each once, by the plainest of its names."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for place in _PLACES:
        for name in tree.names(place, 1 << 16):
            kind = next((kind for kind in _KINDS if re.match(_KINDS[kind] + r"\Z", name)), None)
            path = f"{place}/{name}"
            if kind and tree.exists(path) and len(rows) < _MOST:
                real = tree.resolved(path)
                rows.setdefault((kind, real), {"executable": path, "kind": kind, "real": real})
    owners = {key: _package(*key) for key in rows}
    versions = _known(tree, sorted({name for name in owners.values() if name}))
    for key, row in rows.items():
        match = _VERSION.match(versions.get(owners[key] or "") or "")
        row["version"] = match.group(1) if match else None
        del row["real"]
    return [*rows.values(), *_nvccs(tree)]


def _package(kind: str, real: str) -> str | None:
    """The Debian package that would own such a program."""
    if not re.match(r"/usr/(?:bin|lib)/", real):
        return None
    numbered = re.search(r"\b(gcc|g\+\+|clang)-(\d+)\Z", real)
    if numbered:
        return f"{numbered.group(1)}-{numbered.group(2)}"
    llvm = re.match(r"/usr/lib/llvm-(\d+)/bin/clang", real)
    return f"clang-{llvm.group(1)}" if llvm else _PACKAGES.get(kind, kind)


def _nvccs(tree: Tree) -> list[dict[str, Any]]:
    """Under each path that leads to one: what looks for a toolkit knows its place, or a link."""
    homes = {one["path"]: one["version"] for one in toolkits(tree)}
    found = []
    places = (*_PLACES, *(f"{home}/bin" for home in (*_homes(tree), *homes)))
    for path in dict.fromkeys(f"{place}/nvcc" for place in places):
        real = _called(tree, _followed(tree, path), homes)
        if tree.exists(real):
            version = homes.get(os.path.dirname(os.path.dirname(real)))
            found.append({"executable": clean(path, 1000), "kind": "nvcc", "version": version})
    return found


def _followed(tree: Tree, path: str) -> str:
    """`path` with its links followed, and those of the directory that its `bin` is in."""
    place, name = os.path.split(tree.resolved(path))
    home, folder = os.path.split(place)
    return f"{tree.resolved(home).rstrip('/')}/{folder}/{name}"


def _called(tree: Tree, path: str, homes: Iterable[str]) -> str:
    """The compiler of a toolkit that a script (Debian's is one) calls; else `path`."""
    text = tree.text(path, 4096) or ""
    programs = (f"{home}/bin/nvcc" for home in homes)
    named = [one for one in programs if text.startswith("#!") and f" {one} " in text]
    return named[0] if named else path


def toolkits(tree: Tree) -> list[dict[str, Any]]:
    """CUDA toolkits, links followed; of one that tells no version it is None."""
    found: dict[str, dict[str, Any]] = {}
    for path in _homes(tree):
        real = tree.resolved(path)
        if any(tree.exists(f"{real}/{part}") for part in ("bin/nvcc", "include/cuda.h")):
            found.setdefault(
                real, {"path": clean(real, 1000), "version": _toolkit_version(tree, real)}
            )
    return list(found.values())


def _homes(tree: Tree) -> list[str]:
    """Where toolkits stand, or links to them."""
    names = [name for name in tree.names("/usr/local", 1000) if re.match(r"cuda(-|\Z)", name)]
    return [*(f"/usr/local/{name}" for name in names), "/opt/cuda", _DEBIAN_TOOLKIT]


def _toolkit_version(tree: Tree, path: str) -> str | None:
    described = tree.parsed(f"{path}/version.json")
    cuda = described.get("cuda") if isinstance(described, dict) else None
    said = cuda.get("version") if isinstance(cuda, dict) else None
    match = _VERSION.match(str(said or ""))
    match = match or re.search(r"Version (\d+\.[\d.]*\d)", tree.text(f"{path}/version.txt") or "")
    if match is None and path == _DEBIAN_TOOLKIT:
        match = _VERSION.match(_known(tree, ["nvidia-cuda-toolkit"])["nvidia-cuda-toolkit"] or "")
    if match:
        return match.group(1)
    header = tree.text(f"{path}/include/cuda.h", 1 << 20) or ""
    number = re.search(r"#define\s+CUDA_VERSION\s+(\d{4,6})\b", header)
    return f"{int(number.group(1)) // 1000}.{int(number.group(1)) % 1000 // 10}" if number else None


def _known(tree: Tree, names: list[str]) -> dict[str, str | None]:
    """Versions of packages; all None where there is no dpkg."""
    try:
        return packages(tree, names)
    except NodeError:
        return dict.fromkeys(names)
