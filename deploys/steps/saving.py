"""Save the document of every node of the run as a file that `gpuwright --host` reads."""

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pyinfra.api import DeployError, Host, State

from deploys.steps import gather
from deploys.steps.once import Run, Runs, once
from gpuwright.expectation import probe_packages, probe_spec
from gpuwright.findings import asked_packages
from gpuwright.load import load_findings, load_matrix
from gpuwright.quoting import counted
from gpuwright.redact import redacted
from gpuwright.refusals import WantError
from gpuwright.want import Want

CACHE = "facts-cache"
_LONGEST_NAME = 150
_runs: Runs = Runs()


def saved() -> None:
    """Save the documents of all hosts, once for all of them.

    DeployError at the end names every host without one; those of the others stand.
    """
    once(_runs, _save_all)


def file_name(host: str) -> str:
    """A file name that belongs to no other host: no path, never hidden, of a bounded length."""
    name = quote(host, safe="@")
    if name.startswith("."):
        name = f"%2E{name[1:]}"
    if len(name) > _LONGEST_NAME:
        name = f"{name[:_LONGEST_NAME]}-{hashlib.sha256(host.encode()).hexdigest()[:16]}"
    return f"{name}.json"


def _save_all(state: State) -> Run:
    documents, faults = seen(state)
    folders = {host: _folder(state, host) for host in documents}
    redact = {host: _redact(host) for host in documents}
    for host, document in documents.items():
        name = str(host.name)
        if redact[host]:
            document = redacted(document, names=_names(host))
        try:
            path = _write(folders[host], file_name(name), document)
        except OSError as error:
            faults[name] = f"{folders[host]}: {error.strerror or error}"
        else:
            host.log(f"saved {path}")
    return listed("without a saved document", faults, state) if faults else {}


def seen(state: State) -> tuple[dict[Host, Any], dict[str, str]]:
    """The document of every host, and why others have none, by name."""
    faults = {str(host.name): "not reached over SSH" for host in state.failed_hosts}
    packages = probe_packages(load_matrix()) | asked_packages(load_findings())
    specs = {
        host: probe_spec(_want(host), verify="quick", packages=packages)
        for host in sorted(state.inventory.get_active_hosts(), key=lambda host: str(host.name))
    }
    told = gather.documents(state, specs.items())
    documents = {host: told[host] for host in specs if "schema" in told[host]}
    for host in specs:
        if host not in documents:
            faults[str(host.name)] = str(told[host].get("error") or "the probe gave no answer")
    return documents, faults


def listed(what: str, faults: Mapping[str, str], state: State) -> str:
    """One sentence that names every host with its fault."""
    count = len(state.inventory.get_active_hosts()) + len(state.failed_hosts)
    lines = [f"{name}: {text}" for name, text in sorted(faults.items())]
    return "\n".join([f"{counted(len(faults), 'host')} of {count} {what}:", *lines])


def _folder(state: State, host: Host) -> Path:
    said = host.data.get("facts_cache")
    if said is not None and not (isinstance(said, str) and said):
        raise DeployError(f"facts_cache: {said!r}, needed a directory")
    try:
        return Path(state.cwd or ".") / Path(said or CACHE).expanduser()
    except RuntimeError as error:
        raise DeployError(f"facts_cache: {said!r}: {error}") from error


def _redact(host: Host) -> bool:
    """A word that is neither must not pass for no."""
    word = host.data.get("redact")
    if word is not None and not isinstance(word, bool):
        raise DeployError(f"redact: {word!r}, needed true or false")
    return bool(word)


def _want(host: Host) -> Want:
    """What is wanted of the host says which service and directories to look at."""
    data = host.data.get("gpuwright")
    try:
        return Want() if data is None else Want.from_data(data)
    except WantError as error:
        host.log(f"looked at as if nothing were wanted: {error}")
        return Want()


def _names(host: Host) -> list[str]:
    """What the inventory calls the host and its user, to be found in sentences of the node."""
    known = (host.name, *(host.data.get(key) for key in ("ssh_hostname", "ssh_user")))
    return [word for name in known if name for word in words_of(str(name))]


def words_of(name: str) -> list[str]:
    """A name, and what it may be called in part: `@ssh/alice@tower.lan` has `alice`, and both
    `tower.lan` and `tower`. An address has no parts."""
    bare = name.partition("/")[2] if name.startswith("@") else name
    *user, place = bare.rsplit("@", 1)
    label = place.partition(".")[0]
    short = [] if ":" in place or label.isdigit() else [label]
    return list(dict.fromkeys(word for word in (name, *user, place, *short) if word))


def _write(folder: Path, name: str, document: Any) -> Path:
    """Whole or not at all, and for nobody else: a document says much of a machine."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / name
    descriptor, beside = tempfile.mkstemp(prefix=".", suffix=".new", dir=folder)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
            file.write("\n")
        Path(beside).replace(path)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise
    return path
