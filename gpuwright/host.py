"""One node as the probe saw it: the parts of its document that deciding uses, checked.

Unknown values are None and stay None; a document that the probe cannot have written is a HostError.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuwright.refusals import HostError

SCHEMA = 1
GPU_STATUSES = ("ok", "no_gpu", "no_driver", "driver_mismatch", "gpu_lost", "unreadable")
_REQUIRED = object()
_VERSION = re.compile(r"\d+(?:\.\d+)*", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """A card the driver answers for.

    `others_bytes` is what processes that are not ours hold; `unexplained_bytes` is what else is in
    use while no service of ours runs: the driver's own reserve, a desktop, a zombie.
    """

    index: int
    uuid: str
    pci_id: str | None
    name: str
    compute_capability: str | None
    total_bytes: int | None
    others_bytes: int
    unexplained_bytes: int
    nvlink: bool | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Listener:
    port: int
    address: str
    pid: int | None
    process: str | None
    unit: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Disk:
    mount: str
    free_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Service:
    """The unit of ours that stands on the node already."""

    unit: str
    active: bool
    pids: frozenset[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    uid: int | None
    gpu_status: str
    gpu_detail: str
    driver_version: str | None
    gpus: tuple[Gpu, ...]
    pci_vendors: tuple[str, ...]
    os_id: str | None
    os_version: str | None
    os_name: str | None
    architecture: str | None
    glibc: str | None
    python: str | None
    cpu_model: str | None
    cpu_threads: int | None
    cpu_flags: frozenset[str]
    memory_total_bytes: int | None
    memory_available_bytes: int | None
    systemd_running: bool
    systemd_version: int | None
    virtualization: str | None
    disks: dict[str, Disk | None]
    listeners: tuple[Listener, ...]
    stamps: dict[str, Any]
    service: Service | None

    @classmethod
    def from_document(cls, document: object) -> Host:
        """The host of one node document, schema 1; HostError where it is none."""
        root = _Reader(document, "")
        schema = root.get("schema", int)
        if schema != SCHEMA:
            raise HostError(f"schema: needs {SCHEMA}, found {schema}")
        service = _service(root)
        gpus = root.child("gpus")
        status = gpus.get("status", str)
        if status not in GPU_STATUSES:
            raise HostError(f"gpus.status: {status!r} is none of {', '.join(GPU_STATUSES)}")
        system, python, cpu = root.child("os"), root.child("python"), root.child("cpu")
        memory, systemd = root.child("memory"), root.child("systemd")
        return cls(
            uid=root.get("uid", int),
            gpu_status=status,
            gpu_detail=gpus.get("detail", str) or "",
            driver_version=gpus.version("driver_version"),
            gpus=tuple(_gpu(entry, service) for entry in gpus.children("devices")),
            pci_vendors=tuple(
                (entry.get("id", str) or "").split(":")[0] for entry in gpus.children("pci")
            ),
            os_id=system.get("id", str),
            os_version=system.get("version_id", str),
            os_name=system.get("name", str, None),
            architecture=system.get("architecture", str),
            glibc=root.version("glibc"),
            python=python.version("version"),
            cpu_model=cpu.get("model", str),
            cpu_threads=cpu.get("threads", int),
            cpu_flags=frozenset(str(flag) for flag in cpu.get("flags", list) or ()),
            memory_total_bytes=memory.get("total_bytes", int),
            memory_available_bytes=memory.get("available_bytes", int),
            systemd_running=bool(systemd.get("running", bool)),
            systemd_version=systemd.get("version", int),
            virtualization=root.get("virtualization", str),
            disks={path: _disk(entry) for path, entry in root.entries("disks")},
            listeners=tuple(_listener(entry) for entry in root.children("ports")),
            stamps=dict(root.child("ours").get("stamps", dict) or {}),
            service=service,
        )

    @property
    def has_card(self) -> bool:
        """Whether an NVIDIA card is there, whatever the driver says."""
        return self.gpu_status != "no_gpu"


class _Reader:
    """A mapping in the document with its path; every fault becomes one sentence."""

    def __init__(self, value: object, path: str, *, unknown: bool = False) -> None:
        if not isinstance(value, Mapping):
            raise HostError(f"{path or 'document'}: needs a mapping, found {type(value).__name__}")
        self.value = value
        self.path = path
        self.unknown = unknown

    def at(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def get(self, key: str, kind: type, default: Any = _REQUIRED) -> Any:
        value = self.value.get(key, None if self.unknown else default)
        if value is _REQUIRED:
            raise HostError(f"{self.at(key)}: missing")
        if value is None or (isinstance(value, kind) and (kind is bool) == (type(value) is bool)):
            return value
        raise HostError(f"{self.at(key)}: needs {kind.__name__}, found {type(value).__name__}")

    def version(self, key: str) -> str | None:
        """The leading numbers of a version: Python's own may end in `rc1` or `+`."""
        text = self.get(key, str)
        if text is None:
            return None
        match = _VERSION.match(text)
        if match is None:
            raise HostError(f"{self.at(key)}: {text!r} is not a version")
        return match[0]

    def child(self, key: str) -> _Reader:
        """The mapping at `key`; where it is null, everything in it is unknown."""
        if self.value.get(key, _REQUIRED) is None:
            return _Reader({}, self.at(key), unknown=True)
        return _Reader(self.value.get(key), self.at(key))

    def children(self, key: str) -> list[_Reader]:
        entries = self.get(key, list) or []
        return [_Reader(entry, f"{self.at(key)}[{n}]") for n, entry in enumerate(entries)]

    def entries(self, key: str) -> list[tuple[str, _Reader | None]]:
        entries = self.get(key, dict) or {}
        return [
            (str(name), None if entry is None else _Reader(entry, f"{self.at(key)}[{name}]"))
            for name, entry in entries.items()
        ]


