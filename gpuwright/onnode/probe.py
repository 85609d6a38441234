"""Look at a node and answer with the node document: total, quick, and changing nothing.

Each section has its own guard: one that fails leaves its keys null and a sentence in `notes`.
"""

from __future__ import annotations

import copy
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from gpuwright.onnode.children import start, value
from gpuwright.onnode.disks import disk
from gpuwright.onnode.dpkg import packages
from gpuwright.onnode.graphics import Inquiry
from gpuwright.onnode.listeners import ports
from gpuwright.onnode.machine import (
    CONTAINERS,
    cpu,
    glibc,
    memory,
    python,
    system,
    systemd,
    virtualization,
)
from gpuwright.onnode.outcome import clean
from gpuwright.onnode.owned import api_key, census
from gpuwright.onnode.service import (
    NO_HEALTH,
    NO_PROCESS,
    ask_systemd,
    health,
    pids,
    process,
    properties,
    state,
)
from gpuwright.onnode.tree import Tree

_GPU_SECONDS = 5.0
_SECTION_SECONDS = 10.0

_NOTHING_KNOWN: dict[str, Any] = {
    "gpus": {
        "status": "unreadable",
        "detail": "the GPUs were not looked at",
        "driver_version": None,
        "cuda_version": None,
        "devices": [],
        "pci": [],
    },
    "os": dict.fromkeys(("id", "version_id", "codename", "name", "kernel", "architecture")),
    "glibc": None,
    "python": {"version": None, "executable": None},
    "cpu": {"model": None, "threads": None, "flags": []},
    "memory": {"total_bytes": None, "available_bytes": None},
    "systemd": {"version": None, "running": None},
    "virtualization": None,
    "disks": {},
    "ports": None,
    "packages": {},
    "ours": {"user": None, "files": {}, "stamps": {}, "service": None},
}


def _unknown(section: str) -> Any:
    """What a section says when it knows nothing: every key, null."""
    return copy.deepcopy(_NOTHING_KNOWN[section])


def _late(number: int, frame: object) -> None:
    raise TimeoutError("took too long")


class Look:
    """One look at a node: sections are filled in one by one, none can spoil another."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.wanted = spec.get("sections")
        self.notes: list[str] = []
        self.document: dict[str, Any] = {}

    def asked(self, section: str) -> bool:
        return self.wanted is None or section in self.wanted

    def guarded(
        self, name: str, work: Callable[[], Any], unknown: object, seconds: float = _SECTION_SECONDS
    ) -> Any:
        """What `work` returns; `unknown`, and a note, if it raises or takes too long."""
        signal.signal(signal.SIGALRM, _late)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            return work()
        except Exception as problem:
            self.notes.append(clean(f"{name}: {type(problem).__name__}: {problem}", 300))
            return unknown
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def section(self, name: str, work: Callable[[], Any], seconds: float = 10.0) -> None:
        unknown = _unknown(name)
        asked = self.asked(name)
        self.document[name] = self.guarded(name, work, unknown, seconds) if asked else unknown


def _service(look: Look, tree: Tree, shown: str) -> dict[str, Any]:
    """The service's state, process and health."""
    spec, layout = look.spec, look.spec["layout"]
    name = spec["service"]
    words = properties(shown)
    found = state(f"gpuwright-{name}.service", words)
    pid = found["main_pid"] or 0
    found.update(NO_PROCESS, pids=[], health=dict(NO_HEALTH))
    if pid > 0:
        found["pids"] = look.guarded("pids", lambda: pids(tree, words.get("ControlGroup")), [])
        found.update(look.guarded("process", lambda: process(tree, pid), NO_PROCESS))
        key = api_key(tree.text(f"{layout['config']}/services/{name}.env", 1 << 16) or "")
        found["health"] = look.guarded(
            "health",
            lambda: health(spec.get("bind") or "127.0.0.1", spec["port"], key),
            dict(NO_HEALTH),
        )
    return found


def _disks(look: Look, tree: Tree) -> dict[str, Any]:
    """Each asked disk, in a child: a dead network mount would hold the caller for ever."""
    asked = look.spec.get("disks") or []
    if not asked:
        return {}
    found = value(start(lambda: {path: disk(path, tree) for path in asked}, 3.0))
    if isinstance(found, dict):
        return found
    look.notes.append("disks: a filesystem does not answer")
    empty = dict.fromkeys(("mount", "free_bytes", "total_bytes", "type"))
    return {path: dict(empty) for path in asked}


def main(spec: dict[str, Any], carried: str | None) -> dict[str, Any]:
    """The node document (schema 1). `carried` is pynvml's compressed source.

    spec: `layout` (the fields of Layout), `service`, `bind`, `port`, `packages`, `disks`,
    `verify` ("quick": hash files up to 1 MiB; "full": every file), `sections` (None: all),
    `paths` (more files to look at), `root` (another tree to look at, for tests).
    """
    began = time.monotonic()
    tree = Tree(str(spec.get("root") or "/"))
    look = Look(spec)
    document = look.document
    inquiry = None
    if look.asked("gpus"):
        inquiry = look.guarded("gpus", lambda: Inquiry(tree, carried, _GPU_SECONDS), None)
    document.update({"schema": 1, "time": time.time(), "seconds": None, "uid": os.geteuid()})
    look.section("systemd", lambda: systemd(tree))
    question = None
    if look.asked("ours") and spec.get("service") and document["systemd"]["running"]:
        unit = f"gpuwright-{spec['service']}.service"
        question = look.guarded("service", lambda: ask_systemd(unit), None)
    look.section("os", lambda: system(tree))
    look.section("glibc", glibc)
    look.section("python", python)
    look.section("cpu", lambda: cpu(tree))
    look.section("memory", lambda: memory(tree))
    look.section("virtualization", lambda: virtualization(tree))
    look.section("disks", lambda: _disks(look, tree))
    look.section("ports", lambda: ports(tree))
    look.section("packages", lambda: packages(tree, spec.get("packages") or []))
    patience = 0.0 if spec.get("verify") == "full" else _SECTION_SECONDS  # 0: no limit
    look.section("ours", lambda: dict(census(tree, spec), service=None), patience)
    if look.asked("ours") and spec.get("service"):
        shown = (question.output() or b"").decode("utf-8", "replace") if question else ""
        if document["systemd"]["running"] and not shown:
            look.notes.append("service: systemd does not answer")
        document["ours"]["service"] = look.guarded(
            "service", lambda: _service(look, tree, shown), None
        )
    container = document["virtualization"] in CONTAINERS
    document["gpus"] = _unknown("gpus")
    if inquiry is not None:
        work = partial(inquiry.answer, container)
        document["gpus"] = look.guarded("gpus", work, _unknown("gpus"))
    document["notes"] = look.notes
    document["seconds"] = round(time.monotonic() - began, 4)
    return document
