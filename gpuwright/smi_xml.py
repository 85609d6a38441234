"""One card of `nvidia-smi -q -x` as the probe tells it: pure, and total for any text.

XML entities are refused; nothing outside the text is read.
"""

from __future__ import annotations

import re
from typing import Any
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from gpuwright.onnode.calls import MOST_BYTES, number
from gpuwright.onnode.cards import pci_address
from gpuwright.onnode.outcome import clean

MOST_GPUS = 64
_MOST_WATTS = 100_000
_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_NUMBER = re.compile(r"(-?\d{1,15}(?:\.\d{1,6})?)\s*([A-Za-z%]*)", re.ASCII)
_THROTTLES = {
    "applications_clocks_setting": "applications_clocks",
    "sw_power_cap": "sw_power_cap",
    "hw_slowdown": "hw_slowdown",
    "sync_boost": "sync_boost",
    "sw_thermal_slowdown": "sw_thermal",
    "hw_thermal_slowdown": "hw_thermal",
    "hw_power_brake_slowdown": "hw_power_brake",
    "display_clocks_setting": "display_clocks",
}
_UNCORRECTED = (
    "sram_uncorrectable",
    "sram_uncorrectable_parity",
    "sram_uncorrectable_secded",
    "dram_uncorrectable",
    "double_bit/total",
)
_PENDING = ("pending_retirement", "pending_blacklist")
_LINK = "pci/pci_gpu_link_info"
_READINGS = ("gpu_power_readings", "power_readings")
_VIRTUAL = {
    "None": "none",
    "Pass-Through": "passthrough",
    "VGPU": "vgpu",
    "Host VGPU": "host_vgpu",
    "Host VSGA": "host_vsga",
}


class UnreadableXmlError(ValueError):
    """The text is no XML that nvidia-smi would print."""


def xml_tree(text: str) -> Element:
    """The root element; UnreadableXmlError for anything else, and for declared entities."""
    builder = TreeBuilder()
    parser = expat.ParserCreate()
    depth = 0

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > 50:
            raise UnreadableXmlError("nested too deeply")
        builder.start(tag, attributes)

    def end(tag: str) -> None:
        nonlocal depth
        depth -= 1
        builder.end(tag)

    def refuse(*_: object) -> None:
        raise UnreadableXmlError("it declares entities")

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = builder.data
    parser.EntityDeclHandler = refuse
    try:
        parser.Parse(text[text.find("<?xml") :] if "<?xml" in text else text, True)
    except expat.ExpatError as problem:
        raise UnreadableXmlError(str(problem)) from None
    root: Element = builder.close()
    return root


def version(root: Element, *paths: str) -> str | None:
    """A version as drivers have them: what is none would be taken for a part of a command."""
    found = (word(root, path) or "" for path in paths)
    return next((word for word in found if re.fullmatch(r"\d+(?:\.\d+)+", word)), None)


def card(gpu: Element, index: int, uuid: str) -> dict[str, Any]:
    device_id = word(gpu, "pci/pci_device_id") or ""
    ids = re.fullmatch(r"(?:0x)?([0-9A-Fa-f]{4})([0-9A-Fa-f]{4})", device_id)
    return {
        "index": index,
        "minor": _whole(gpu, "minor_number", 1 << 20),
        "uuid": uuid,
        "pci_address": pci_address(word(gpu, "pci/pci_bus_id") or gpu.get("id") or ""),
        "pci_id": f"{ids[2]}:{ids[1]}".lower() if ids else None,
        "name": word(gpu, "product_name"),
        "compute_capability": None,
        "memory_total_bytes": _bytes(gpu, "fb_memory_usage/total"),
        "memory_free_bytes": _bytes(gpu, "fb_memory_usage/free"),
        "memory_reserved_bytes": _bytes(gpu, "fb_memory_usage/reserved"),
        "nvlink": None,
        "processes": _processes(gpu),
        "display_attached": _flag(gpu, "display_attached", "display_mode"),
        "display_active": _flag(gpu, "display_active"),
        "mig": {
            "enabled": _flag(gpu, "mig_mode/current_mig"),
            "pending": _flag(gpu, "mig_mode/pending_mig"),
            "instances": _instances(gpu),
        },
        "vgpu": _VIRTUAL.get(word(gpu, "gpu_virtualization_mode/virtualization_mode") or ""),
        "ecc": {
            "enabled": _flag(gpu, "ecc_mode/current_ecc"),
            "pending": _flag(gpu, "ecc_mode/pending_ecc"),
            "uncorrected": _uncorrected(gpu),
        },
        "repair": {
            "pending": _flag(
                gpu, "remapped_rows/remapped_row_pending", *(f"retired_pages/{p}" for p in _PENDING)
            ),
            "failed": _flag(gpu, "remapped_rows/remapped_row_failure"),
        },
        "persistence": _flag(gpu, "persistence_mode"),
        "power": _power(gpu),
        "pcie": {
            "generation": _whole(gpu, f"{_LINK}/pcie_gen/current_link_gen", 64, 1),
            "generation_max": _whole(gpu, f"{_LINK}/pcie_gen/max_link_gen", 64, 1),
            "width": _whole(gpu, f"{_LINK}/link_widths/current_link_width", 64, 1),
            "width_max": _whole(gpu, f"{_LINK}/link_widths/max_link_width", 64, 1),
        },
        "throttle": _throttle(gpu),
        "temperature_c": _whole(gpu, "temperature/gpu_temp", 200, -100),
    }


