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

from gpuwright.onnode.outcome import clean
from gpuwright.onnode.tree import Tree

LIBRARY = "libnvidia-ml.so.1"
UNUSUAL_PLACES = ("/usr/lib/wsl/lib", "/run/opengl-driver/lib")
"""Where the library lies on WSL and NixOS, outside the linker's own paths."""
_USUAL_PLACES = ("/usr/lib", "/usr/lib64", "/lib", "/usr/local/lib")

LOST = 15
NOT_FOUND = 6
NOT_SUPPORTED = 3
_NO_SUCH_LINK = 2
"""NVML's "invalid argument": the card has fewer links."""
_MOST_LINKS = 36
_RUNNING = {
    "compute": (
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetComputeRunningProcesses_v2",
    ),
    "graphics": (
        "nvmlDeviceGetGraphicsRunningProcesses_v3",
        "nvmlDeviceGetGraphicsRunningProcesses_v2",
    ),
}


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


def ask(carried: str | None) -> dict[str, object]:
    """Everything about every device, or the first error.

    Returns {"error_code", "error", "driver_version", "cuda_version", "library_version",
    "devices", "lost"}; error_code is NVML's number, -1 for an error that has none.
    """
    answer: dict[str, object] = {
        "error_code": None,
        "error": None,
        "driver_version": None,
        "cuda_version": None,
        "library_version": None,
        "devices": [],
        "lost": [],
    }
    try:
        nvml = load(carried)
    except Exception as problem:
        answer.update(error_code=-1, error=clean(f"pynvml does not load: {problem}"))
        return answer
    try:
        nvml.nvmlInit()
    except Exception as problem:
        answer.update(_error(problem))
        answer["library_version"] = _library_version()
        return answer
    answer["library_version"] = _library_version()
    try:
        answer["driver_version"] = _word(_or_none(nvml.nvmlSystemGetDriverVersion))
        answer["cuda_version"] = _cuda(
            _or_none(nvml.nvmlSystemGetCudaDriverVersion_v2)
            or _or_none(nvml.nvmlSystemGetCudaDriverVersion)
        )
        answer.update(_devices(nvml))
    except Exception as problem:
        answer.update(_error(problem))
    return answer


def _devices(nvml: Any) -> dict[str, object]:
    found: list[dict[str, Any]] = []
    lost: list[str] = []
    for number in range(int(nvml.nvmlDeviceGetCount())):
        try:
            found.append(_device(nvml, nvml.nvmlDeviceGetHandleByIndex(number), number))
        except Exception as problem:
            error = _error(problem)
            if error["error_code"] not in (LOST, NOT_FOUND):
                raise
            lost.append(f"GPU {number}: {error['error']}")
    found.sort(key=lambda device: str(device["pci_address"] or ""))
    if not lost:
        for index, device in enumerate(found):
            device["index"] = index
    return {"devices": found, "lost": lost}


def _device(nvml: Any, handle: Any, number: int) -> dict[str, object]:
    """One device; what an old driver or an odd card cannot say is None."""
    uuid = _word(nvml.nvmlDeviceGetUUID(handle))  # a lost card fails here, and is no card
    pci = _or_none(nvml.nvmlDeviceGetPciInfo, handle)
    capability = _or_none(nvml.nvmlDeviceGetCudaComputeCapability, handle)
    memory = _or_none(nvml.nvmlDeviceGetMemoryInfo, handle)
    return {
        "index": number,
        "uuid": uuid,
        "pci_address": None if pci is None else pci_address(_word(pci.busId) or ""),
        "pci_id": None
        if pci is None
        else f"{pci.pciDeviceId & 0xFFFF:04x}:{pci.pciDeviceId >> 16:04x}",
        "name": _word(_or_none(nvml.nvmlDeviceGetName, handle)),
        "compute_capability": None if capability is None else "{}.{}".format(*capability),
        "memory_total_bytes": None if memory is None else int(memory.total),
        "memory_free_bytes": None if memory is None else int(memory.free),
        "nvlink": _nvlink(nvml, handle),
        "processes": _processes(nvml, handle),
    }


def _processes(nvml: Any, handle: Any) -> list[dict[str, Any]] | None:
    """Compute processes, then those that draw only; None if either cannot be listed.

    A process that does both is in both of NVML's lists, with the same memory.
    """
    found: list[dict[str, Any]] = []
    for kind in ("compute", "graphics"):
        running = _running(nvml, handle, kind)
        if running is None:
            return None
        known = {one["pid"] for one in found if one["kind"] != kind}
        found += [
            {
                "pid": int(one.pid),
                "used_bytes": None if one.usedGpuMemory is None else int(one.usedGpuMemory),
                "kind": kind,
            }
            for one in running
            if int(one.pid) not in known
        ]
    return found


def _running(nvml: Any, handle: Any, kind: str) -> Any:
    """One of NVML's lists of processes; None where no version of the call gives it."""
    for name in _RUNNING[kind]:
        call = getattr(nvml, name, None)
        try:
            if call is not None:
                return call(handle)
        except Exception as problem:
            code = _error(problem)["error_code"]
            if code == LOST:
                raise
            if code == NOT_SUPPORTED and kind == "graphics":
                return []  # a card that cannot draw
    return None


def _nvlink(nvml: Any, handle: Any) -> bool | None:
    """Whether any NVLink of the card is active; None if it cannot be told."""
    known = True
    for link in range(_MOST_LINKS):
        try:
            if nvml.nvmlDeviceGetNvLinkState(handle, link):
                return True
        except Exception as problem:
            code = _error(problem)["error_code"]
            if code == LOST:
                raise
            known = known and code in (NOT_SUPPORTED, _NO_SUCH_LINK)
    return False if known else None


def _or_none(call: Any, *arguments: object) -> Any:
    """What a call says; None if this driver or card does not know it. A lost card is raised."""
    try:
        return call(*arguments)
    except Exception as problem:
        if _error(problem)["error_code"] == LOST:
            raise
        return None


def _error(problem: BaseException) -> dict[str, object]:
    code = getattr(problem, "value", None)
    known = isinstance(code, int)
    text = str(problem) if known else f"{type(problem).__name__}: {problem}"
    return {"error_code": code if known else -1, "error": clean(text, 300)}


def _word(text: object) -> str | None:
    """Old pynvml and hostile firmware give bytes; a name may be no UTF-8."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    return clean(text, 200).strip() if isinstance(text, str) else None


def _cuda(number: object) -> str | None:
    return f"{number // 1000}.{number % 1000 // 10}" if isinstance(number, int) else None


def pci_address(bus_id: str) -> str | None:
    """NVML's `00000000:01:00.0` as the kernel writes it, `0000:01:00.0`."""
    match = re.match(r"([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})\.([0-7])\Z", bus_id)
    if not match:
        return None
    domain, bus, device, function = match.groups()
    return f"{int(domain, 16):04x}:{bus}:{device}.{function}".lower()


def _library_version() -> str | None:
    """The version in the name of the library file that is mapped into this process."""
    for line in (Tree().text("/proc/self/maps") or "").splitlines():
        match = re.search(r"/libnvidia-ml\.so\.(\d{3,}[0-9.]*)\s*\Z", line)
        if match:
            return match.group(1)
    return None
