"""Bring files to the node, each verified before it gets its name; what is right is kept."""

from __future__ import annotations

import contextlib
import re
import select
import sys
import time
from typing import Any

from gpuwright.onnode.addresses import WebError
from gpuwright.onnode.archives import clear
from gpuwright.onnode.download import SourceError
from gpuwright.onnode.outcome import NodeError, clean
from gpuwright.onnode.room import on_disk, unwritable
from gpuwright.onnode.sources import Courier, described, elsewhere, why_not
from gpuwright.onnode.storage import locked
from gpuwright.onnode.store import Store
from gpuwright.onnode.web import Web


def _token(spec: dict[str, Any]) -> str | None:
    """The hub's token from standard input; who forgot to send one must not hold us up."""
    if not spec.get("token_stdin") or not select.select([sys.stdin], [], [], 5.0)[0]:
        return None
    token = sys.stdin.readline().strip()
    if token and not re.match(r"[\x21-\x7e]+\Z", token):
        raise NodeError("the hub's token is not one word of visible ASCII characters")
    return token or None


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
            raise unwritable(problem, store.partial(file)) from None
    raise NodeError(
        f"{file['path']} cannot be had: " + ("; ".join(reasons) or "it has no source"),
        elsewhere(file["sources"]),
    )


def _preflight(store: Store, courier: Courier, reserve: int, token_later: bool) -> dict[str, Any]:
    """Ask the sources only. A hub's file whose token comes later is believed in, as `unproven`."""
    store.check_places()
    found: dict[str, Any] = {}
    faults: dict[str, str] = {}
    unproven: dict[str, str] = {}
    missing = []
    for file in store.files:
        path = file["path"]
        if store.stands(file, hashing=not store.trusting):
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
        sources = [each for file in missing if file["path"] in faults for each in file["sources"]]
        raise NodeError("; ".join(faults.values()), elsewhere(sources), files=faults)
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
    patience = float(spec.get("timeout_seconds") or (20.0 if preflight else 60.0))
    try:
        web = Web(spec.get("ca_bundle"), spec.get("proxy"), patience)
    except WebError as problem:
        raise NodeError(problem.clause) from None
    courier = Courier(web, _token(spec), float(spec.get("backoff_seconds") or 1.0))
    if preflight:
        token_later = bool(spec.get("token_stdin")) and courier.token is None
        with on_disk(store.directory):
            return _preflight(store, courier, reserve, token_later)
    waiting = f"another run is fetching into {store.directory}: waiting"
    with locked(str(spec["lock"]), waiting), on_disk(store.directory):
        store = Store(spec)  # the other run may have done our work
        _fetch(store, courier, reserve)
    return {
        "ok": True,
        "files": store.outcome,
        "from": store.origin,
        "bytes_received": courier.received,
        "seconds": round(time.monotonic() - began, 1),
    }


def _fetch(store: Store, courier: Courier, reserve: int) -> None:
    store.check_places()
    missing = []
    for file in store.files:
        standing = store.stands(file, hashing=True)
        if standing is None:
            missing.append(file)
            continue
        store.outcome[file["path"]] = standing
        if not store.vouched_for(file):
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