def _gpu(entry: _Reader, service: Service | None) -> Gpu:
    total, free = entry.get("memory_total_bytes", int), entry.get("memory_free_bytes", int)
    index, uuid, name = entry.get("index", int), entry.get("uuid", str), entry.get("name", str)
    if index is None or uuid is None:
        raise HostError(f"{entry.path}: needs index and uuid")
    others = ours = 0
    running = service is not None and service.active
    for process in entry.children("processes"):
        used = process.get("used_bytes", int) or 0
        if service is not None and process.get("pid", int) in service.pids:
            ours += used
        else:
            others += used
    unexplained = 0
    if total is not None and free is not None and not running:
        unexplained = max(0, total - free - ours - others)
    return Gpu(
        index=index,
        uuid=uuid,
        pci_id=entry.get("pci_id", str),
        name=name or "unnamed card",
        compute_capability=entry.version("compute_capability"),
        total_bytes=total,
        others_bytes=others,
        unexplained_bytes=unexplained,
        nvlink=entry.get("nvlink", bool, None),
    )


def _service(root: _Reader) -> Service | None:
    ours = root.child("ours")
    if ours.value.get("service") is None:
        return None
    service = ours.child("service")
    main = service.get("main_pid", int)
    return Service(
        unit=service.get("unit", str) or "",
        active=service.get("active", str) in ("active", "activating", "reloading"),
        pids=frozenset(
            pid
            for pid in (main, *(service.get("pids", list, None) or ()))
            if isinstance(pid, int) and pid > 0
        ),
    )


def _disk(entry: _Reader | None) -> Disk | None:
    if entry is None:
        return None
    free = entry.get("free_bytes", int)
    return None if free is None else Disk(mount=entry.get("mount", str) or "?", free_bytes=free)


def _listener(entry: _Reader) -> Listener:
    return Listener(
        port=entry.get("port", int) or 0,
        address=entry.get("address", str) or "",
        pid=entry.get("pid", int),
        process=entry.get("process", str),
        unit=entry.get("unit", str),
    )
