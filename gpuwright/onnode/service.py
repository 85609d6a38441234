"""One systemd service: its state, its process, and whether it answers over HTTP."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from typing import Any

from gpuwright.onnode.children import Child, spawn
from gpuwright.onnode.outcome import clean
from gpuwright.onnode.tree import Tree

_PROPERTIES = (
    "LoadState,ActiveState,SubState,UnitFileState,MainPID,NeedDaemonReload,Result,NRestarts,"
    "ControlGroup,InvocationID"
)
_REMEMBERED = "GPUWRIGHT_PLAN"
_MOST_BYTES = 1 << 20


def ask_systemd(unit: str) -> Child | None:
    """Start the one question to systemd; it answers while other things are read."""
    return spawn(["systemctl", "show", "--no-pager", f"--property={_PROPERTIES}", unit], 10)


def properties(text: str) -> dict[str, str]:
    found = {}
    for line in text.splitlines():
        name, sign, content = line.partition("=")
        if sign:
            found[name] = clean(content, 1000)
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
    }


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
    return {
        "started_at": started_at(tree, pid),
        "environment": environment(tree.data(f"/proc/{pid}/environ", 1 << 20) or b""),
        "exe": {"path": clean(path), "inode": inode} if path else None,
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


NO_PROCESS: dict[str, Any] = {"started_at": None, "environment": {}, "exe": None}
NO_HEALTH: dict[str, Any] = {"status": None, "models": None, "models_status": None, "error": None}


def loopback(bind: str) -> str:
    """The address to ask on: a service on every address is asked over loopback."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(bind, bind)  # noqa: S104


def exchange(
    bind: str,
    port: int,
    path: str,
    key: str | None,
    seconds: float,
    body: bytes | None = None,
) -> tuple[int, bytes]:
    """Status and body of one HTTP GET, or POST of JSON, all within `seconds`.

    OSError, ValueError: no answer. Raw sockets, since importing http.client takes as long as half
    of a whole look at a node.
    """
    deadline = time.monotonic() + seconds
    host = loopback(bind)
    shown = f"[{host}]" if ":" in host else host
    head = [
        f"{'GET' if body is None else 'POST'} {path} HTTP/1.0",
        f"Host: {shown}:{port}",
        "Accept: application/json",
        "Connection: close",
    ]
    if key is not None and re.match(r"[\x21-\x7e]+\Z", key):
        head.append(f"Authorization: Bearer {key}")
    if body is not None:
        head += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    with socket.create_connection((host, port), seconds) as connection:
        connection.sendall("\r\n".join([*head, "", ""]).encode("ascii") + (body or b""))
        data = b""
        while len(data) < _MOST_BYTES:
            connection.settimeout(max(0.001, deadline - time.monotonic()))
            chunk = connection.recv(1 << 16)
            data += chunk
            if not chunk or _complete(data):
                break
    match = re.match(rb"HTTP/1\.[01] (\d{3})\b", data)
    if not match:
        raise ValueError("the answer is not HTTP")
    return int(match.group(1)), data.partition(b"\r\n\r\n")[2]


def _complete(data: bytes) -> bool:
    head, blank, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"\r\nContent-Length: *(\d+)", head, re.IGNORECASE)
    return bool(blank and length and len(body) >= int(length.group(1)))


def models(body: bytes) -> list[str] | None:
    """The ids that /v1/models names; None if that is not such a list."""
    try:
        rows = json.loads(body.decode("utf-8", "replace"))["data"]
        return [clean(row["id"], 300) for row in rows]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def health(bind: str, port: int, key: str | None, seconds: float = 1.0) -> dict[str, Any]:
    """What /health and /v1/models say; `error` is a sentence when one does not answer."""
    found = dict(NO_HEALTH)
    place = f"{loopback(bind)}:{port}"
    try:
        found["status"], _ = exchange(bind, port, "/health", key, seconds)
        found["models_status"], body = exchange(bind, port, "/v1/models", key, seconds)
        if found["models_status"] == 200:
            found["models"] = models(body)
    except ConnectionRefusedError:
        found["error"] = f"nothing listens on {place}"
    except socket.timeout:  # noqa: UP041  not the same before Python 3.10
        found["error"] = f"{place} did not answer within {seconds:g} s"
    except (OSError, ValueError) as problem:
        found["error"] = clean(f"{place}: {problem}", 300)
    return found
