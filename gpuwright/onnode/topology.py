"""How processors, memory and cards of a node lie to each other; what translates their addresses."""

from __future__ import annotations

import re
from typing import Any

from gpuwright.onnode.outcome import clean
from gpuwright.onnode.tree import Tree

_PROCESSORS = "/sys/devices/system/cpu"
_NODES = "/sys/devices/system/node"
_PCI = "/sys/bus/pci/devices"
_GROUPS = "/sys/kernel/iommu_groups"
_ASKED_GROUPS = 64


def cores(tree: Tree) -> dict[str, int | None]:
    """Sockets and physical cores that are online."""
    packages, found = set(), set()
    for name in tree.names(_PROCESSORS):
        if re.match(r"cpu\d+\Z", name):
            package = tree.word(f"{_PROCESSORS}/{name}/topology/physical_package_id")
            core = tree.word(f"{_PROCESSORS}/{name}/topology/core_id")
            if package is not None and core is not None:
                packages.add(package)
                found.add((package, core))
    return {"sockets": len(packages) or None, "physical_cores": len(found) or None}


def numa(tree: Tree) -> list[dict[str, Any]] | None:
    """Each NUMA node with its processors, memory and NVIDIA cards; None where sysfs has none.

    A card of which the kernel does not know where it is belongs to the only node, or to none.
    """
    numbers = sorted(
        int(name[4:]) for name in tree.names(_NODES) if re.match(r"node\d{1,6}\Z", name)
    )
    cards = _cards(tree)
    found = []
    for number in numbers:
        shown = tree.text(f"{_NODES}/node{number}/meminfo", 1 << 16) or ""
        size = re.search(r"MemTotal:\s+(\d{1,15}) kB", shown)
        near = [address for address, node in cards if node == number or len(numbers) == 1]
        found.append(
            {
                "node": number,
                "cpus": clean(tree.word(f"{_NODES}/node{number}/cpulist") or "", 1000) or None,
                "memory_bytes": int(size.group(1)) * 1024 if size else None,
                "gpus": near,
            }
        )
    return found or None


def _cards(tree: Tree) -> list[tuple[str, int]]:
    """Address and NUMA node of each NVIDIA card; the node is -1 where the kernel does not know."""
    found = []
    for address in tree.names(_PCI):
        kind = tree.word(f"{_PCI}/{address}/class") or ""
        if kind.startswith("0x03") and tree.word(f"{_PCI}/{address}/vendor") == "0x10de":
            node = tree.word(f"{_PCI}/{address}/numa_node") or ""
            known = re.match(r"\d{1,6}\Z", node)
            found.append((clean(address, 40), int(node) if known else -1))
    return found


def iommu(tree: Tree) -> dict[str, Any]:
    """`off`, `on` (addresses are translated), or `passthrough`; None where it cannot be told."""
    groups = tree.names(_GROUPS, 1 << 16)
    mode = None
    if not groups:
        mode = "off" if tree.exists("/sys/kernel") else None
    else:
        kinds = [tree.word(f"{_GROUPS}/{name}/type") for name in groups[:_ASKED_GROUPS]]
        told = [kind for kind in kinds if kind]
        line = tree.text("/proc/cmdline", 1 << 16) or ""
        if told:
            through = told.count("identity") * 2 > len(told)
        else:  # kernels before 5.11 do not say
            through = bool(re.search(r"\biommu(?:=|\.passthrough=)(?:\S*,)?(?:pt|1)\b", line))
        mode = "passthrough" if through else "on"
    return {"mode": mode, "groups": len(groups)}


def memory_limit(tree: Tree) -> int | None:
    """What the control group of a container may use; None where nothing limits it."""
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        word = tree.word(path) or ""
        if re.match(r"\d{1,18}\Z", word) and int(word) < 1 << 60:
            return int(word)
    return None
