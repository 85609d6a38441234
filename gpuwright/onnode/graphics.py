"""The node's GPUs and what state their driver is in: a status and a sentence, whatever happens."""

from __future__ import annotations

import re
from typing import Any

from gpuwright.onnode.calls import (
    DRIVER_NOT_LOADED,
    LIB_RM_VERSION_MISMATCH,
    LIBRARY_NOT_FOUND,
    LOST,
    NO_PERMISSION,
)
from gpuwright.onnode.children import Child, start, value
from gpuwright.onnode.condition import add_condition, add_processes
from gpuwright.onnode.controllers import controllers, device_nodes, ignored
from gpuwright.onnode.kernel_log import xids
from gpuwright.onnode.nvml import ask, library_in_reach
from gpuwright.onnode.tree import Tree

_CONTROL = "/dev/nvidiactl"
_TRACES = ("/proc/driver/nvidia", _CONTROL, "/dev/dxg")
_SECONDS = 3.0
_CARD_SECONDS = 2.0
"""A card that nothing keeps awake takes more than a second to start."""
_LOST_KEYS = ("index", "pci_address", "error")
_UNUSED = "the driver holds it but cannot use it"


def module_version(tree: Tree) -> str | None:
    """The version of the kernel module that is loaded."""
    text = tree.text("/proc/driver/nvidia/version", 4096) or ""
    match = re.search(r"NVRM version:.*?\s(\d{2,}\.\d+(?:\.\d+)?)\s", text + "\n")
    return match.group(1) if match else None


class Cards:
    """What the kernel shows of a node's cards, to which the driver's answer is added."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.pci = controllers(tree)
        self.nvidia = [one for one in self.pci if one["vendor"] == "nvidia"]
        self.seconds = _SECONDS + _CARD_SECONDS * max(1, len(self.nvidia))

    def traces(self) -> bool:
        """Whether there is anything of a driver to ask."""
        return bool(self.nvidia) or any(self.tree.exists(path) for path in _TRACES)

    def document(
        self,
        source: str,
        answer: dict[str, Any] | None,
        logged: dict[str, list[int]] | None,
        container: bool,
    ) -> dict[str, Any]:
        """The document's `gpus`. In a `container` the PCI bus shows more than one may use.

        `answer` is onnode.nvml.ask's, or one of its form by another `source`; None: nobody was
        asked.
        """
        module = module_version(self.tree)
        said = answer or {}
        devices = said.get("devices") or []
        lost = _lost(self.nvidia, said, container)
        add_processes(devices, self.tree, container)
        add_condition(devices, lost, logged)
        status, detail = self.judged(module, answer, lost, container)
        return {
            "source": source if answer and answer.get("error_code", -1) is None else None,
            "status": status,
            "detail": detail,
            "driver_version": said.get("driver_version") or module,
            "cuda_version": said.get("cuda_version"),
            "devices": devices,
            "lost": lost,
            "pairs": said.get("pairs") or [],
            "pci": self.pci,
            "ignored": ignored(self.pci),
            "device_nodes": device_nodes(self.tree),
        }

    def judged(
        self,
        module: str | None,
        answer: dict[str, Any] | None,
        lost: list[dict[str, Any]],
        container: bool,
    ) -> tuple[str, str]:
        """Status and sentence from the PCI bus, the module's version and NVML's answer."""
        if answer is None:
            return "no_gpu", _without_nvidia(self.pci)
        if answer.get("hung"):
            return "unreadable", (
                f"the NVIDIA driver did not answer within {self.seconds:g} s: it hangs or died; "
                "see the kernel log, a reboot may be needed"
            )
        code, error = answer["error_code"], answer["error"]
        if code is None:
            return _of_devices(self.nvidia, answer, lost, container)
        if code == LIB_RM_VERSION_MISMATCH:
            library = answer["library_version"] or "of another version"
            return "driver_mismatch", (
                f"the loaded NVIDIA kernel module is {module or 'of unknown version'}, the driver "
                f"library is {library}: reboot, or reload the module"
            )
        if code == LOST:
            return "gpu_lost", f"a GPU has fallen off the bus ({error}): see the kernel log for Xid"
        if code == DRIVER_NOT_LOADED and module is not None and not self.tree.exists(_CONTROL):
            remedy = "pass /dev/nvidia* into this container" if container else "nvidia-modprobe"
            return "no_driver", (
                f"the NVIDIA kernel module {module} is loaded, but {_CONTROL} is not here: {remedy}"
            )
        if code in (DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND):
            return _without_driver(self.nvidia, self.pci, module, code)
        if code == NO_PERMISSION:
            return "unreadable", f"the NVIDIA driver may not be asked by this user: {error}"
        return "unreadable", f"the NVIDIA driver cannot be asked: {error}"


class Inquiry(Cards):
    """The question to the driver, asked in a child while the rest of the node is read."""

    def __init__(self, tree: Tree, carried: str | None) -> None:
        super().__init__(tree)
        self.child: Child | None = None
        if self.traces() or library_in_reach(tree):
            self.child = start(lambda: ask(carried), self.seconds)

    def answer(self, container: bool) -> dict[str, Any]:
        """The document's `gpus`."""
        if self.child is None:
            return self.document("nvml", None, None, container)
        heard = value(self.child)
        answer = heard if isinstance(heard, dict) else {"hung": True}
        return self.document("nvml", answer, xids(self.tree), container)


