"""One node as the probe saw it: the parts of its document that deciding uses, checked.

Unknown values are None and stay None; a document that the probe cannot have written is a HostError.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpuwright.cards import Gpu, read_cards
from gpuwright.document import Reader
from gpuwright.driver_state import DriverState
from gpuwright.named_files import NamedFile, read_named
from gpuwright.outfit import Outfit
from gpuwright.quoting import quoted
from gpuwright.refusals import HostError

SCHEMA = 2
GPU_STATUSES = ("ok", "no_gpu", "no_driver", "driver_mismatch", "gpu_lost", "unreadable")
OWN_KERNEL = frozenset(
    ("none", "kvm", "qemu", "xen", "vmware", "microsoft", "oracle", "amazon", "google")
) | {"parallels", "vm-other"}
"""What the probe says of nodes whose driver numbers processes as they do themselves.

A container shares its host's driver, and WSL that of Windows: there, processes are listed under
other numbers than ours, or not at all.
"""


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
    read_only: bool = False
    noexec: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Service:
    """The unit of ours that stands on the node already. `active` is None where systemd does not
    say."""

    unit: str
    active: bool | None
    pids: frozenset[int]

    @property
    def may_run(self) -> bool:
        return self.active is not False or bool(self.pids)


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A file or directory: its type (file, dir, link, other), mode in octal text, and owner."""

    type: str
    mode: str
    owner: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Python:
    """One Python of the node; `headers`: what compiles against it finds them."""

    version: str
    executable: str
    headers: bool

    @property
    def minor(self) -> str:
        return ".".join(self.version.split(".")[:2])


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    uid: int | None
    gpu_status: str
    gpu_detail: str
    driver_version: str | None
    driver: DriverState
    gpus: tuple[Gpu, ...]
    pci_vendors: tuple[str, ...]
    ignored: tuple[str, ...]
    """A sentence for each controller of another vendor, which no CUDA plan uses."""
    device_nodes: frozenset[str] | None
    """NVIDIA's files below /dev."""
    os_id: str | None
    os_version: str | None
    os_name: str | None
    architecture: str | None
    glibc: str | None
    python: str | None
    """Version of the one that answered."""
    pythons: tuple[Python, ...]
    """All that were found; empty where nobody looked."""
    outfit: Outfit
    cpu_model: str | None
    cpu_threads: int | None
    cpu_flags: frozenset[str]
    memory_total_bytes: int | None
    memory_available_bytes: int | None
    systemd_running: bool
    systemd_version: int | None
    virtualization: str | None
    disks: dict[str, Disk | None]
    addresses: tuple[str, ...] | None
    """Those that a service may be bound to beside loopback; `::` where there is IPv6."""
    listeners: tuple[Listener, ...]
    named: dict[str, NamedFile | None] | None
    """Files that the want names; None for a path: nothing is there. A path that is absent, or None
    altogether: nobody looked."""
    files: dict[str, Entry | None] | None
    """None for a path: nothing is there. None altogether: nobody could look."""
    stamps: dict[str, Any]
    partials: dict[str, int]
    """Bytes that interrupted runs left, by directory."""
    service: Service | None

    @classmethod
    def from_document(cls, document: object) -> Host:
        """The host of one node document, schema 2; HostError where it is none."""
        root = Reader(document, "")
        schema = root.get("schema", int)
        if schema != SCHEMA:
            raise HostError(f"schema: needs {SCHEMA}, found {schema}")
        service = _service(root)
        gpus = root.child("gpus")
        status = gpus.get("status", str)
        if status not in GPU_STATUSES:
            raise HostError(f"gpus.status: {quoted(status)} is none of {', '.join(GPU_STATUSES)}")
        nodes = gpus.texts("device_nodes")
        system, python, cpu = root.child("os"), root.child("python"), root.child("cpu")
        memory, systemd, ours = root.child("memory"), root.child("systemd"), root.child("ours")
        virtualization = root.get("virtualization", str)
        return cls(
            uid=root.get("uid", int),
            gpu_status=status,
            gpu_detail=gpus.get("detail", str) or "",
            driver_version=gpus.version("driver_version"),
            driver=DriverState.read(root, system.get("kernel", str, None)),
            gpus=read_cards(
                gpus,
                virtualization in OWN_KERNEL,
                service.pids if service else frozenset(),
                service is not None and service.may_run,
            ),
            pci_vendors=tuple(
                (entry.get("id", str) or "").split(":")[0] for entry in gpus.children("pci")
            ),
            ignored=gpus.texts("ignored") or (),
            device_nodes=None if nodes is None else frozenset(nodes),
            os_id=system.get("id", str),
            os_version=system.get("version_id", str),
            os_name=system.get("name", str, None),
            architecture=system.get("architecture", str),
            glibc=root.version("glibc"),
            python=python.version("version"),
            pythons=_pythons(root),
            outfit=Outfit.read(root),
            cpu_model=cpu.get("model", str),
            cpu_threads=cpu.count("threads"),
            cpu_flags=frozenset(str(flag) for flag in cpu.get("flags", list) or ()),
            memory_total_bytes=_memory(memory),
            memory_available_bytes=memory.count("available_bytes"),
            systemd_running=bool(systemd.get("running", bool)),
            systemd_version=systemd.get("version", int),
            virtualization=virtualization,
            disks={path: _disk(entry) for path, entry in root.entries("disks")},
            addresses=root.texts("addresses"),
            listeners=tuple(_listener(entry) for entry in root.children("ports")),
            named=read_named(root),
            files=_files(ours),
            stamps=dict(ours.get("stamps", dict) or {}),
            partials=_partials(ours),
            service=service,
        )

    @property
    def has_card(self) -> bool:
        """Whether an NVIDIA card is there, whatever the driver says."""
        return self.gpu_status != "no_gpu"


