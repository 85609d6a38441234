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

from gpuwright.onnode.answering import NO_HEALTH, health, loopback
from gpuwright.onnode.children import Child, start, value
from gpuwright.onnode.dpkg import packages
from gpuwright.onnode.envfile import api_key
from gpuwright.onnode.graphics import Inquiry
from gpuwright.onnode.holdings import KEYS, holdings
from gpuwright.onnode.listeners import ports, stranger
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
from gpuwright.onnode.named import named
from gpuwright.onnode.outcome import NodeError, clean, sentence
from gpuwright.onnode.owned import census, user
from gpuwright.onnode.sections import SECTIONS, UNKNOWN, asked_disks, filesystems
from gpuwright.onnode.service import (
    NO_PROCESS,
    ask_systemd,
    pids,
    process,
    properties,
    state,
)
from gpuwright.onnode.tree import Tree

SCHEMA = 2
_SECTION_SECONDS = 10.0
_HEALTH_SECONDS = 20.0
_FULL_SECONDS = 24 * 3600.0
"""Reading every file of a large store takes as long as its disks need."""
_MORE_TRIES = 2
_PAUSE_SECONDS = 1.0

_NOTHING_KNOWN: dict[str, Any] = {
    "gpus": {
        "source": None,
        "status": "unreadable",
        "detail": "the GPUs were not looked at",
        "driver_version": None,
        "cuda_version": None,
        "devices": [],
        "lost": [],
        "pairs": [],
        "pci": [],
        "ignored": [],
        "device_nodes": None,
    },
    "os": dict.fromkeys(
        ("id", "version_id", "codename", "name", "kernel", "architecture", "identity")
    ),
    "glibc": None,
    "python": {"version": None, "executable": None},
    "cpu": dict.fromkeys(("model", "threads", "flags", "sockets", "physical_cores")),
    "memory": dict.fromkeys(("total_bytes", "available_bytes", "swap_total_bytes", "limit_bytes")),
    "systemd": {"version": None, "running": None},
    "virtualization": None,
    "disks": None,
    "named": None,
    "ports": None,
    "packages": None,
    "ours": dict.fromkeys(("user", "files", "stamps", "partials", "altered", "service", *KEYS)),
    **UNKNOWN,
}

NAMES = tuple(_NOTHING_KNOWN)


def unknown(section: str) -> Any:
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
            self.notes.append(clean(f"{name}: {sentence(problem)}", 1000))
            return unknown
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def section(self, name: str, work: Callable[[], Any], seconds: float = 10.0) -> None:
        nothing = unknown(name)
        asked = self.asked(name)
        self.document[name] = self.guarded(name, work, nothing, seconds) if asked else nothing


def _service(look: Look, tree: Tree, shown: str) -> dict[str, Any]:
    """The service's state, process and health."""
    words = properties(shown)
    found = state(f"gpuwright-{look.spec['service']}.service", words)
    pid = found["main_pid"] or 0
    found.update(NO_PROCESS, pids=None if found["main_pid"] is None else [])
    found["health"] = dict(NO_HEALTH)
    if pid > 0:
        group = words.get("ControlGroup")
        found["pids"] = look.guarded("pids", lambda: pids(tree, group), []) or [pid]
        found.update(look.guarded("process", lambda: process(tree, pid), NO_PROCESS))
        found["health"] = look.guarded(
            "health", lambda: _health(look, tree, found["unit"]), dict(NO_HEALTH), _HEALTH_SECONDS
        )
    return found


def _health(look: Look, tree: Tree, unit: str) -> dict[str, Any]:
    """Whether the service answers; one slow second must not look like a dead service.

    Who listens is read anew before each further try, and the document has what was read last.
    """
    spec, document = look.spec, look.document
    name = f"{spec['layout']['config']}/services/{spec['service']}.env"
    key = api_key(tree.text(name) or "")
    place = (str(spec.get("bind") or "127.0.0.1"), int(spec["port"]))
    heard = document["ports"] if look.asked("ports") else ports(tree, place[1])
    for left in range(_MORE_TRIES, -1, -1):
        found = health(unit, place, heard, key)
        served = (found["status"], found["models_status"]) == (200, 200)
        if served or not left or stranger(heard, loopback(place[0]), place[1], unit):
            break
        time.sleep(_PAUSE_SECONDS)
        heard = ports(tree)
        if look.asked("ports"):
            document["ports"] = heard
    return found