def _lost(
    nvidia: list[dict[str, Any]], answer: dict[str, Any], container: bool
) -> list[dict[str, Any]]:
    """Cards that do not work: those that NVML says so of, and those it does not name at all."""
    if answer.get("error_code", -1) is not None:
        return []
    said = [{key: one[key] for key in _LOST_KEYS} for one in answer["lost"]]
    named = {device["pci_address"] for device in answer["devices"]}
    held = [
        one["address"]
        for one in nvidia
        if one["driver"] == "nvidia" and one["address"] not in named
    ]
    if container or answer["hidden"]:
        return said
    if len(held) == len(said):
        return [{**one, "pci_address": held[place]} for place, one in enumerate(said)]
    silent = held if not said else []
    return said + [{"index": None, "pci_address": place, "error": _UNUSED} for place in silent]


def _of_devices(
    nvidia: list[dict[str, Any]],
    answer: dict[str, Any],
    lost: list[dict[str, Any]],
    container: bool,
) -> tuple[str, str]:
    devices = answer["devices"]
    if lost:
        rest = ", ".join(f"GPU {device['index']}" for device in devices)
        return "gpu_lost", (
            f"{'; '.join(_told(one) for one in lost)}: see the kernel log for NVRM and Xid"
            + (f"; {rest} still answers" if len(devices) == 1 else "")
            + (f"; {rest} still answer" if len(devices) > 1 else "")
        )
    listed = {device["pci_address"] for device in devices}
    unseen = [one["address"] for one in nvidia if one["address"] not in listed]
    if not devices and nvidia:
        return "no_driver", _bound_elsewhere(nvidia)
    if not devices:
        return "no_gpu", "the NVIDIA driver is there, but it has no GPU"
    version = answer["driver_version"] or "of unknown version"
    count = f"{len(devices)} NVIDIA GPU{'s' if len(devices) > 1 else ''}"
    apart = f"; {_bound_elsewhere(nvidia)}" if unseen and not container else ""
    hidden = "".join(
        f"; GPU {one['index']} may not be asked by this user" for one in answer["hidden"]
    )
    return "ok", f"{count}, driver {version}{apart}{hidden}"


def _told(one: dict[str, Any]) -> str:
    """A card that does not work, for people."""
    named = "a card" if one["index"] is None else f"GPU {one['index']}"
    place = f" at {one['pci_address']}" if one["pci_address"] else ""
    logged = f" (Xid {', '.join(map(str, one['xids']))})" if one["xids"] else ""
    return f"{named}{place}: {one['error']}{logged}"


def _without_driver(
    nvidia: list[dict[str, Any]], pci: list[dict[str, Any]], module: str | None, code: int
) -> tuple[str, str]:
    if not nvidia and module is None:
        return "no_gpu", _without_nvidia(pci)
    bound = any(one["driver"] == "nvidia" for one in nvidia)
    if code == LIBRARY_NOT_FOUND and (module is not None or bound):
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
