"""The node's GPUs and what state their driver is in: a status and a sentence, whatever happens."""

from __future__ import annotations

import re
from typing import Any

from gpuwright.onnode.children import Child, start, value
from gpuwright.onnode.nvml import ask, library_in_reach
from gpuwright.onnode.outcome import clean
from gpuwright.onnode.tree import Tree

NVIDIA = "10de:"
_TRACES = ("/proc/driver/nvidia", "/dev/nvidiactl", "/dev/dxg")
_LIB_RM_VERSION_MISMATCH = 18
_DRIVER_NOT_LOADED = 9
_LIBRARY_NOT_FOUND = 12
_GPU_LOST = 15
_NO_PERMISSION = 4


def controllers(tree: Tree) -> list[dict[str, Any]]:
    """Display and 3D controllers of every vendor, in PCI order."""
    found = []
    for address in tree.names("/sys/bus/pci/devices"):
        place = f"/sys/bus/pci/devices/{address}"
        kind = tree.word(f"{place}/class") or ""
        if not kind.startswith("0x03"):
            continue
        vendor, device = tree.word(f"{place}/vendor"), tree.word(f"{place}/device")
        driver = tree.link(f"{place}/driver")
        found.append(
            {
                "address": clean(address, 40),
                "id": clean(f"{(vendor or '')[2:]}:{(device or '')[2:]}", 20).lower(),
                "class": clean(kind, 20),
                "driver": clean(driver.rsplit("/", 1)[-1], 60) if driver else None,
            }
        )
    return sorted(found, key=lambda one: _order(one["address"]))


def _order(address: str) -> tuple[int, str]:
    domain = address.partition(":")[0]
    return (int(domain, 16) if re.match(r"[0-9a-fA-F]{1,8}\Z", domain) else 0, address)


def module_version(tree: Tree) -> str | None:
    """The version of the kernel module that is loaded."""
    text = tree.text("/proc/driver/nvidia/version", 4096) or ""
    match = re.search(r"NVRM version:.*?\s(\d{2,}\.\d+(?:\.\d+)?)\s", text + "\n")
    return match.group(1) if match else None


class Inquiry:
    """The question to the driver, asked in a child while the rest of the node is read."""

    def __init__(self, tree: Tree, carried: str | None, seconds: float) -> None:
        self.tree = tree
        self.seconds = seconds
        self.pci = controllers(tree)
        self.child: Child | None = None
        nvidia = any(one["id"].startswith(NVIDIA) for one in self.pci)
        traces = any(tree.exists(path) for path in _TRACES)
        if nvidia or traces or library_in_reach(tree):
            self.child = start(lambda: ask(carried), seconds)

    def answer(self, container: bool) -> dict[str, Any]:
        """The document's `gpus`. In a `container` the PCI bus shows more than one may use."""
        module = module_version(self.tree)
        answer: dict[str, Any] | None = None
        if self.child is not None:
            heard = value(self.child)
            answer = heard if isinstance(heard, dict) else {"hung": True}
        status, detail = judged(self.pci, module, answer, container, self.seconds)
        said = answer or {}
        return {
            "status": status,
            "detail": detail,
            "driver_version": said.get("driver_version") or module,
            "cuda_version": said.get("cuda_version"),
            "devices": said.get("devices") or [],
            "pci": self.pci,
        }


def judged(
    pci: list[dict[str, Any]],
    module: str | None,
    answer: dict[str, Any] | None,
    container: bool,
    seconds: float,
) -> tuple[str, str]:
    """Status and sentence from the PCI bus, the module's version and NVML's answer."""
    nvidia = [one for one in pci if one["id"].startswith(NVIDIA)]
    if answer is None:
        return "no_gpu", _without_nvidia(pci)
    if answer.get("hung"):
        return "unreadable", (
            f"the NVIDIA driver did not answer within {seconds:g} s: it hangs or died; "
            "see the kernel log, a reboot may be needed"
        )
    code, error = answer["error_code"], answer["error"]
    if code is None:
        return _of_devices(nvidia, answer, container)
    if code == _LIB_RM_VERSION_MISMATCH:
        library = answer["library_version"] or "of another version"
        return "driver_mismatch", (
            f"the loaded NVIDIA kernel module is {module or 'of unknown version'}, the driver "
            f"library is {library}: reboot, or reload the module"
        )
    if code == _GPU_LOST:
        return "gpu_lost", f"a GPU has fallen off the bus ({error}): see the kernel log for Xid"
    if code in (_DRIVER_NOT_LOADED, _LIBRARY_NOT_FOUND):
        return _without_driver(nvidia, pci, module, code)
    if code == _NO_PERMISSION:
        return "unreadable", f"the NVIDIA driver may not be asked by this user: {error}"
    return "unreadable", f"the NVIDIA driver cannot be asked: {error}"


def _of_devices(
    nvidia: list[dict[str, Any]], answer: dict[str, Any], container: bool
) -> tuple[str, str]:
    devices, lost = answer["devices"], answer["lost"]
    if lost:
        return "gpu_lost", f"{'; '.join(lost)}: see the kernel log for Xid"
    listed = {device["pci_address"] for device in devices}
    unseen = [one["address"] for one in nvidia if one["address"] not in listed]
    driven = [
        one["address"] for one in nvidia if one["address"] in unseen and one["driver"] == "nvidia"
    ]
    if driven and not container:
        return "gpu_lost", (
            f"the driver holds {', '.join(driven)} but cannot use it: "
            "see the kernel log for NVRM and Xid"
        )
    if not devices and nvidia:
        return "no_driver", _bound_elsewhere(nvidia)
    if not devices:
        return "no_gpu", "the NVIDIA driver is there, but it has no GPU"
    version = answer["driver_version"] or "of unknown version"
    count = f"{len(devices)} NVIDIA GPU{'s' if len(devices) > 1 else ''}"
    apart = f"; {_bound_elsewhere(nvidia)}" if unseen and not container else ""
    return "ok", f"{count}, driver {version}{apart}"


def _without_driver(
    nvidia: list[dict[str, Any]], pci: list[dict[str, Any]], module: str | None, code: int
) -> tuple[str, str]:
    if not nvidia and module is None:
        return "no_gpu", _without_nvidia(pci)
    bound = any(one["driver"] == "nvidia" for one in nvidia)
    if code == _LIBRARY_NOT_FOUND and (module is not None or bound):
        return "no_driver", (
            f"the NVIDIA kernel module {module or '(version unknown)'} is loaded, but its "
            "libraries (libnvidia-ml.so.1) are not installed"
        )
    return "no_driver", _bound_elsewhere(nvidia) if nvidia else "the NVIDIA driver is not loaded"


def _bound_elsewhere(nvidia: list[dict[str, Any]]) -> str:
    """Which NVIDIA cards are not with the NVIDIA driver, and with which one they are."""
    parts = []
    for one in nvidia:
        if one["driver"] == "nvidia":
            continue
        held = f"driven by {one['driver']}" if one["driver"] else "without a driver"
        parts.append(f"{one['address']} ({one['id']}) is {held}")
    return "the NVIDIA driver is not used: " + (", ".join(parts) or "no card is bound to it")


def _without_nvidia(pci: list[dict[str, Any]]) -> str:
    if not pci:
        return "no display or 3D controller on the PCI bus"
    return "no NVIDIA GPU; other controllers: " + ", ".join(
        f"{one['id']} at {one['address']}" for one in pci
    )
