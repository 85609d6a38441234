"""Asking NVIDIA's management library through the carried pynvml; errors are values here.

To be run in a child process: a driver that hangs does so inside these calls.
"""

from __future__ import annotations

import base64
import ctypes
import os
import re
import sys
import zlib
from typing import Any

from gpuwright.onnode.calls import NO_PERMISSION, Driver, error_of, number
from gpuwright.onnode.cards import card
from gpuwright.onnode.outcome import clean
from gpuwright.onnode.pairs import links, pair
from gpuwright.onnode.tree import Tree

LIBRARY = "libnvidia-ml.so.1"
UNUSUAL_PLACES = ("/usr/lib/wsl/lib", "/run/opengl-driver/lib")
"""Where the library lies on WSL and NixOS, outside the linker's own paths."""
_USUAL_PLACES = ("/usr/lib", "/usr/lib64", "/lib", "/usr/local/lib")

_MOST_CARDS = 64


def library_in_reach(tree: Tree) -> bool:
    """True if the dynamic linker, or one of the unusual places, has the library."""
    if LIBRARY.encode() in (tree.data("/etc/ld.so.cache") or b""):
        return True
    searched = [place for place in os.environ.get("LD_LIBRARY_PATH", "").split(":") if place]
    if any(os.path.exists(os.path.join(place, LIBRARY)) for place in searched):
        return True
    usual = (*_USUAL_PLACES, f"/usr/lib/{os.uname().machine}-linux-gnu")
    return any(tree.exists(f"{place}/{LIBRARY}") for place in (*usual, *UNUSUAL_PLACES))


def load(carried: str | None) -> Any:
    """pynvml, from its compressed source; the control machine's own where none was carried."""
    for place in UNUSUAL_PLACES:
        if os.path.exists(os.path.join(place, LIBRARY)):
            # A library already loaded answers to its name: pynvml finds this one then.
            try:
                ctypes.CDLL(os.path.join(place, LIBRARY), mode=ctypes.RTLD_GLOBAL)
            except OSError:
                continue
    if carried is None:
        import pynvml

        return pynvml
    module = type(sys)("pynvml")
    sys.modules["pynvml"] = module
    source = zlib.decompress(base64.b64decode(carried))
    exec(compile(source, "pynvml", "exec"), module.__dict__)  # noqa: S102  the module we carried
    return module


def ask(carried: str | None) -> dict[str, Any]:
    """Everything about every device, or the first error.

    Returns {"error_code", "error", "driver_version", "cuda_version", "library_version",
    "devices", "lost", "hidden", "pairs"}; error_code is NVML's number, -1 for an error that has
    none. A card that fails is in `lost` (index, pci_address, error), one that this user may not
    ask in `hidden`, and the others are told.
    """
    answer: dict[str, Any] = {
        "error_code": None,
        "error": None,
        "driver_version": None,
        "cuda_version": None,
        "library_version": None,
        "devices": [],
        "lost": [],
        "hidden": [],
        "pairs": [],
    }
    try:
        nvml = load(carried)
    except Exception as problem:
        answer.update(error_code=-1, error=clean(f"pynvml does not load: {problem}"))
        return answer
    driver = Driver(nvml)
    try:
        driver.call("nvmlInit")
        answer["library_version"] = _library_version()
        answer["driver_version"] = _version(driver.text("nvmlSystemGetDriverVersion"))
        answer["cuda_version"] = _cuda(
            driver.ask(("nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetCudaDriverVersion"))
        )
        answer.update(_devices(driver))
    except Exception as problem:
        answer.update(error_of(problem))
        answer["library_version"] = _library_version()
    return answer


def _devices(driver: Driver) -> dict[str, Any]:
    found: list[tuple[dict[str, Any], dict[str, Any]]] = []
    failed: list[dict[str, Any]] = []
    count = int(driver.call("nvmlDeviceGetCount"))
    for index in range(min(count, _MOST_CARDS)):
        try:
            found.append(_device(driver, index))
        except Exception as problem:
            failed.append({"index": index, "pci_address": None, **error_of(problem)})
    hidden = [one for one in failed if one["error_code"] == NO_PERMISSION]
    if count and len(hidden) == count:
        return {key: hidden[0][key] for key in ("error_code", "error")}
    found.sort(key=lambda one: str(one[0]["pci_address"] or ""))
    if not failed:
        for place, (device, end) in enumerate(found):
            device["index"] = end["index"] = place
    ends = [end for _, end in found]
    return {
        "devices": [device for device, _ in found],
        "lost": [one for one in failed if one not in hidden],
        "hidden": hidden,
        "pairs": [
            _pair(driver, one, other)
            for place, one in enumerate(ends)
            for other in ends[place + 1 :]
        ],
    }


def _device(driver: Driver, index: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """A card, and what its pairs with others are made of."""
    handle = driver.call("nvmlDeviceGetHandleByIndex", index)
    driver.call("nvmlDeviceGetUUID", handle)  # a card without a name cannot be used
    device = card(driver, handle, index)
    if not device["uuid"]:
        raise ValueError("the card has no UUID")
    ends = links(driver, handle)
    device["nvlink"] = None if ends is None else bool(ends)
    address = device["pci_address"]
    return device, {"index": index, "handle": handle, "address": address, "links": ends}


def _pair(driver: Driver, one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    try:
        return pair(driver, one, other)
    except Exception:  # a card that is lost meanwhile
        unknown = dict.fromkeys(("nvlinks", "p2p", "topology"))
        return {"a": one["index"], "b": other["index"], **unknown}


def _version(text: str | None) -> str | None:
    """A version as drivers have them: what is none would be taken for a part of a command."""
    return text if text and re.match(r"\d+(\.\d+)*\Z", text) else None


def _cuda(version: object) -> str | None:
    known = number(version, 99_999, 1000)
    return None if known is None else f"{known // 1000}.{known % 1000 // 10}"


def _library_version() -> str | None:
    """The version in the name of the library file that is mapped into this process."""
    for line in (Tree().text("/proc/self/maps") or "").splitlines():
        match = re.search(r"/libnvidia-ml\.so\.(\d{3,}[0-9.]*)\s*\Z", line)
        if match:
            return match.group(1)
    return None
