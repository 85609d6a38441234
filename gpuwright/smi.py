"""What `nvidia-smi` prints, as the probe's own answer: pure, and total for any text.

XML entities are refused; nothing outside the text is read.
"""

from __future__ import annotations

import re
from typing import Any
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat
from xml.sax.saxutils import unescape

from gpuwright.onnode.cards import pci_address
from gpuwright.onnode.outcome import clean

UNKNOWN_ERROR = 999
_MOST_GPUS = 64
_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_NUMBER = re.compile(r"(-?\d{1,15}(?:\.\d{1,6})?)\s*([A-Za-z%]*)")
_UUID = re.compile(r"GPU-[0-9a-fA-F-]{8,60}")
_HANDLE = re.compile(
    r"device handle for GPU ?(?:(\d{1,2}): )?"
    r"([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]): ([^\n]{1,200})"
)
_LIBRARY = re.compile(r"NVML library version: (\d+(?:\.\d+)+)")
_NAMED = re.compile(
    r"<pid>(\d{1,9})</pid>\s*<type>[^<]{0,9}</type>\s*<process_name>([^<]{1,1000})</process_name>"
)
_CAPABILITY = re.compile(r"\d{1,2}\.\d")
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


def failed(code: int | None, error: str | None) -> dict[str, Any]:
    """An answer that knows nothing but why."""
    return {
        "error_code": code,
        "error": error,
        **dict.fromkeys(("driver_version", "cuda_version", "library_version")),
        **{key: [] for key in ("devices", "lost", "hidden", "pairs")},
    }


def answer(text: str, status: int | None) -> dict[str, Any]:
    """What `nvidia-smi -q -x` said, in the form of onnode.nvml.ask's answer.

    `status` is its exit status; its numbers are NVML's. None, or 137: it did not end.
    """
    found = failed(None, None)
    library = _LIBRARY.search(text)
    found["library_version"] = library[1] if library else None
    if status is None or status == 137:
        return {"hung": True}
    found["lost"] = [
        {
            "index": int(index) if index else None,
            "pci_address": pci_address(address),
            "error": clean(error.strip(), 200),
        }
        for index, address, error in _HANDLE.findall(text)[:_MOST_GPUS]
    ]
    try:
        root = xml_tree("\n".join(line for line in text.splitlines() if not _HANDLE.search(line)))
    except UnreadableXmlError as problem:
        if status == 0:
            found.update(error_code=-1, error=f"what nvidia-smi printed is no XML: {problem}")
        elif status != 6 and not found["lost"]:  # 6: no devices were found
            code = UNKNOWN_ERROR if status == 255 else status
            found.update(error_code=code, error=_said(text, status))
        return found
    # Since driver 610, module and library have versions of their own.
    found["driver_version"] = _version(root, "kmd_version", "driver_version")
    found["cuda_version"] = _version(root, "cuda_umd_version", "cuda_version")
    for number, gpu in enumerate(root.findall("gpu")[:_MOST_GPUS]):
        uuid = _word(gpu, "uuid")
        if uuid is None or not _UUID.fullmatch(uuid):
            place = pci_address(gpu.get("id") or "")
            error = uuid or "it has no UUID"
            found["lost"].append({"index": number, "pci_address": place, "error": error})
        else:
            found["devices"].append(_device(gpu, number, uuid))
    found["devices"].sort(key=lambda device: str(device["pci_address"] or ""))
    if not found["lost"]:
        for index, device in enumerate(found["devices"]):
            device["index"] = index
    return found


def _version(root: Element, *paths: str) -> str | None:
    """A version as drivers have them: what is none would be taken for a part of a command."""
    found = (_word(root, path) or "" for path in paths)
    return next((word for word in found if re.fullmatch(r"\d+(?:\.\d+)+", word)), None)


def _said(text: str, status: int) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = clean(lines[0], 300) if lines else "nothing"
    return f"nvidia-smi ended with status {status} and said: {first}"


def _device(gpu: Element, index: int, uuid: str) -> dict[str, Any]:
    device_id = _word(gpu, "pci/pci_device_id") or ""
    ids = re.fullmatch(r"(?:0x)?([0-9A-Fa-f]{4})([0-9A-Fa-f]{4})", device_id)
    return {
        "index": index,
        "minor": _whole(gpu, "minor_number"),
        "uuid": uuid,
        "pci_address": pci_address(_word(gpu, "pci/pci_bus_id") or gpu.get("id") or ""),
        "pci_id": f"{ids[2]}:{ids[1]}".lower() if ids else None,
        "name": _word(gpu, "product_name"),
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
        "vgpu": _VIRTUAL.get(_word(gpu, "gpu_virtualization_mode/virtualization_mode") or ""),
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
            "generation": _whole(gpu, "pci/pci_gpu_link_info/pcie_gen/current_link_gen"),
            "generation_max": _whole(gpu, "pci/pci_gpu_link_info/pcie_gen/max_link_gen"),
            "width": _whole(gpu, "pci/pci_gpu_link_info/link_widths/current_link_width"),
            "width_max": _whole(gpu, "pci/pci_gpu_link_info/link_widths/max_link_width"),
        },
        "throttle": _throttle(gpu),
        "temperature_c": _whole(gpu, "temperature/gpu_temp"),
    }


