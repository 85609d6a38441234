"""Whether the running service is the planned one, read from the process itself.

Nothing here trusts a record: the digest in the process's environment, the file it executes, its
start against the files' times, and whether it answers with our key say what it is.
"""

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any

from gpuwright.expected import PLAN_VARIABLE, Expected
from gpuwright.host import OWN_KERNEL

Document = Mapping[str, Any]
_KINDS = {"dir": "a directory", "link": "a link"}


def obstacle(expected: Expected, document: Document) -> str | None:
    """Why the node cannot be compared or changed at all; None: nothing is in the way.

    What the probe could not tell is not taken for absent: a slow disk or a busy systemd would
    otherwise look like a node where everything is missing.
    """
    ours, notes = document["ours"], "; ".join(document.get("notes") or [])
    service, named = ours["service"], document.get("named") or {}
    for what, value in (
        ("our files", ours["files"]),
        ("the installed packages", document["packages"]),
        (f"the state of {expected.unit_name}", service and service["active"]),
        *((path, named.get(path)) for path in expected.named_files),
    ):
        if value is None:
            return f"the probe could not read {what}" + (f": {notes}" if notes else "")
    user = ours["user"]
    if user and (user["uid"] == 0 or not user["shell"].endswith(("/nologin", "/false"))):
        return (
            f"user {user['name']} is there with user id {user['uid']} and shell {user['shell']}: "
            "needed a system user without login"
        )
    for path in (expected.environment_path, expected.unit_path, expected.record_path):
        entry = ours["files"].get(path)
        if entry and entry["type"] != "file":
            kind = _KINDS.get(entry["type"], "no file that is read")
            return f"{path} is {kind}, needed a regular file; move it away"
    secrets = ours["files"].get(expected.environment_path) or {}
    if spoilt := sorted(set(secrets.get("unusable") or ()) & set(expected.secret_names)):
        return (
            f"{expected.environment_path}: {', '.join(spoilt)} needs a key of 8 or more visible "
            "characters without blanks; empty it, and one is generated"
        )
    if service["load"] == "masked":
        return f"{expected.unit_name} is masked: `systemctl unmask {expected.unit_name}` frees it"
    return None


def remarks(expected: Expected, document: Document) -> tuple[str, ...]:
    """What an operator should know though a run does not change it."""
    service = document["ours"]["service"] or {}
    # Those in service.d are for every unit, as some containers have them.
    drop_ins = [path for path in service.get("drop_ins") or [] if "/service.d/" not in path]
    if not drop_ins:
        return ()
    return (
        f"{expected.unit_name} has drop-ins that the plan does not know and leaves alone: "
        f"{', '.join(drop_ins)}; `systemctl revert {expected.unit_name}` removes them",
    )


def file_entry(document: Document, path: str) -> Mapping[str, Any] | None:
    """What the probe saw at `path`; None: nothing is there."""
    entry: Mapping[str, Any] | None = document["ours"]["files"].get(path)
    return entry


def restart_reason(
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
    started = service.get("started_at")
    running = (service.get("environment") or {}).get(PLAN_VARIABLE)
    if started is not None and f'{PLAN_VARIABLE}={running}"' not in expected.unit:
        return f"restart {name}: it runs another plan"
    binaries = [f"{expected.engine_dir}/{path}" for path in expected.engine_files]
    models = [
        f"{directory}/{file.path}"
        for directory, checkpoint in expected.checkpoints
        for file in checkpoint.files
    ]
    for path in binaries:
        exe, entry = service.get("exe") or {}, file_entry(document, path)
        shown = str(exe.get("path")).removesuffix(" (deleted)")
        if entry is not None and shown == path and exe.get("inode") != entry["inode"]:
            return f"restart {name}: {path} is another file than the process runs"
    for path in binaries + models:
        if _renewed_since(file_entry(document, path), started, document):
            return f"restart {name}: {path} is newer than the process"
    uid, user = service.get("uid"), document["ours"]["user"] or {}
    if uid is not None and uid != user.get("uid", uid):
        return f"restart {name}: it runs as user id {uid}, needed {user['name']}"
    if elsewhere := _listening_elsewhere(expected, document):
        return f"restart {name}: it listens on {elsewhere}, needed {expected.plan.bind}"
    health = service.get("health") or {}
    if health.get("keyless_status") == 200:
        return f"restart {name}: it answers without a key"
    if health.get("models_status") in (401, 403):
        return f"restart {name}: it does not know the key in {expected.environment_path}"
    longest = expected.start_timeout_seconds + expected.compiler_seconds
    if trouble_of(expected, document) and _age_seconds(document) > longest:
        return f"restart {name}: it has not answered for longer than a start takes"
    return None


def _listening_elsewhere(expected: Expected, document: Document) -> str | None:
    """An address that the plan does not bind and on which the unit hears its port all the same."""
    wanted = ip_address(expected.plan.bind)
    for heard in document["ports"] or []:
        ours = heard["port"] == expected.plan.port and heard["unit"] == expected.unit_name
        if ours and ip_address(heard["address"]) != wanted:
            return str(heard["address"])
    return None


def _renewed_since(
    entry: Mapping[str, Any] | None, started: float | None, document: Document
) -> bool:
    """Whether a file was written after the process started.

    A time that is still to come was written under a wrong clock and says nothing.
    """
    if entry is None or started is None or entry["mtime_ns"] is None:
        return False
    written = entry["mtime_ns"] / 1e9
    return bool(started < written <= float(document["time"]))


def _age_seconds(document: Document) -> float:
    service = document["ours"]["service"] or {}
    started = service.get("started_at")
    return 0.0 if started is None else float(document["time"]) - float(started)


def trouble_of(expected: Expected, document: Document) -> str | None:
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
    """UUIDs of the cards on which processes of the service's unit are; None: it cannot be told
    (in a container the gate has its own way)."""
    devices = document["gpus"]["devices"]
    if document["virtualization"] not in OWN_KERNEL:
        return None
    if any(device["processes"] is None for device in devices):
        return None
    pids = set((document["ours"]["service"] or {}).get("pids") or ())
    return {
        device["uuid"]
        for device in devices
        if any(process["pid"] in pids for process in device["processes"])
    }