def _told(work: Callable[[], Any]) -> dict[str, Any]:
    """What a child's work returned, or why it did not: the exception ends with the child."""
    try:
        return {"value": work()}
    except Exception as problem:
        return {"fault": sentence(problem)}


def _census(tree: Tree, spec: dict[str, Any]) -> dict[str, Any]:
    counted = census(tree, spec)
    return {**counted, **holdings(tree, spec, counted)}


def _ours(child: Child, patience: float) -> dict[str, Any]:
    """The census from its child: a disk that hangs holds nobody but the child."""
    told = value(child)
    if told is None:
        raise NodeError(f"our files could not be read within {patience:g} s")
    if "fault" in told:
        raise NodeError(told["fault"])
    return dict(told["value"])


def main(spec: dict[str, Any], carried: str | None) -> dict[str, Any]:
    """The node document (schema 2). `carried` is pynvml's compressed source.

    spec: `layout` (the fields of Layout), `service`, `bind`, `port`, `packages`, `disks`,
    `verify` ("quick": hash files up to 1 MiB; "full": every file), `sections` (None: all),
    `paths` (more files to look at), `named` (path -> whether the service reads it, else root),
    `root` (another tree to look at, for tests).
    """
    began = time.monotonic()
    tree = Tree(str(spec.get("root") or "/"))
    look = Look(spec)
    document = look.document
    inquiry = None
    if look.asked("gpus"):
        inquiry = look.guarded("gpus", lambda: Inquiry(tree, carried), None)
    document.update(
        {"schema": SCHEMA, "by": "probe", "time": time.time(), "seconds": None, "uid": os.geteuid()}
    )
    look.section("systemd", lambda: systemd(tree))
    question = None
    if look.asked("ours") and spec.get("service") and document["systemd"]["running"]:
        unit = f"gpuwright-{spec['service']}.service"
        question = look.guarded("service", lambda: ask_systemd(unit), None)
    patience = _FULL_SECONDS if spec.get("verify") == "full" else _SECTION_SECONDS
    counting = None
    if look.asked("ours"):
        count = partial(_told, partial(_census, tree, spec))
        counting = look.guarded("ours", lambda: start(count, patience), None)
    look.section("os", lambda: system(tree))
    look.section("glibc", glibc)
    look.section("python", python)
    look.section("cpu", lambda: cpu(tree))
    look.section("memory", lambda: memory(tree))
    look.section("virtualization", lambda: virtualization(tree))
    look.section("disks", lambda: asked_disks(tree, spec.get("disks") or [], look.notes))
    look.section("named", lambda: named(tree, spec.get("named") or {}, look.notes))
    look.section("filesystems", lambda: filesystems(tree, look.notes))
    for name, work in SECTIONS.items():
        look.section(name, partial(work, tree))
    look.section("ports", lambda: ports(tree))
    look.section("packages", lambda: packages(tree, spec.get("packages") or []))
    document["ours"] = unknown("ours")
    if counting is not None:
        document["ours"]["user"] = look.guarded("user", lambda: user(tree), None)
        # The child has its own deadline: no second one here.
        document["ours"].update(
            look.guarded("ours", partial(_ours, counting, patience), {}, seconds=0.0)
        )
    if look.asked("ours") and spec.get("service"):
        shown = (question.output() or b"").decode("utf-8", "replace") if question else ""
        if not shown:
            running = document["systemd"]["running"]
            silent = "systemd does not answer" if running else "PID 1 is not systemd"
            look.notes.append(f"service: {silent}")
        document["ours"]["service"] = look.guarded(
            "service", lambda: _service(look, tree, shown), None, 2 * _HEALTH_SECONDS
        )
    container = document["virtualization"] in CONTAINERS
    document["gpus"] = unknown("gpus")
    if inquiry is not None:
        answer = partial(inquiry.answer, container)
        # The child has its own deadline, which is longer on nodes with many cards.
        seconds = inquiry.seconds + _SECTION_SECONDS
        document["gpus"] = look.guarded("gpus", answer, unknown("gpus"), seconds)
    document["driver"]["cuda_version"] = document["gpus"]["cuda_version"]
    document["notes"] = look.notes
    document["seconds"] = round(time.monotonic() - began, 4)
    return document
