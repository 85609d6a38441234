"""What `nvidia-smi` prints, as the probe's own answer: pure, and total for any text."""

from __future__ import annotations

import re
from typing import Any
from xml.sax.saxutils import unescape

from gpuwright.onnode.cards import pci_address
from gpuwright.onnode.outcome import clean
from gpuwright.smi_xml import MOST_GPUS, UnreadableXmlError, card, version, word, xml_tree

UNKNOWN_ERROR = 999
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
        for index, address, error in _HANDLE.findall(text)[:MOST_GPUS]
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
    found["driver_version"] = version(root, "kmd_version", "driver_version")
    found["cuda_version"] = version(root, "cuda_umd_version", "cuda_version")
    for place, gpu in enumerate(root.findall("gpu")[:MOST_GPUS]):
        uuid = word(gpu, "uuid")
        if uuid is None or not _UUID.fullmatch(uuid):
            address = pci_address(gpu.get("id") or "")
            error = uuid or "it has no UUID"
            found["lost"].append({"index": place, "pci_address": address, "error": error})
        else:
            found["devices"].append(card(gpu, place, uuid))
    found["devices"].sort(key=lambda device: str(device["pci_address"] or ""))
    if not found["lost"]:
        for index, device in enumerate(found["devices"]):
            device["index"] = index
    return found


def _said(text: str, status: int) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = clean(lines[0], 300) if lines else "nothing"
    return f"nvidia-smi ended with status {status} and said: {first}"


def commands(text: str) -> dict[int, str]:
    """Names of processes as the kernel shortens them: the first 15 letters of a program's."""
    found = {}
    for pid, name in re.findall(_NAMED, text)[:1000]:
        found[int(pid)] = clean(unescape(name.strip()).split(" ")[0].rsplit("/", 1)[-1], 15)
    return found


def queried(text: str) -> list[dict[str, Any]]:
    """Rows of `--query-gpu` in the order that look.sh asks for; others are passed over."""
    found: list[dict[str, Any]] = []
    for line in text.splitlines()[:MOST_GPUS]:
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
        for column, cell in zip(columns, words[1:], strict=False):
            if row < column:
                found[row, column] = clean(cell, 10)
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
