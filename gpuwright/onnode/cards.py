"""What the driver says of one card; each value is None where it does not say, or cannot be true."""

from __future__ import annotations

import re
from typing import Any

from gpuwright.onnode.calls import (
    LOST,
    MOST_BYTES,
    NOT_SUPPORTED,
    Driver,
    code_of,
    number,
    switch,
    word,
)

_VIRTUALIZATION = ("none", "passthrough", "vgpu", "host_vgpu", "host_vsga")
_THROTTLE = (
    (0x2, "applications_clocks"),
    (0x4, "sw_power_cap"),
    (0x8, "hw_slowdown"),
    (0x10, "sync_boost"),
    (0x20, "sw_thermal"),
    (0x40, "hw_thermal"),
    (0x80, "hw_power_brake"),
    (0x100, "display_clocks"),
)
_UNCORRECTED, _VOLATILE = 1, 0
_ON_THE_CARD = 0
_MOST_INSTANCES = 64
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


def card(driver: Driver, handle: Any, index: int) -> dict[str, Any]:
    """Everything of one card but its links. A lost card is raised."""
    pci = driver.ask("nvmlDeviceGetPciInfo", handle)
    identity = number(getattr(pci, "pciDeviceId", None), 0xFFFFFFFF)
    memory = driver.ask("nvmlDeviceGetMemoryInfo", handle)
    mig, mig_pending = driver.pair("nvmlDeviceGetMigMode", handle)
    mode = number(driver.ask("nvmlDeviceGetVirtualizationMode", handle), 4)
    return {
        "index": index,
        "minor": number(driver.ask("nvmlDeviceGetMinorNumber", handle), 1 << 20),
        "uuid": driver.text("nvmlDeviceGetUUID", handle),
        "pci_address": bus_address(pci),
        "pci_id": None if identity is None else f"{identity & 0xFFFF:04x}:{identity >> 16:04x}",
        "name": driver.text("nvmlDeviceGetName", handle),
        "compute_capability": _capability(driver, handle),
        "memory_total_bytes": number(getattr(memory, "total", None), MOST_BYTES),
        "memory_free_bytes": number(getattr(memory, "free", None), MOST_BYTES),
        "memory_reserved_bytes": _reserved(driver, handle),
        "processes": _processes(driver, handle),
        "display_attached": switch(driver.ask("nvmlDeviceGetDisplayMode", handle)),
        "display_active": switch(driver.ask("nvmlDeviceGetDisplayActive", handle)),
        "mig": {
            "enabled": switch(mig),
            "pending": switch(mig_pending),
            "instances": _instances(driver, handle) if mig == 1 else None,
        },
        "vgpu": None if mode is None else _VIRTUALIZATION[mode],
        "ecc": _ecc(driver, handle),
        "repair": _repair(driver, handle),
        "persistence": switch(driver.ask("nvmlDeviceGetPersistenceMode", handle)),
        "power": _power(driver, handle),
        "pcie": {
            "generation": _link(driver.ask("nvmlDeviceGetCurrPcieLinkGeneration", handle)),
            "generation_max": _link(driver.ask("nvmlDeviceGetMaxPcieLinkGeneration", handle)),
            "width": _link(driver.ask("nvmlDeviceGetCurrPcieLinkWidth", handle)),
            "width_max": _link(driver.ask("nvmlDeviceGetMaxPcieLinkWidth", handle)),
        },
        "throttle": _throttle(driver, handle),
        "temperature_c": number(
            driver.ask("nvmlDeviceGetTemperature", handle, _ON_THE_CARD), 200, -100
        ),
    }


def bus_address(pci: Any) -> str | None:
    """Where the structure says that a card is."""
    try:
        return pci_address(word(pci.busId) or "")
    except (AttributeError, ValueError):  # no structure, or no UTF-8 in it
        return None


def pci_address(bus_id: str) -> str | None:
    """NVML's `00000000:01:00.0` as the kernel writes it, `0000:01:00.0`."""
    match = re.match(r"([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})\.([0-7])\Z", bus_id)
    if not match:
        return None
    domain, bus, device, function = match.groups()
    return f"{int(domain, 16):04x}:{bus}:{device}.{function}".lower()


def _capability(driver: Driver, handle: Any) -> str | None:
    major, minor = driver.pair("nvmlDeviceGetCudaComputeCapability", handle)
    known = number(major, 99, 1) is not None and number(minor, 9) is not None
    return f"{major}.{minor}" if known else None


