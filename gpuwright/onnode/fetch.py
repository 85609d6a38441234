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
from gpuwright.onnode.store import Store, need_room
from gpuwright.onnode.web import Web


def _token(spec: dict[str, Any]) -> str | None:
    """The hub's token from standard input; who forgot to send one must not hold us up."""
    if not spec.get("token_stdin") or not select.select([sys.stdin], [], [], 5.0)[0]:
        return None
    token = sys.stdin.readline().strip()
    if token and not re.match(r"[\x21-\x7e]+\Z", token):
        raise NodeError("the hub's token is not one word of visible ASCII characters")
    return token or None


def _obtain(store: Store, courier: Courier, file: dict[str, Any]) -> str:
    """Get one file from the first source that delivers it, and say which. NodeError: none does."""
    reasons = []
    for source in file["sources"]:
        try:
            courier.get(source, file, store.partial(file))
            return described(source)
        except (SourceError, WebError) as problem:
            reason = why_not(problem, source, courier.token is not None)
            reasons.append(f"{described(source)}: {reason}")
        except OSError as problem:
            raise unwritable(problem, store.partial(file)) from None
    raise NodeError(_unobtainable(store, file, reasons), elsewhere(file["sources"]))


def _unobtainable(store: Store, file: dict[str, Any], reasons: list[str]) -> str:
    return f"{store.path(file)} cannot be had: " + ("; ".join(reasons) or "it has no source")


def _preflight(
    stores: list[Store], courier: Courier, reserve: int, token_later: bool
) -> dict[str, Any]:
    """Ask the sources only. A hub's file whose token comes later is believed in, as `unproven`."""
    found: dict[str, Any] = {}
    faults: dict[str, str] = {}
    unproven: dict[str, str] = {}
    for store in stores:
        with on_disk(store.directory):
            store.check_places()
            for file in store.files:
                if store.stands(file, hashing=not store.trusting):
                    found[store.path(file)] = {"kind": "present"}
                else:
                    store.missing.append(file)
    for store, file in [(each, file) for each in stores for file in each.missing]:
        path = store.path(file)
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
            faults[path] = clean(_unobtainable(store, file, reasons))
    if faults:
        sources = [
            each
            for store in stores
            for file in store.missing
            if store.path(file) in faults
            for each in file["sources"]
        ]
        raise NodeError("; ".join(faults.values()), elsewhere(sources), files=faults)
    need_room(stores, reserve)
    return {"ok": True, "from": found, "unproven": unproven}


def main(spec: dict[str, Any], carried: str | None) -> dict[str, Any]:
    """Make every file of `stores` stand, or only ask whether it could (`preflight`).

    A store is directory, files and lock. Sources are tried in order. `verify` "full" re-hashes what
    a stamp would vouch for. Answers with `files` {path: "kept" | "verified" | "fetched"}, `from`
    {path: the source, for people}, `bytes_received` and `seconds`. NodeError: a file cannot be had;
    then none of any store was replaced, and what came is kept for the next run.
    """
    began = time.monotonic()
    stores = _stores(spec)
    preflight, reserve = bool(spec.get("preflight")), int(spec.get("reserve_bytes") or 0)
    patience = float(spec.get("timeout_seconds") or (20.0 if preflight else 60.0))
    try:
        web = Web(spec.get("ca_bundle"), spec.get("proxy"), patience)
    except WebError as problem:
        raise NodeError(problem.clause) from None
    courier = Courier(web, _token(spec), float(spec.get("backoff_seconds") or 1.0))
    if preflight:
        token_later = bool(spec.get("token_stdin")) and courier.token is None
        return _preflight(stores, courier, reserve, token_later)
    with contextlib.ExitStack() as held:
        # In one order, or two runs that share two stores may wait for each other for ever.
        for lock, place in sorted({store.lock: store.directory for store in stores}.items()):
            held.enter_context(locked(lock, f"another run is fetching into {place}: waiting"))
        # The other run may have done our work.
        files, origins = _fetch(_stores(spec), courier, reserve)
    return {
        "ok": True,
        "files": files,
        "from": origins,
        "bytes_received": courier.received,
        "seconds": round(time.monotonic() - began, 1),
    }


def _stores(spec: dict[str, Any]) -> list[Store]:
    return [Store(store, spec.get("verify") != "full") for store in spec["stores"]]


def _fetch(
    stores: list[Store], courier: Courier, reserve: int
) -> tuple[dict[str, str], dict[str, str]]:
    """What became of each file, and where those that were missing came from."""
    outcome: dict[str, str] = {}
    origins: dict[str, str] = {}
    for store in stores:
        with on_disk(store.directory):
            store.check_places()
            for file in store.files:
                standing = store.stands(file, hashing=True)
                if standing is None:
                    store.missing.append(file)
                    continue
                outcome[store.path(file)] = standing
                if not store.vouched_for(file):
                    store.record(file)
    need_room(stores, reserve)
    for store in stores:
        with on_disk(store.directory):
            if store.missing:
                store.make()
            for file in store.missing:
                origins[store.path(file)] = _obtain(store, courier, file)
    # None takes its name before all are there: what serves may have been made of the old ones.
    for store in stores:
        with on_disk(store.directory):
            for file in store.missing:
                store.put(file)
                store.record(file)
                outcome[store.path(file)] = "fetched"
        with contextlib.suppress(OSError):
            clear(store.staging)
    return outcome, origins
