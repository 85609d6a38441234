"""What the management library would say on the rig of a node document."""

from collections.abc import Iterator, Mapping
from typing import Any

from gpuwright.onnode.cards import _THROTTLE as THROTTLE
from gpuwright.onnode.pairs import _P2P as P2P
from gpuwright.onnode.pairs import _TOPOLOGY as TOPOLOGY
from tests.nvml.rigs import bridge, device, says, scenario

_MODES = ("none", "passthrough", "vgpu", "host_vgpu", "host_vsga")
_UNKNOWN_BYTES = (1 << 64) - 1


def scenario_of(document: Mapping[str, Any], capability: str = "7.5") -> str:
    """The stand-in's scenario; `capability` is that of cards whose own is not told."""
    gpus = document["gpus"]
    cuda = [int(part) for part in (gpus["cuda_version"] or "0.0").split(".")]
    lines = [line for gpu in gpus["devices"] for line in _card(gpu, capability)]
    for pair in gpus["pairs"]:
        lines += list(_pair(pair))
    return scenario(*lines, driver=gpus["driver_version"], cuda=cuda[0] * 1000 + cuda[1] * 10)


def _card(gpu: Mapping[str, Any], capability: str) -> Iterator[str]:
    number = gpu["index"]
    vendor, _, identity = gpu["pci_id"].partition(":")
    domain, _, rest = gpu["pci_address"].partition(":")
    yield device(
        number,
        f"{int(domain, 16):08X}:{rest.upper()}",
        f"{identity}{vendor}",
        gpu["name"],
        gpu["compute_capability"] or capability,
        gpu["memory_total_bytes"] or 0,
        gpu["memory_free_bytes"] or 0,
    )
    if gpu["memory_total_bytes"] is None:
        yield f"error nvmlDeviceGetMemoryInfo {number} 3"
        yield f"error nvmlDeviceGetMemoryInfo_v2 {number} 3"
    calls: dict[str, Any] = {
        "MinorNumber": gpu["minor"],
        "DisplayMode": gpu["display_attached"],
        "DisplayActive": gpu["display_active"],
        "PersistenceMode": gpu["persistence"],
        "MemoryInfo_v2": gpu["memory_reserved_bytes"],
        "PowerUsage": _milli(gpu["power"]["draw_w"]),
        "PowerManagementLimit": _milli(gpu["power"]["limit_w"]),
        "PowerManagementDefaultLimit": _milli(gpu["power"]["default_w"]),
        "PowerManagementLimitConstraints": _both(
            _milli(gpu["power"]["min_w"]), _milli(gpu["power"]["max_w"])
        ),
        "CurrPcieLinkGeneration": gpu["pcie"]["generation"],
        "MaxPcieLinkGeneration": gpu["pcie"]["generation_max"],
        "CurrPcieLinkWidth": gpu["pcie"]["width"],
        "MaxPcieLinkWidth": gpu["pcie"]["width_max"],
        "VirtualizationMode": _MODES.index(gpu["vgpu"]) if gpu["vgpu"] else None,
        "MigMode": _both(gpu["mig"]["enabled"], gpu["mig"]["pending"]),
        "EccMode": _both(gpu["ecc"]["enabled"], gpu["ecc"]["pending"]),
        "TotalEccErrors": gpu["ecc"]["uncorrected"],
        "Temperature": gpu["temperature_c"],
        "CurrentClocksThrottleReasons": sum(
            bit for bit, word in THROTTLE if word in (gpu["throttle"] or ())
        ),
    }
    repair = gpu["repair"]
    if repair["failed"] is not None:
        calls["RemappedRows"] = (0, 0, repair["pending"], repair["failed"])
    else:
        calls["RetiredPagesPendingStatus"] = repair["pending"]
    if gpu["mig"]["instances"]:
        calls["MaxMigDeviceCount"] = 7
    known = {name: value for name, value in calls.items() if value is not None}
    yield from (line.replace("True", "1").replace("False", "0") for line in says(number, **known))
    for place, instance in enumerate(gpu["mig"]["instances"] or ()):
        yield f"instance {number} MIG-{place}|{gpu['name']} MIG|{instance['memory_total_bytes']}"
    for process in gpu["processes"] or ():
        call = "process" if process["kind"] == "compute" else "graphics"
        used = _UNKNOWN_BYTES if process["used_bytes"] is None else process["used_bytes"]
        yield f"{call} {number} {process['pid']} {used}"


def _pair(pair: Mapping[str, Any]) -> Iterator[str]:
    a, b = pair["a"], pair["b"]
    if pair["nvlinks"]:
        yield from bridge(a, b, pair["nvlinks"])
    if pair["p2p"] is not None:
        yield f"p2p {a} {b} {P2P.index(pair['p2p'])}"
    levels = {word: level for level, word in TOPOLOGY.items()}
    if pair["topology"] is not None:
        yield f"topology {a} {b} {levels[pair['topology']]}"


def _milli(watts: float | None) -> int | None:
    return None if watts is None else round(watts * 1000)


def _both(one: object, other: object) -> tuple[object, object] | None:
    return None if one is None or other is None else (one, other)
