"""Bring files to the node, each verified before it gets its name; what is right is kept."""

from __future__ import annotations

import contextlib
import os
import re
import select
import stat
import sys
import time
from typing import Any

from gpuwright.onnode.archives import clear
from gpuwright.onnode.download import Meter, SourceError
from gpuwright.onnode.outcome import NodeError, clean
from gpuwright.onnode.sources import Courier, described, why_not
from gpuwright.onnode.storage import (
    STAMP,
    locked,
    read_stamp,
    require_room,
    same_as_stamped,
    sha256_of,
    stamped,
    sync_directory,
    write_stamp,
)
from gpuwright.onnode.web import Web, WebError

_STAGING = ".partial"
_KEPT = ("kept", "verified")


def _checked(files: Any) -> list[dict[str, Any]]:
    """The rows of the spec. NodeError: a path that leads out, a hash or size that is none."""
    for file in files:
        path = file.get("path")
        plain = isinstance(path, str) and os.path.normpath(path) == path
        if not plain or path.startswith(("/", "..", _STAGING)) or path in (".", STAMP):
            raise NodeError(f"file path {path!r} is not a plain path below the directory")
        if not re.match(r"[0-9a-f]{64}\Z", str(file.get("sha256"))):
            raise NodeError(f"{path}: no sha256 is known, and without one nothing is fetched")
        if not isinstance(file.get("bytes"), int) or file["bytes"] < 0:
            raise NodeError(f"{path}: no size in bytes is known")
    return list(files)


def _token(spec: dict[str, Any]) -> str | None:
    """The hub's token from standard input; who forgot to send one must not hold us up."""
    if not spec.get("token_stdin") or not select.select([sys.stdin], [], [], 5.0)[0]:
        return None
    token = sys.stdin.readline().strip()
    if token and not re.match(r"[\x21-\x7e]+\Z", token):
        raise NodeError("the hub's token is not one word of visible ASCII characters")
    return token or None


