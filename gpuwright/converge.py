"""What differs between a node and its plan: the one place that decides what a run will do.

Pure: a node document (the probe's answer) and the expected state go in, changes with their reasons
come out. Nothing here trusts a record where the node itself can be read.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpuwright.expected import PLAN_VARIABLE, STAMP, Directory, Expected, directories
from gpuwright.layout import USER
from gpuwright.running import Document, file_entry, restart_reason, trouble_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Changes:
    """What a run has to do. Each text is the reason, for people; None or empty: nothing to do."""

    packages: tuple[str, ...] = ()
    user: str | None = None
    directories: tuple[Directory, ...] = ()
    modes: tuple[Directory, ...] = ()
    """Files and directories of engine and model that are right but for their owner or mode."""
    build: str | None = None
    fetch: str | None = None
    rehearse: str | None = None
    environment: str | None = None
    environment_mode: str | None = None
    unit: str | None = None
    kept: tuple[str, ...] = ()
    """Files of what serves another plan, which are put back if the new one does not answer."""
    reload: str | None = None
    enable: str | None = None
    restart: str | None = None
    record: str | None = None
    gate: str | None = None

    def reasons(self) -> tuple[str, ...]:
        """Every change as one line, in the order in which a run makes them."""
        packages = f"install packages {' '.join(self.packages)}" if self.packages else None
        paths = " ".join(directory.path for directory in self.directories)
        loosened = " ".join(row.path for row in self.modes)
        in_order = (
            packages,
            self.user,
            f"create or repair directories {paths}" if paths else None,
            self.fetch,
            self.build,
            self.rehearse,
            f"put back owner and mode of {loosened}" if loosened else None,
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


def changes(expected: Expected, document: Document) -> Changes:
    """Compare the node with what must stand on it.

    `document` is the probe's answer, schema 2. The result is empty (`== Changes()`) exactly when
    the node serves the plan already.
    """
    packages_installed = document["packages"]
    build = _build(expected, document)
    fetch = _fetch(expected, document)
    environment, environment_mode = _environment(expected, document)
    unit = _text_differs(expected.unit_path, expected.unit, "0644", document)
    wanted = expected.runtime_packages + (expected.build_packages if build else ())
    restart = restart_reason(expected, document, build, fetch, environment, unit)
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
    elif trouble := trouble_of(expected, document):
        gate = f"wait until the model answers ({trouble})"
    return Changes(
        packages=tuple(name for name in wanted if packages_installed.get(name) is None),
        user=None if document["ours"]["user"] else f"create the system user {USER}",
        directories=tuple(
            directory
            for directory in directories(expected.layout)
            if _directory_differs(directory, document)
        ),
        modes=tuple(_loosened(expected, document)),
        build=build,
        fetch=fetch,
        rehearse=_rehearse(expected, build or fetch or unit),
        environment=environment,
        environment_mode=environment_mode,
        unit=unit,
        kept=(expected.unit_path, expected.record_path)
        if unit and _serves_another_plan(expected, document)
        else (),
        reload=reload,
        enable=enable,
        restart=restart,
        record=_text_differs(expected.record_path, expected.record, "0644", document),
        gate=gate,
    )


def _serves_another_plan(expected: Expected, document: Document) -> bool:
    """Whether the unit answers requests, by the file that is to be replaced."""
    service = document["ours"]["service"] or {}
    health = service.get("health") or {}
    answers = (health.get("status"), health.get("models_status")) == (200, 200)
    running = (service.get("environment") or {}).get(PLAN_VARIABLE)
    planned = f'{PLAN_VARIABLE}={running}"' in expected.unit
    return answers and not planned and not service.get("need_daemon_reload")


def _directory_differs(directory: Directory, document: Document) -> bool:
    entry = file_entry(document, directory.path)
    if directory.kept and entry is not None:
        return False
    return (
        entry is None
        or entry["type"] != "dir"
        or (entry["mode"], entry["owner"], entry["group"])
        != (directory.mode, directory.owner, directory.group)
    )


def _loosened(expected: Expected, document: Document) -> Iterator[Directory]:
    """What the service reads and runs, where it stands with another owner or mode than ours."""
    engine = expected.engine_dir
    rows = [Directory(path=path, whole=True) for path in (engine, f"{engine}/bin")]
    # Whoever may write a stamp vouches for what they like.
    rows.append(Directory(path=f"{engine}/{STAMP}", mode="0644"))
    rows += [
        Directory(path=f"{engine}/{name}", mode="0755" if name.startswith("bin/") else "0644")
        for name in expected.engine_files
    ]
    for directory, checkpoint in expected.checkpoints:
        rows.append(Directory(path=directory, whole=True))
        rows.append(Directory(path=f"{directory}/{STAMP}", mode="0644"))
        rows += [
            Directory(path=f"{directory}/{file.path}", mode="0644") for file in checkpoint.files
        ]
    for row in rows:
        entry = file_entry(document, row.path)
        if entry is None or entry["type"] not in ("file", "dir"):
            continue
        if (entry["mode"], entry["owner"], entry["group"]) != (row.mode, row.owner, row.group):
            yield row


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
    entry = file_entry(document, path)
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
    verb = "install" if expected.installed else "build"
    stamped = _stamped(document, expected.engine_dir)
    for name in dict.fromkeys((*expected.engine_files, *stamped)):
        if drift := _drift_of_file(document, expected.engine_dir, name, None):
            return f"{verb} {expected.plan.engine} {expected.plan.release}: {drift}"
    altered = document["ours"].get("altered") or {}
    if drift := altered.get(expected.engine_dir):
        return f"{verb} {expected.plan.engine} {expected.plan.release}: {drift}"
    python = f"{expected.engine_dir}/bin/python"  # a link, of which no stamp tells
    if expected.installed and file_entry(document, python) is None:
        return f"{verb} {expected.plan.engine} {expected.plan.release}: {python} is missing"
    return None


def _rehearse(expected: Expected, change: str | None) -> str | None:
    if not expected.installed or change is None:
        return None
    return f"ask {expected.plan.engine} itself whether it takes the plan"


def _fetch(expected: Expected, document: Document) -> str | None:
    drifts = []
    for directory, checkpoint in expected.checkpoints:
        of_each = (
            _drift_of_file(document, directory, file.path, (file.bytes, file.sha256))
            for file in checkpoint.files
        )
        if drift := next(filter(None, of_each), None):
            drifts.append(f"fetch {checkpoint.id}: {drift}")
    return "; ".join(drifts) or None


def _environment(expected: Expected, document: Document) -> tuple[str | None, str | None]:
    path = expected.environment_path
    entry = file_entry(document, path)
    if entry is None or entry["type"] != "file":
        return f"generate the API key in {path}", None
    if missing := sorted(set(expected.secret_names) - set(entry.get("variables") or ())):
        return f"generate {', '.join(missing)} in {path}", None
    found = (entry["mode"], entry["owner"], entry["group"])
    if found != ("0600", "root", "root"):
        return None, f"{path}: mode {entry['mode']} becomes 0600, owner root"
    return None, None


def _text_differs(path: str, text: str, mode: str, document: Document) -> str | None:
    entry = file_entry(document, path)
    if entry is None or entry["type"] != "file":
        return f"write {path}"
    if entry["sha256"] != hashlib.sha256(text.encode()).hexdigest():
        return f"write {path}: its text is not the plan's"
    if (entry["mode"], entry["owner"], entry["group"]) != (mode, "root", "root"):
        return f"write {path}: mode {entry['mode']}, needed {mode}"
    return None
