"""What differs between a node and its plan: the one place that decides what a run will do.

Pure: a node document (the probe's answer) and the expected state go in, changes with their reasons
come out. Nothing here trusts a record where the node itself can be read.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuwright.layout import USER, Layout
from gpuwright.plan import ModelFile, Plan

STAMP = "gpuwright.json"
PLAN_VARIABLE = "GPUWRIGHT_PLAN"

# What systemd-detect-virt says of a node that has a kernel, and so process numbers, of its own.
_MACHINES = ("none", "kvm", "qemu", "xen", "vmware", "microsoft", "oracle", "amazon", "parallels")

Document = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Directory:
    """A directory that must exist with this owner and mode (octal text, as `stat` prints it)."""

    path: str
    mode: str = "0755"
    owner: str = "root"
    group: str = "root"


def directories(layout: Layout) -> tuple[Directory, ...]:
    """Every directory of ours on a node, parents first."""
    return (
        Directory(path=layout.engines.rsplit("/", 1)[0]),
        Directory(path=layout.engines),
        Directory(path=layout.state),
        Directory(path=layout.plans),
        Directory(path=layout.cache),
        Directory(path=f"{layout.cache}/sources"),
        Directory(path=f"{layout.cache}/ccache"),
        Directory(path=layout.model_store),
        Directory(path=layout.config),
        Directory(path=layout.environments, mode="0700"),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """Everything that must stand on the node for one service."""

    layout: Layout
    plan: Plan
    engine_dir: str
    engine_files: tuple[str, ...]
    """Paths below `engine_dir` that the service runs, named in the engine's stamp."""
    unit: str
    """The unit file's whole text; its digest stands in it (see `digest_of`)."""
    secret_names: tuple[str, ...]
    build_packages: tuple[str, ...]
    """Needed while the engine is built, not afterwards."""
    runtime_packages: tuple[str, ...]
    start_timeout_seconds: int

    @property
    def unit_name(self) -> str:
        return self.layout.unit_name(self.plan.service)

    @property
    def unit_path(self) -> str:
        return self.layout.unit_path(self.plan.service)

    @property
    def record_path(self) -> str:
        return self.layout.plan_path(self.plan.service)

    @property
    def environment_path(self) -> str:
        return self.layout.environment_path(self.plan.service)

    @property
    def checkpoint_dir(self) -> str:
        return self.layout.checkpoint_dir(self.plan.checkpoint)

    @property
    def record(self) -> str:
        """What is served, as it is stored on the node.

        No secret, and no figure that moves by itself (free memory, reasons that quote it), so that
        the text changes only when the decision does.
        """
        plan = self.plan
        stored = {
            "schema": 1,
            "service": plan.service,
            "bind": plan.bind,
            "port": plan.port,
            "model": plan.model,
            "checkpoint": plan.checkpoint,
            "served_model_name": plan.served_model_name,
            "quantization": plan.quantization,
            "engine": plan.engine,
            "release": plan.release,
            "build_tag": plan.build_tag,
            "attention_backend": plan.attention_backend,
            "kv_cache_dtype": plan.kv_cache_dtype,
            "gpus": [gpu.uuid for gpu in plan.gpus],
            "tensor_parallel_size": plan.tensor_parallel_size,
            "max_model_len": plan.max_model_len,
            "max_num_seqs": plan.max_num_seqs,
            "engine_dir": self.engine_dir,
            "files": {file.path: file.sha256 for file in plan.files},
            "environment_file": self.environment_path,
            "secret_names": list(self.secret_names),
        }
        return json.dumps(stored, indent=1, sort_keys=True) + "\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class Changes:
    """What a run has to do. Each text is the reason, for people; None or empty: nothing to do."""

    packages: tuple[str, ...] = ()
    user: str | None = None
    directories: tuple[Directory, ...] = ()
    build: str | None = None
    fetch: str | None = None
    environment: str | None = None
    environment_mode: str | None = None
    unit: str | None = None
    reload: str | None = None
    enable: str | None = None
    restart: str | None = None
    record: str | None = None
    gate: str | None = None

    def reasons(self) -> tuple[str, ...]:
        """Every change as one line, in the order in which a run makes them."""
        packages = f"install packages {' '.join(self.packages)}" if self.packages else None
        paths = " ".join(directory.path for directory in self.directories)
        in_order = (
            packages,
            self.user,
            f"create or repair directories {paths}" if paths else None,
            self.fetch,
            self.build,
            self.environment,
            self.environment_mode,
            self.unit,
            self.record,
            self.reload,
            self.enable,
            self.restart,
            self.gate,
        )
        return tuple(line for line in in_order if line)


