"""The sections of the node document that nothing else depends on, each a function of the tree."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from gpuwright.onnode.children import start, value
from gpuwright.onnode.disks import REMOTE, disk, mounted, rooms, unknown_disk
from gpuwright.onnode.driver import driver
from gpuwright.onnode.machine import CONTAINERS, virtualization
from gpuwright.onnode.network import addresses
from gpuwright.onnode.settings import clock, firewall, settings
from gpuwright.onnode.toolchain import compilers, pythons, toolkits
from gpuwright.onnode.topology import iommu, numa
from gpuwright.onnode.tree import Tree

_DISK_SECONDS = 3.0

SECTIONS: dict[str, Callable[[Tree], Any]] = {
    "driver": lambda tree: driver(tree, virtualization(tree) in CONTAINERS),
    "numa": numa,
    "iommu": iommu,
    "pythons": pythons,
    "compilers": compilers,
    "toolkits": toolkits,
    "addresses": addresses,
    "firewall": firewall,
    "clock": clock,
    "settings": settings,
}

UNKNOWN: dict[str, Any] = {
    "driver": {
        **dict.fromkeys(("loaded", "module_version", "flavour", "library_version", "agree")),
        **dict.fromkeys(("cuda_version", "kernel_ready", "next_kernel", "next_kernel_ready")),
        **dict.fromkeys(("dkms", "secure_boot", "mok_enrolled", "nouveau")),
        "fabric_manager": dict.fromkeys(("needed", "installed", "active", "version")),
        "persistenced": dict.fromkeys(("installed", "active")),
        "packages": None,
    },
    "numa": None,
    "iommu": {"mode": None, "groups": None},
    "pythons": None,
    "compilers": None,
    "toolkits": None,
    "addresses": None,
    "firewall": {"kind": None, "active": None},
    "clock": {"time": None, "synchronized": None, "timezone": None},
    "settings": {"proxies": None, "apt_mirrors": None, "pip_index": None},
    "filesystems": None,
}


def asked_disks(tree: Tree, paths: list[str], notes: list[str]) -> dict[str, Any]:
    """The filesystem of each path, asked in a child: a dead mount would hold us for ever."""
    if not paths:
        return {}
    found = value(start(lambda: {path: disk(path, tree) for path in paths}, _DISK_SECONDS))
    if isinstance(found, dict):
        return found
    notes.append("disks: a filesystem does not answer")
    return {path: unknown_disk() for path in paths}


def filesystems(tree: Tree, notes: list[str]) -> list[dict[str, Any]]:
    """Each real filesystem. Those of a network are asked apart: one that hangs hides no other."""
    rows = mounted(tree)
    remote = [row for row in rows if REMOTE.fullmatch(row["type"])]
    local = [row for row in rows if row not in remote]
    asked = [(some, start(partial(rooms, tree, some), _DISK_SECONDS)) for some in (local, remote)]
    for some, child in asked:
        told = value(child)
        if told is None and some:
            shown = ", ".join(row["mount"] for row in some)
            notes.append(f"filesystems: no answer from one of {shown}"[:1000])
        for at, row in enumerate(some):
            row.update(told[at] if told else dict.fromkeys(("free_bytes", "total_bytes")))
    return rows