def _pythons(root: Reader) -> tuple[Python, ...]:
    return tuple(
        Python(
            version=entry.get("version", str) or "",
            executable=entry.get("executable", str) or "",
            headers=bool(entry.get("headers", bool, None)),
        )
        for entry in (root.children("pythons") if root.get("pythons", list, None) else ())
    )


def _memory(memory: Reader) -> int | None:
    """RAM, or what a container may use of it where that is less."""
    total, limit = memory.count("total_bytes"), memory.count("limit_bytes", None)
    return min(total, limit) if total and limit else total


def _service(root: Reader) -> Service | None:
    ours = root.child("ours")
    if ours.value.get("service") is None:
        return None
    service = ours.child("service")
    main, active = service.get("main_pid", int), service.get("active", str)
    return Service(
        unit=service.get("unit", str) or "",
        active=None if active is None else active in ("active", "activating", "reloading"),
        pids=frozenset(
            pid
            for pid in (main, *(service.get("pids", list, None) or ()))
            if isinstance(pid, int) and pid > 0
        ),
    )


def _files(ours: Reader) -> dict[str, Entry | None] | None:
    if ours.get("files", dict) is None:
        return None
    return {
        path: None
        if entry is None
        else Entry(
            type=entry.get("type", str) or "other",
            mode=entry.get("mode", str, None) or "unknown",
            owner=entry.get("owner", str, None) or "unknown",
        )
        for path, entry in ours.entries("files")
    }


def _partials(ours: Reader) -> dict[str, int]:
    left = Reader(ours.get("partials", dict, None) or {}, ours.at("partials"))
    return {str(path): left.count(path) or 0 for path in left.value}


def _disk(entry: Reader | None) -> Disk | None:
    if entry is None:
        return None
    free = entry.count("free_bytes")
    if free is None:
        return None
    return Disk(
        mount=entry.get("mount", str) or "?",
        free_bytes=free,
        read_only=bool(entry.get("read_only", bool, None)),
        noexec=bool(entry.get("noexec", bool, None)),
    )


def _listener(entry: Reader) -> Listener:
    return Listener(
        port=entry.get("port", int) or 0,
        address=entry.get("address", str) or "",
        pid=entry.get("pid", int),
        process=entry.get("process", str),
        unit=entry.get("unit", str),
    )