class Store:
    """One directory of verified files."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.directory = str(spec["directory"])
        if not self.directory.startswith("/"):
            raise NodeError(f"directory {self.directory!r} is not absolute")
        self.files = _checked(spec["files"])
        self.staging = f"{self.directory}/{_STAGING}"
        self.trusting = spec.get("verify") != "full"
        self.stamp = read_stamp(self.directory)
        self.entries: dict[str, Any] = dict(self.stamp.get("files") or {})
        self.outcome: dict[str, str] = {}
        self.origin: dict[str, str] = {}

    def partial(self, file: dict[str, Any]) -> str:
        """Named by content: what one source began, another may finish."""
        return f"{self.staging}/{file['sha256']}"

    def stands(self, file: dict[str, Any], hashing: bool) -> str | None:
        """ "kept" or "verified" if the right file is in place; None if it must be fetched."""
        path = f"{self.directory}/{file['path']}"
        entry = self.entries.get(file["path"])
        if (
            self.trusting
            and same_as_stamped(path, entry)
            and isinstance(entry, dict)
            and (entry["bytes"], entry["sha256"]) == (file["bytes"], file["sha256"])
        ):
            return "kept"
        try:
            found = os.lstat(path)
        except OSError:
            return None
        if not stat.S_ISREG(found.st_mode) or found.st_size != file["bytes"]:
            return None
        if not hashing:
            return "verified"  # of the right size: whether it is right is found out later
        meter = Meter("check", file["path"], file["bytes"])
        return "verified" if sha256_of(path, meter.at) == file["sha256"] else None

    def need_room(self, missing: list[dict[str, Any]], reserve: int) -> None:
        """NodeError unless what is still to come fits, with the reserve left."""
        needed = largest_archive = 0
        for file in missing:
            needed += max(0, file["bytes"] - _size(self.partial(file)))
            for source in file["sources"]:
                if source.get("member"):
                    held = _size(self.partial(file) + ".archive")
                    archive = int(source.get("bytes") or 0) - held
                    largest_archive = max(largest_archive, archive)
        if missing:
            room = needed + largest_archive + reserve
            require_room(self.directory, room, f"fetching into {self.directory}")

    def make(self) -> None:
        os.makedirs(self.staging, exist_ok=True)
        wanted = {os.path.basename(self.partial(file)) for file in self.files}
        for name in os.listdir(self.staging):
            if name.split(".")[0] not in wanted:
                clear(f"{self.staging}/{name}")

    def put(self, file: dict[str, Any]) -> None:
        """Give the verified partial file its name."""
        path = f"{self.directory}/{file['path']}"
        parent = os.path.dirname(path)
        os.makedirs(parent, mode=0o755, exist_ok=True)
        os.chmod(self.partial(file), 0o644)
        if os.path.isdir(path) and not os.path.islink(path):
            raise NodeError(f"{path} is a directory", "move it away")
        os.replace(self.partial(file), path)
        sync_directory(parent)

    def record(self, file: dict[str, Any]) -> None:
        """Vouch for a file that was just verified; others of the stamp stay if they still stand."""
        path = f"{self.directory}/{file['path']}"
        self.entries[file["path"]] = stamped(path, file["sha256"])
        self.entries = {
            name: entry
            for name, entry in self.entries.items()
            if same_as_stamped(f"{self.directory}/{name}", entry)
        }
        write_stamp(self.directory, {"schema": 1, "files": self.entries})


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _obtain(store: Store, courier: Courier, file: dict[str, Any]) -> None:
    """Get one file from the first source that delivers it. NodeError: none does, and why."""
    reasons = []
    for source in file["sources"]:
        try:
            courier.get(source, file, store.partial(file))
            store.origin[file["path"]] = described(source)
            return
        except (SourceError, WebError) as problem:
            reason = why_not(problem, source, courier.token is not None)
            reasons.append(f"{described(source)}: {reason}")
        except OSError as problem:
            raise NodeError(f"{file['path']}: {problem.strerror or problem}") from None
    raise NodeError(f"{file['path']} cannot be had: " + ("; ".join(reasons) or "it has no source"))


def _preflight(store: Store, courier: Courier, reserve: int, token_later: bool) -> dict[str, Any]:
    """Ask the sources only. A hub's file whose token comes later is believed in, as `unproven`."""
    found: dict[str, Any] = {}
    faults: dict[str, str] = {}
    unproven: dict[str, str] = {}
    missing = []
    for file in store.files:
        path = file["path"]
        if store.stands(file, hashing=False):
            found[path] = {"kind": "present"}
            continue
        missing.append(file)
        reasons = []
        for source in file["sources"]:
            try:
                courier.can_deliver(source, file)
            except (SourceError, WebError) as problem:
                reason = why_not(problem, source, courier.token is not None)
                refused = getattr(problem, "status", None) in (401, 403)
                if not (refused and source["kind"] == "hub" and token_later):
                    reasons.append(f"{described(source)}: {reason}")
                    continue
                unproven[path] = f"{described(source)}: its token comes later"
            found[path] = source
            break
        if path not in found:
            faults[path] = clean(f"{path} cannot be had: " + ("; ".join(reasons) or "no source"))
    if faults:
        raise NodeError("; ".join(faults.values()), files=faults)
    store.need_room(missing, reserve)
    return {"ok": True, "from": found, "unproven": unproven}


def main(spec: dict[str, Any], carried: str | None) -> dict[str, Any]:
    """Make every file of `files` stand in `directory`, or only ask whether it could (`preflight`).

    Sources are tried in order. `verify` "full" re-hashes what its stamp would vouch for. Answers
    with `files` {path: "kept" | "verified" | "fetched"},
    `from` {path: the source, for people}, `bytes_received` and `seconds`.
    """
    began = time.monotonic()
    store = Store(spec)
    preflight, reserve = bool(spec.get("preflight")), int(spec.get("reserve_bytes") or 0)
    web = Web(
        spec.get("ca_bundle"),
        spec.get("proxy"),
        float(spec.get("timeout_seconds") or (20.0 if preflight else 60.0)),
    )
    courier = Courier(web, _token(spec), float(spec.get("backoff_seconds") or 1.0))
    if preflight:
        token_later = bool(spec.get("token_stdin")) and courier.token is None
        return _preflight(store, courier, reserve, token_later)
    waiting = f"another run is fetching into {store.directory}: waiting"
    with locked(str(spec["lock"]), waiting):
        store = Store(spec)  # the other run may have done our work
        missing = []
        for file in store.files:
            standing = store.stands(file, hashing=True)
            if standing is None:
                missing.append(file)
                continue
            store.outcome[file["path"]] = standing
            if standing == "verified":
                store.record(file)
        store.need_room(missing, reserve)
        if missing:
            store.make()
        for file in missing:
            _obtain(store, courier, file)
            store.put(file)
            store.record(file)
            store.outcome[file["path"]] = "fetched"
        with contextlib.suppress(OSError):
            clear(store.staging)
    return {
        "ok": True,
        "files": store.outcome,
        "from": store.origin,
        "bytes_received": courier.received,
        "seconds": round(time.monotonic() - began, 1),
    }
