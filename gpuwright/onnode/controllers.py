"""Display and 3D controllers of every vendor on the PCI bus, and NVIDIA's files in /dev."""

from __future__ import annotations

import re
from typing import Any

from gpuwright.onnode.outcome import clean
from gpuwright.onnode.tree import Tree

_VENDORS = {
    "10de": "nvidia",
    "1002": "amd",
    "1022": "amd",
    "8086": "intel",
    "1a03": "aspeed",
    "102b": "matrox",
    "1af4": "virtio",
}
_SHOWN = {
    "amd": "an AMD controller",
    "intel": "an Intel controller",
    "aspeed": "an ASPEED controller (of the board's management)",
    "matrox": "a Matrox controller (of the board's management)",
    "virtio": "a virtual controller",
    "other": "a controller of another vendor",
}
_MOST = 64


def controllers(tree: Tree) -> list[dict[str, Any]]:
    """Each with its vendor and kernel driver, in PCI order."""
    found: list[dict[str, Any]] = []
    for address in tree.names("/sys/bus/pci/devices"):
        place = f"/sys/bus/pci/devices/{address}"
        kind = tree.word(f"{place}/class") or ""
        if not kind.startswith("0x03"):
            continue
        vendor, device = tree.word(f"{place}/vendor"), tree.word(f"{place}/device")
        driver = tree.link(f"{place}/driver")
        boot = tree.word(f"{place}/boot_vga")
        found.append(
            {
                "address": clean(address, 40),
                "id": clean(f"{(vendor or '')[2:]}:{(device or '')[2:]}", 20).lower(),
                "class": clean(kind, 20),
                "driver": clean(driver.rsplit("/", 1)[-1], 60) if driver else None,
                "vendor": _VENDORS.get((vendor or "")[2:].lower(), "other"),
                "boot_vga": boot == "1" if boot in ("0", "1") else None,
            }
        )
    return sorted(found, key=lambda one: _order(one["address"]))[:_MOST]


def _order(address: str) -> tuple[int, str]:
    domain = address.partition(":")[0]
    return (int(domain, 16) if re.match(r"[0-9a-fA-F]{1,8}\Z", domain) else 0, address)


def ignored(pci: list[dict[str, Any]]) -> list[str]:
    """A sentence for each controller that no CUDA plan can use."""
    return [
        f"{one['address']} ({one['id']}) is {_SHOWN[one['vendor']]}: not used for CUDA"
        for one in pci
        if one["vendor"] != "nvidia"
    ]


def device_nodes(tree: Tree) -> list[str] | None:
    """NVIDIA's files below /dev, WSL's too; None where /dev cannot be read."""
    if not tree.names("/dev"):
        return None
    shown = [name for name in tree.names("/dev") if re.match(r"nvidia[\w-]{0,30}\Z|dxg\Z", name)]
    caps = [f"nvidia-caps/{name}" for name in tree.names("/dev/nvidia-caps", _MOST)]
    return [f"/dev/{clean(name, 80)}" for name in sorted(shown + caps) if name != "nvidia-caps"]