def word(element: Element, *paths: str) -> str | None:
    """The text at the first of `paths` that says something; None for the words of "unknown"."""
    for path in paths:
        text = clean((element.findtext(path) or "").strip(), 200)
        unknown = text.strip("[]") in ("", "N/A", "Not Supported", "Unknown Error")
        if not unknown and not text.startswith(("Requested functionality", "Insufficient")):
            return text
    return None


def _number(element: Element, *paths: str) -> tuple[float, str] | None:
    for path in paths:
        match = _NUMBER.fullmatch(word(element, path) or "")
        if match:
            return float(match[1]), match[2]
    return None


def _whole(element: Element, path: str, most: int, least: int = 0) -> int | None:
    found = _number(element, path)
    return None if found is None else number(int(found[0]), most, least)


def _bytes(element: Element, path: str) -> int | None:
    found = _number(element, path)
    if found is None or found[1] not in _UNITS:
        return None
    return number(int(found[0] * _UNITS[found[1]]), MOST_BYTES)


def _flag(element: Element, *paths: str) -> bool | None:
    words = {"Enabled": True, "Yes": True, "Active": True}
    words |= {"Disabled": False, "No": False, "Not Active": False}
    for path in paths:
        found = words.get(word(element, path) or "")
        if found is not None:
            return found
    return None


def _power(gpu: Element) -> dict[str, float | None]:
    """Watts; since driver 530 under a name of their own, since 555 with two draws."""

    def watts(*names: str) -> float | None:
        places = [f"{part}/{name}" for part in _READINGS for name in names]
        found = _number(gpu, *places)
        return found[0] if found is not None and 0 <= found[0] <= _MOST_WATTS else None

    return {
        "draw_w": watts("power_draw", "average_power_draw", "instant_power_draw"),
        "limit_w": watts("requested_power_limit", "power_limit", "current_power_limit"),
        "default_w": watts("default_power_limit"),
        "min_w": watts("min_power_limit"),
        "max_w": watts("max_power_limit"),
    }


def _throttle(gpu: Element) -> list[str] | None:
    """Why clocks are below what was asked for; the element's name changed with driver 535."""
    for name in ("clocks_event_reason", "clocks_throttle_reason"):
        reasons = gpu.find(f"{name}s")
        if reasons is not None:
            return [
                word
                for part, word in _THROTTLES.items()
                if _flag(reasons, f"{name}_{part}") is True
            ]
    return None


def _uncorrected(gpu: Element) -> int | None:
    """Uncorrected errors since the driver was loaded, in whichever parts this driver counts."""
    volatile = gpu.find("ecc_errors/volatile")
    if volatile is None:
        return None
    counts = [
        count for part in _UNCORRECTED if (count := _whole(volatile, part, 1 << 60)) is not None
    ]
    return sum(counts) if counts else None


def _instances(gpu: Element) -> list[dict[str, Any]] | None:
    """MIG devices; nvidia-smi's XML does not name them."""
    if not _flag(gpu, "mig_mode/current_mig"):
        return None
    return [
        {
            "uuid": None,
            "name": None,
            "memory_total_bytes": _bytes(instance, "fb_memory_usage/total"),
        }
        for instance in gpu.findall("mig_devices/mig_device")[:MOST_GPUS]
    ]


def _processes(gpu: Element) -> list[dict[str, Any]] | None:
    """Compute processes, then those that only draw; None where the list is not given."""
    listed = gpu.find("processes")
    if listed is None or "N/A" in (listed.text or ""):
        return None
    found = []
    for entry in listed.findall("process_info")[:1000]:
        pid = _whole(entry, "pid", 1 << 31)
        if pid is None:
            continue
        kind = "graphics" if (word(entry, "type") or "C") == "G" else "compute"
        found.append(
            {
                "pid": pid,
                "used_bytes": _bytes(entry, "used_memory"),
                "kind": kind,
            }
        )
    return sorted(found, key=lambda one: str(one["kind"]))
