"""The node document of a node without a usable python3, from what onnode/look.sh printed there.

Files are read by the probe's own functions, so that both ways say the same. Total: any lines give
a document.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from gpuwright import smi
from gpuwright.captured import Capture, Captured, Output, read
from gpuwright.onnode import probe
from gpuwright.onnode.calls import LIBRARY_NOT_FOUND
from gpuwright.onnode.disks import mounted, mounts, unknown_disk
from gpuwright.onnode.driver import has_switches, library_version, loaded_module
from gpuwright.onnode.graphics import Cards
from gpuwright.onnode.kernel_log import printed
from gpuwright.onnode.listeners import ports
from gpuwright.onnode.machine import CONTAINERS, cpu, memory, system, systemd, virtualization
from gpuwright.onnode.nvml import LIBRARY
from gpuwright.onnode.outcome import clean, sentence
from gpuwright.onnode.tree import Tree

_SMI_SECONDS = 15.0
_TOPOLOGY = {
    "PIX": "single",
    "PXB": "multiple",
    "PHB": "hostbridge",
    "NODE": "node",
    "SYS": "system",
}
_P2P = {
    "OK": "ok",
    "CNS": "chipset_not_supported",
    "GNS": "gpu_not_supported",
    "TNS": "topology_not_supported",
    "DR": "disabled_by_regkey",
    "NS": "not_supported",
    "U": "unknown",
}


def document(lines: Iterable[str]) -> dict[str, Any]:
    """The node document. What only the probe can see is null, as where the probe cannot see it."""
    capture = read(lines)
    tree, notes = capture.tree, capture.notes
    found: dict[str, Any] = {name: probe.unknown(name) for name in probe.NAMES}
    python = re.search(r"Python (\d+(?:\.\d+)+)", capture.output("python3").text)
    version = python[1] if python else None
    notes.append(f"looked at by the node's shell alone; its python3: {version or 'none'}")
    if not capture.whole:
        notes.append("what the node printed ends early")

    def section(name: str, work: Callable[[], Any]) -> None:
        try:
            found[name] = work()
        except Exception as problem:
            notes.append(clean(f"{name}: {sentence(problem)}", 1000))

    section("os", lambda: {**system(tree), "architecture": capture.said("uname")})
    section("glibc", lambda: _glibc(capture))
    found["python"] = {"version": version, "executable": None}
    section("cpu", lambda: _cpu(tree))
    section("memory", lambda: memory(tree))
    section("systemd", lambda: systemd(tree))
    section("virtualization", lambda: virtualization(tree))
    section("filesystems", lambda: _filesystems(capture))
    section("disks", lambda: _disks(capture))
    section("ports", lambda: ports(tree))
    section("gpus", lambda: _gpus(capture, found["virtualization"] in CONTAINERS))
    section("driver", lambda: _driver(tree, found["gpus"]["cuda_version"]))
    found["clock"]["time"] = _whole(capture.said("date"))
    return {
        "schema": probe.SCHEMA,
        "by": "shell",
        "time": _whole(capture.said("date")),
        "seconds": None,
        "uid": _whole(capture.said("id")),
        **found,
        "notes": notes,
    }


def _whole(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"\d{1,12}", text) else None


def _cpu(tree: Tree) -> dict[str, Any]:
    """As the probe; only the node can count its threads where the kernel does not list them."""
    listed = tree.word("/sys/devices/system/cpu/online") is not None
    return cpu(tree) if listed else {**cpu(tree), "threads": None}


def _glibc(capture: Capture) -> str | None:
    output = capture.output("ldd")
    match = re.search(r"\(.*(?:GLIBC|GNU libc|GNU C Library).*\) (\d+\.\d+)", output.text)
    return match[1] if match and output.status == 0 else None


def _rooms(output: Output) -> dict[str, dict[str, Any]]:
    """Rows of `df -kPT` by mount: device, type, blocks of 1 KiB, used, free, share, mount."""
    found = {}
    for line in output.text.splitlines()[1:] if output.status == 0 else ():
        words = line.split(None, 6)
        if len(words) == 7 and re.fullmatch(r"\d{1,15} \d{1,15}", f"{words[2]} {words[4]}"):
            found[clean(words[6], 4000)] = {
                "type": clean(words[1], 60),
                "free_bytes": int(words[4]) * 1024,
                "total_bytes": int(words[2]) * 1024,
            }
    return found


def _filesystems(capture: Capture) -> list[dict[str, Any]] | None:
    """Each real filesystem of the mount table with its room; None where no table was printed."""
    if "/proc/self/mountinfo" not in capture.tree.files:
        return None
    rooms = _rooms(capture.output("df -kPT"))
    unknown = dict.fromkeys(("free_bytes", "total_bytes"))
    return [{**row, **unknown, **rooms.get(row["mount"], {})} for row in mounted(capture.tree)]


def _disks(capture: Capture) -> dict[str, Any]:
    """The filesystem of each path that was asked for."""
    table = mounts(capture.tree.text("/proc/self/mountinfo") or "")
    flags = {row["mount"]: {key: row[key] for key in ("read_only", "noexec")} for row in table}
    found = {}
    for path, output in capture.disks.items():
        found[path] = unknown_disk()
        for mount, room in _rooms(output).items():
            found[path].update({"mount": mount, **room, **flags.get(mount, {})})
    return found


def _driver(tree: Captured, cuda: str | None) -> dict[str, Any]:
    """What files that everybody may read tell of the driver."""
    shown = tree.text("/proc/driver/nvidia/version", 4096)
    module, flavour = loaded_module(shown or "")
    library = library_version(tree)
    unknown = probe.unknown("driver")
    return {
        **unknown,
        "loaded": shown is not None or tree.exists("/sys/module/nvidia"),
        "module_version": module,
        "flavour": flavour,
        "library_version": library,
        "agree": module == library if module and library else None,
        "cuda_version": cuda,
        "nouveau": "loaded" if tree.exists("/sys/module/nouveau") else None,
        "fabric_manager": {**unknown["fabric_manager"], "needed": has_switches(tree)},
    }


def _gpus(capture: Capture, container: bool) -> dict[str, Any]:
    tree = capture.tree
    cards = Cards(tree)
    cards.seconds = _SMI_SECONDS
    output = capture.output("nvidia-smi -q -x")
    answer: dict[str, Any] | None = None
    if output.status != 127:
        answer = smi.answer(output.text, output.status)
        for pid, name in smi.commands(output.text).items():
            tree.files.setdefault(f"/proc/{pid}/comm", name)
        _add_queried(answer, smi.queried(capture.output("nvidia-smi --query-gpu").text))
        answer["pairs"] = _pairs(capture, answer.get("devices") or [])
    elif cards.traces() or _has_library(tree):
        answer = _not_asked(tree)
    elif not capture.whole or not tree.word("/proc/sys/kernel/osrelease"):
        # Cut off, or a node without the tools to read a file: no sign that there is no card.
        return dict(probe.unknown("gpus"))
    log = capture.output("sh -c dmesg")
    logged = printed(log.text) if log.status == 0 and answer is not None else None
    return cards.document("nvidia-smi", answer, logged, container)


def _has_library(tree: Captured) -> bool:
    return any(path.rsplit("/", 1)[-1] == LIBRARY for path in tree.paths)


def _not_asked(tree: Captured) -> dict[str, Any]:
    """Without nvidia-smi: no driver where its library is not there either, else unknown."""
    error = "there is neither nvidia-smi nor a python3 to ask it with"
    return smi.failed(-1 if _has_library(tree) else LIBRARY_NOT_FOUND, error)


def _add_queried(answer: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Only `--query-gpu` tells the compute capability, which old drivers do not know, and, where
    a card is lost, the number of each other."""
    known = {row["uuid"]: row for row in rows}
    for device in answer.get("devices") or []:
        row = known.get(device["uuid"])
        if row is not None:
            device["compute_capability"] = row["compute_capability"]
            device["index"] = row["index"] if answer["lost"] else device["index"]


def _pairs(capture: Capture, devices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What stands between each two cards, and each card's `nvlink`."""
    topology = smi.matrix(capture.output("nvidia-smi topo -m").text)
    peers = smi.matrix(capture.output("nvidia-smi topo -p2p").text)
    linked = capture.output("nvidia-smi nvlink")
    active = smi.links(linked.text)
    for device in devices:
        if linked.status == 0:
            device["nvlink"] = active.get(device["uuid"], 0) > 0
    numbers = [device["index"] for device in devices]
    return [
        _pair(a, b, topology.get((a, b)), peers.get((a, b)))
        for place, a in enumerate(numbers)
        for b in numbers[place + 1 :]
    ]


def _pair(a: int, b: int, way: str | None, peer: str | None) -> dict[str, Any]:
    """What lies between cards that NVLinks connect is not printed."""
    links = re.fullmatch(r"NV(\d{1,2})", way or "")
    return {
        "a": a,
        "b": b,
        "nvlinks": int(links[1]) if links else None if way is None else 0,
        "p2p": _P2P.get(peer or ""),
        "topology": _TOPOLOGY.get(way or ""),
    }