def _reserved(driver: Driver, handle: Any) -> int | None:
    """What the driver keeps for itself; only newer ones say so."""
    version = getattr(driver.nvml, "nvmlMemory_v2", None)
    memory = driver.ask("nvmlDeviceGetMemoryInfo", handle, version) if version else None
    return number(getattr(memory, "reserved", None), MOST_BYTES)


def _processes(driver: Driver, handle: Any) -> list[dict[str, Any]] | None:
    """Compute processes, then those that draw only; None if either cannot be listed.

    A process that does both is in both of NVML's lists, with the same memory.
    """
    found: list[dict[str, Any]] = []
    for kind, names in _RUNNING.items():
        running = _running(driver, handle, names)
        if running is None:
            return None
        known = {one["pid"] for one in found if one["kind"] != kind}
        found += [
            {"pid": int(one.pid), "used_bytes": number(one.usedGpuMemory, MOST_BYTES), "kind": kind}
            for one in running
            if int(one.pid) not in known
        ]
    return found


def _running(driver: Driver, handle: Any, names: tuple[str, ...]) -> Any:
    """One of NVML's lists of processes; None where no version of the call gives it."""
    for name in names:
        try:
            return driver.call(name, handle)
        except Exception as problem:
            code = code_of(problem)
            if code == LOST:
                raise
            if code == NOT_SUPPORTED and "Graphics" in name:
                return []  # a card that cannot draw
    return None


def _instances(driver: Driver, handle: Any) -> list[dict[str, Any]] | None:
    """The MIG instances of a card that is divided into such."""
    most = number(driver.ask("nvmlDeviceGetMaxMigDeviceCount", handle), _MOST_INSTANCES)
    if most is None:
        return None
    found = []
    for place in range(most):
        instance = driver.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, place)
        if instance is None:
            continue  # places need not be filled
        memory = driver.ask("nvmlDeviceGetMemoryInfo", instance)
        found.append(
            {
                "uuid": driver.text("nvmlDeviceGetUUID", instance),
                "name": driver.text("nvmlDeviceGetName", instance),
                "memory_total_bytes": number(getattr(memory, "total", None), MOST_BYTES),
            }
        )
    return found


def _ecc(driver: Driver, handle: Any) -> dict[str, Any]:
    enabled, pending = driver.pair("nvmlDeviceGetEccMode", handle)
    errors = driver.ask("nvmlDeviceGetTotalEccErrors", handle, _UNCORRECTED, _VOLATILE)
    return {
        "enabled": switch(enabled),
        "pending": switch(pending),
        "uncorrected": number(errors, 1 << 60),
    }


def _repair(driver: Driver, handle: Any) -> dict[str, Any]:
    """Rows (Ampere and newer) or pages (before) of memory that are to be taken out of use."""
    rows = driver.ask("nvmlDeviceGetRemappedRows", handle)
    if isinstance(rows, (list, tuple)) and len(rows) > 3:
        return {"pending": switch(rows[2]), "failed": switch(rows[3])}
    pending = driver.ask("nvmlDeviceGetRetiredPagesPendingStatus", handle)
    return {"pending": switch(pending), "failed": None}


def _power(driver: Driver, handle: Any) -> dict[str, Any]:
    least, most = driver.pair("nvmlDeviceGetPowerManagementLimitConstraints", handle)
    return {
        "draw_w": _watts(driver.ask("nvmlDeviceGetPowerUsage", handle)),
        "limit_w": _watts(driver.ask("nvmlDeviceGetPowerManagementLimit", handle)),
        "default_w": _watts(driver.ask("nvmlDeviceGetPowerManagementDefaultLimit", handle)),
        "min_w": _watts(least),
        "max_w": _watts(most),
    }


def _watts(milliwatts: object) -> float | None:
    known = number(milliwatts, 100_000_000)
    return None if known is None else known / 1000


def _link(value: object) -> int | None:
    return number(value, 64, 1)


def _throttle(driver: Driver, handle: Any) -> list[str] | None:
    """Why the clocks are lower than they could be; being idle is no reason to name."""
    bits = driver.ask(
        (
            "nvmlDeviceGetCurrentClocksThrottleReasons",
            "nvmlDeviceGetCurrentClocksEventReasons",
        ),
        handle,
    )
    return [name for bit, name in _THROTTLE if bits & bit] if isinstance(bits, int) else None