def digest_of(text: str) -> str:
    """Sixteen hex digits that name a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def changes(expected: Expected, document: Document) -> Changes:
    """Compare the node with what must stand on it.

    `document` is the probe's answer, schema 1. The result is empty (`== Changes()`) exactly when
    the node serves the plan already.
    """
    packages_installed = document["packages"]
    build = _build(expected, document)
    fetch = _fetch(expected, document)
    environment, environment_mode = _environment(expected, document)
    unit = _text_differs(expected.unit_path, expected.unit, "0644", document)
    wanted = expected.runtime_packages + (expected.build_packages if build else ())
    restart = _restart(expected, document, build, fetch, environment, unit)
    service = document["ours"]["service"] or {}
    enable = None
    if service.get("enabled") != "enabled":
        enable = f"enable {expected.unit_name}"
    reload = None
    if unit or service.get("need_daemon_reload"):
        reload = "systemd reads its units again"
    gate = None
    if restart:
        gate = "wait until the model answers"
    elif trouble := _trouble(expected, document):
        gate = f"wait until the model answers ({trouble})"
    return Changes(
        packages=tuple(name for name in wanted if packages_installed.get(name) is None),
        user=None if document["ours"]["user"] else f"create the system user {USER}",
        directories=tuple(
            directory
            for directory in directories(expected.layout)
            if _directory_differs(directory, document)
        ),
        build=build,
        fetch=fetch,
        environment=environment,
        environment_mode=environment_mode,
        unit=unit,
        reload=reload,
        enable=enable,
        restart=restart,
        record=_text_differs(expected.record_path, expected.record, "0644", document),
        gate=gate,
    )


def _file(document: Document, path: str) -> Mapping[str, Any] | None:
    entry: Mapping[str, Any] | None = document["ours"]["files"].get(path)
    return entry


def _directory_differs(directory: Directory, document: Document) -> bool:
    entry = _file(document, directory.path)
    return (
        entry is None
        or entry["type"] != "dir"
        or (entry["mode"], entry["owner"], entry["group"])
        != (directory.mode, directory.owner, directory.group)
    )


def _stamped(document: Document, directory: str) -> Mapping[str, Any]:
    """The files that a stamp vouches for; empty where there is no usable stamp."""
    stamp = document["ours"]["stamps"].get(f"{directory}/{STAMP}")
    if not isinstance(stamp, Mapping):
        return {}
    files = stamp.get("files")
    return files if isinstance(files, Mapping) else {}


def _drift_of_file(
    document: Document, directory: str, name: str, wanted: tuple[int, str] | None
) -> str | None:
    """Why the file is not the one its stamp vouches for; None: it is.

    `wanted` is (bytes, sha256) where the plan knows them. A hash in the document (small files, or a
    full verification) is compared too.
    """
    path = f"{directory}/{name}"
    entry = _file(document, path)
    if entry is None or entry["type"] != "file":
        return f"{path} is missing"
    stamp = _stamped(document, directory).get(name)
    if not isinstance(stamp, Mapping):
        return f"{path} has not been verified"
    size, sha256 = wanted or (stamp.get("bytes"), stamp.get("sha256"))
    if entry["size"] != size:
        return f"{path} has {entry['size']} bytes, needed {size}"
    if entry["sha256"] is not None and entry["sha256"] != sha256:
        return f"{path} does not have the sha256 that its row names"
    if stamp.get("sha256") != sha256:
        return f"{path} was verified against another sha256"
    if (entry["mtime_ns"], entry["inode"]) != (stamp.get("mtime_ns"), stamp.get("inode")):
        return f"{path} was replaced or written to since it was verified"
    return None


def _build(expected: Expected, document: Document) -> str | None:
    for name in expected.engine_files:
        if drift := _drift_of_file(document, expected.engine_dir, name, None):
            return f"build {expected.plan.engine} {expected.plan.release}: {drift}"
    return None


def _fetch(expected: Expected, document: Document) -> str | None:
    for file in expected.plan.files:
        if drift := _model_drift(expected, document, file):
            return f"fetch {expected.plan.checkpoint}: {drift}"
    return None


def _model_drift(expected: Expected, document: Document, file: ModelFile) -> str | None:
    wanted = (file.bytes, file.sha256)
    return _drift_of_file(document, expected.checkpoint_dir, file.path, wanted)


def _environment(expected: Expected, document: Document) -> tuple[str | None, str | None]:
    path = expected.environment_path
    entry = _file(document, path)
    if entry is None or entry["type"] != "file":
        return f"generate the API key in {path}", None
    if missing := sorted(set(expected.secret_names) - set(entry.get("variables") or ())):
        return f"generate {', '.join(missing)} in {path}", None
    found = (entry["mode"], entry["owner"], entry["group"])
    if found != ("0600", "root", "root"):
        return None, f"{path}: mode {entry['mode']} becomes 0600, owner root"
    return None, None


def _text_differs(path: str, text: str, mode: str, document: Document) -> str | None:
    entry = _file(document, path)
    if entry is None or entry["type"] != "file":
        return f"write {path}"
    if entry["sha256"] != hashlib.sha256(text.encode()).hexdigest():
        return f"write {path}: its text is not the plan's"
    if (entry["mode"], entry["owner"], entry["group"]) != (mode, "root", "root"):
        return f"write {path}: mode {entry['mode']}, needed {mode}"
    return None


def _restart(
    expected: Expected,
    document: Document,
    build: str | None,
    fetch: str | None,
    environment: str | None,
    unit: str | None,
) -> str | None:
    """Why the service has to be (re)started; read from the process itself, not from a record."""
    name = expected.unit_name
    service = document["ours"]["service"]
    if not service or service["active"] not in ("active", "activating", "reloading"):
        return f"start {name}"
    for change in (build, fetch, environment, unit):
        if change:
            return f"restart {name}: {change}"
    running = (service.get("environment") or {}).get(PLAN_VARIABLE)
    if running is not None and f"{PLAN_VARIABLE}={running}" not in expected.unit:
        return f"restart {name}: it runs an older plan"
    started = service.get("started_at")
    if started is not None:
        watched = [f"{expected.engine_dir}/{path}" for path in expected.engine_files]
        watched += [f"{expected.checkpoint_dir}/{file.path}" for file in expected.plan.files]
        for path in watched:
            entry = _file(document, path)
            if entry is not None and entry["mtime_ns"] > started * 1e9:
                return f"restart {name}: {path} is newer than the process"
    health = service.get("health") or {}
    if health.get("models_status") in (401, 403):
        return f"restart {name}: it does not know the key in {expected.environment_path}"
    if _trouble(expected, document) and _age_seconds(document) > expected.start_timeout_seconds:
        return f"restart {name}: it has not answered for longer than a start takes"
    return None


def _age_seconds(document: Document) -> float:
    service = document["ours"]["service"] or {}
    started, asked = service.get("started_at"), document.get("time")
    if started is None or asked is None:
        return 0.0
    return float(asked) - float(started)


def _trouble(expected: Expected, document: Document) -> str | None:
    """What is wrong with a service that systemd calls active; None: it serves the plan's model."""
    service = document["ours"]["service"]
    health = (service or {}).get("health") or {}
    if health.get("status") != 200:
        return f"/health answers {health.get('status') or health.get('error') or 'nothing'}"
    if health.get("models_status") != 200:
        return f"/v1/models answers {health.get('models_status')}"
    served = expected.plan.served_model_name
    if served not in (health.get("models") or []):
        return f"/v1/models does not name {served}"
    planned = {gpu.uuid for gpu in expected.plan.gpus}
    in_use = _gpus_in_use(document)
    if in_use is not None and not planned <= in_use:
        return f"its processes are not on {', '.join(sorted(planned))}"
    return None


def _gpus_in_use(document: Document) -> set[str] | None:
    """UUIDs of the cards on which processes of the service's unit are; None: it cannot be told.

    NVML numbers processes as the kernel's first namespace does: inside a container they are other
    numbers than ours, if it lists any (the gate has its own way there).
    """
    if document["virtualization"] not in _MACHINES:
        return None
    pids = set((document["ours"]["service"] or {}).get("pids") or ())
    return {
        device["uuid"]
        for device in document["gpus"]["devices"]
        if any(process["pid"] in pids for process in device["processes"])
    }