def _word(element: Element, *paths: str) -> str | None:
    """The text at the first of `paths` that says something; None for the words of "unknown"."""
    for path in paths:
        text = clean((element.findtext(path) or "").strip(), 200)
        unknown = text.strip("[]") in ("", "N/A", "Not Supported", "Unknown Error")
        if not unknown and not text.startswith(("Requested functionality", "Insufficient")):
            return text
    return None


def _number(element: Element, *paths: str) -> tuple[float, str] | None:
    for path in paths:
        match = _NUMBER.fullmatch(_word(element, path) or "")
        if match:
            return float(match[1]), match[2]
    return None


def _whole(element: Element, *paths: str) -> int | None:
    found = _number(element, *paths)
    return None if found is None else int(found[0])


def _bytes(element: Element, path: str) -> int | None:
    found = _number(element, path)
    if found is None or found[1] not in _UNITS or found[0] < 0:
        return None
    return int(found[0] * _UNITS[found[1]])


def _flag(element: Element, *paths: str) -> bool | None:
    words = {"Enabled": True, "Yes": True, "Active": True}
    words |= {"Disabled": False, "No": False, "Not Active": False}
    for path in paths:
        found = words.get(_word(element, path) or "")
        if found is not None:
            return found
    return None


def _power(gpu: Element) -> dict[str, float | None]:
    """Watts; since driver 530 under a name of their own, since 555 with two draws."""

    def watts(*names: str) -> float | None:
        places = [f"{part}/{name}" for part in _READINGS for name in names]
        found = _number(gpu, *places)
        return None if found is None else found[0]

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
    counts = [count for part in _UNCORRECTED if (count := _whole(volatile, part)) is not None]
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
        for instance in gpu.findall("mig_devices/mig_device")[:_MOST_GPUS]
    ]


def _processes(gpu: Element) -> list[dict[str, Any]] | None:
    """Compute processes, then those that only draw; None where the list is not given."""
    listed = gpu.find("processes")
    if listed is None or "N/A" in (listed.text or ""):
        return None
    found = []
    for entry in listed.findall("process_info")[:1000]:
        pid = _whole(entry, "pid")
        if pid is None or pid < 0:
            continue
        kind = "graphics" if (_word(entry, "type") or "C") == "G" else "compute"
        found.append(
            {
                "pid": pid,
                "used_bytes": _bytes(entry, "used_memory"),
                "kind": kind,
            }
        )
    return sorted(found, key=lambda one: str(one["kind"]))


def commands(text: str) -> dict[int, str]:
    """Names of processes as the kernel shortens them: the first 15 letters of a program's."""
    found = {}
    for pid, name in re.findall(_NAMED, text)[:1000]:
        found[int(pid)] = clean(unescape(name.strip()).split(" ")[0].rsplit("/", 1)[-1], 15)
    return found


def queried(text: str) -> list[dict[str, Any]]:
    """Rows of `--query-gpu` in the order that look.sh asks for; others are passed over."""
    found: list[dict[str, Any]] = []
    for line in text.splitlines()[:_MOST_GPUS]:
        cells = [cell.strip() for cell in line.split(",")]
        if (
            len(cells) < 8
            or not _UUID.fullmatch(cells[1])
            or not re.fullmatch(r"\d{1,2}", cells[0])
        ):
            continue
        # A product name may hold commas: cells count from both ends.
        total, free, capability = cells[-3:]
        ids = re.fullmatch(r"0x([0-9A-Fa-f]{4})([0-9A-Fa-f]{4})", cells[3])
        found.append(
            {
                "index": int(cells[0]),
                "uuid": cells[1],
                "pci_address": pci_address(cells[2]),
                "pci_id": f"{ids[2]}:{ids[1]}".lower() if ids else None,
                "name": clean(", ".join(cells[4:-3]), 200),
                "memory_total_bytes": int(total) << 20 if re.fullmatch(r"\d{1,9}", total) else None,
                "memory_free_bytes": int(free) << 20 if re.fullmatch(r"\d{1,9}", free) else None,
                "compute_capability": capability if _CAPABILITY.fullmatch(capability) else None,
            }
        )
    return found


def matrix(text: str) -> dict[tuple[int, int], str]:
    """The words between cards of `nvidia-smi topo`, by their numbers there; first below second."""
    found: dict[tuple[int, int], str] = {}
    columns: list[int] | None = None
    for line in text.splitlines()[:200]:
        # Its head is underlined, by escapes that the node made printable.
        words = re.sub(r"[\x1b?]\[\d*m", " ", line).split()
        if not words or not re.fullmatch(r"GPU\d{1,2}", words[0]):
            continue
        if columns is None:
            columns = [int(word[3:]) for word in words if re.fullmatch(r"GPU\d{1,2}", word)]
            continue
        row = int(words[0][3:])
        for column, word in zip(columns, words[1:], strict=False):
            if row < column:
                found[row, column] = clean(word, 10)
    return found


def links(text: str) -> dict[str, int]:
    """Active NVLinks by UUID, from `nvidia-smi nvlink -s`; cards without any are not listed."""
    found: dict[str, int] = {}
    uuid = None
    for line in text.splitlines()[:5000]:
        head = re.match(r"\s*GPU \d+: .*\(UUID: (GPU-[0-9a-fA-F-]{8,60})\)\s*\Z", line)
        if head:
            uuid = head[1]
            found[uuid] = 0
        elif uuid is not None and re.match(r"\s*Link \d+: \d+(?:\.\d+)? GB/s\s*\Z", line):
            found[uuid] += 1
    return found
