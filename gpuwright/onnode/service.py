"""One systemd service: its state, the files it is made of, and its process."""

from __future__ import annotations

import os
import re
import time
from typing import Any

from gpuwright.onnode.children import Child, spawn
from gpuwright.onnode.outcome import clean
from gpuwright.onnode.tree import Tree

_PROPERTIES = (
    "LoadState,ActiveState,SubState,UnitFileState,MainPID,NeedDaemonReload,Result,NRestarts,"
    "ControlGroup,FragmentPath,DropInPaths"
)
_REMEMBERED = "GPUWRIGHT_PLAN"


def ask_systemd(unit: str) -> Child | None:
    """Start the one question to systemd; it answers while other things are read."""
    return spawn(["systemctl", "show", "--no-pager", f"--property={_PROPERTIES}", unit], 10)


def properties(text: str) -> dict[str, str]:
    found = {}
    for line in text.splitlines():
        name, sign, content = line.partition("=")
        if sign:
            found[name] = clean(content, 20000)
    return found


def state(unit: str, shown: dict[str, str]) -> dict[str, Any]:
    """What systemd says of a unit; None for each word it did not say."""

    def number(name: str) -> int | None:
        return int(shown[name]) if shown.get(name, "").isdigit() else None

    reload = shown.get("NeedDaemonReload")
    return {
        "unit": unit,
        "load": shown.get("LoadState"),
        "active": shown.get("ActiveState"),
        "sub": shown.get("SubState"),
        "enabled": shown.get("UnitFileState") or None,
        "main_pid": number("MainPID"),
        "need_daemon_reload": None if reload is None else reload == "yes",
        "result": shown.get("Result"),
        "restarts": number("NRestarts"),
        "fragment": next(iter(_paths(shown.get("FragmentPath", ""))), None),
        "drop_ins": _paths(shown["DropInPaths"]) if "DropInPaths" in shown else None,
    }


def _paths(text: str) -> list[str]:
    """systemctl's list of paths; a blank in a name is written `\\x20`."""
    unescaped = (
        re.sub(r"\\x([0-9a-f]{2})", lambda match: chr(int(match.group(1), 16)), word)
        for word in text.split()
    )
    return [clean(word, 4000) for word in unescaped]


def environment(data: bytes, name: str = _REMEMBERED) -> dict[str, str]:
    """That one variable of a process's environment; others may be secrets and are not read."""
    needle = name.encode() + b"="
    for entry in data.split(b"\0"):
        if entry.startswith(needle):
            return {name: clean(entry[len(needle) :].decode("utf-8", "replace"), 200)}
    return {}


def started_at(tree: Tree, pid: int) -> float | None:
    """When a process started, as Unix time: comparable with a file's modification time."""
    ticks = re.match(r"\d+ \(.*\)((?: \S+){20})", tree.text(f"/proc/{pid}/stat") or "", re.DOTALL)
    if not ticks or not ticks.group(1).split()[19].isdigit():
        return None
    if tree.is_node:
        # More exact than /proc/stat's btime, which has whole seconds.
        booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    else:
        whole = re.search(r"^btime (\d+)$", tree.text("/proc/stat") or "", re.MULTILINE)
        if not whole:
            return None
        booted = float(whole.group(1))
    return round(booted + int(ticks.group(1).split()[19]) / os.sysconf("SC_CLK_TCK"), 2)


def process(tree: Tree, pid: int) -> dict[str, Any]:
    path = tree.link(f"/proc/{pid}/exe")
    try:
        inode: int | None = os.stat(tree.at(f"/proc/{pid}/exe")).st_ino
    except OSError:
        inode = None
    try:
        owner: int | None = os.stat(tree.at(f"/proc/{pid}")).st_uid
    except OSError:
        owner = None
    return {
        "started_at": started_at(tree, pid),
        "environment": environment(tree.data(f"/proc/{pid}/environ", 1 << 20) or b""),
        "exe": {"path": clean(path), "inode": inode} if path else None,
        "uid": owner,
    }


def pids(tree: Tree, group: str | None) -> list[int]:
    """Every process in a unit's control group and in the groups below it, sorted.

    The hierarchy is the unified one, or where that is mounted beside the old ones, or systemd's
    own among the old ones.
    """
    found: set[int] = set()
    if not group or not group.startswith("/") or ".." in group.split("/") or group == "/":
        return []
    for mount in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd"):
        for place, _, _ in os.walk(tree.at(mount + group)):
            for word in (Tree().text(f"{place}/cgroup.procs") or "").split():
                found.update([int(word)] if word.isdigit() else [])
        if found:
            break
    return sorted(found)


NO_PROCESS: dict[str, Any] = {"started_at": None, "environment": {}, "exe": None, "uid": None}
