"""Build an engine from a verified source archive into a directory that is complete or not there."""

from __future__ import annotations

import os
import time
from typing import Any

from gpuwright.onnode.archives import clear
from gpuwright.onnode.outcome import NodeError
from gpuwright.onnode.retire import retire
from gpuwright.onnode.room import on_disk, require_together
from gpuwright.onnode.stamps import (
    HASHED_BYTES,
    read_stamp,
    same_as_stamped,
    stamped,
    vouched,
    write_stamp,
)
from gpuwright.onnode.storage import locked, sha256_of
from gpuwright.onnode.toolkit import stand
from gpuwright.onnode.toolkit import standing as toolkit_stands
from gpuwright.onnode.workshop import Workshop


def standing(spec: dict[str, Any]) -> str | None:
    """ "kept" or "verified" if the engine of this key is there and whole; None: build it."""
    directory = str(spec["engine_dir"]).rstrip("/")
    stamp = read_stamp(directory)
    files = vouched(stamp)
    if stamp.get("key") != spec["key"] or f"bin/{spec['target']}" not in files:
        return None
    trusting, moved = spec.get("verify") != "full", {}
    for name, entry in files.items():
        path = f"{directory}/{name}"
        believed = trusting and same_as_stamped(path, entry)
        if believed and entry["bytes"] > HASHED_BYTES:
            continue
        if not isinstance(entry, dict) or os.path.islink(path) or not os.path.isfile(path):
            return None
        if sha256_of(path) != entry.get("sha256"):
            return None
        if not believed:
            moved[name] = stamped(path, entry["sha256"])
    if not moved:
        return "kept"
    write_stamp(directory, {**stamp, "files": {**files, **moved}})
    return "verified"


def _needs(spec: dict[str, Any], shop: Workshop) -> list[tuple[str, int]]:
    """What is written where."""
    packed = spec.get("packed")
    if packed:
        there = os.path.isfile(str(packed["path"]))
        return [(shop.partial, os.path.getsize(str(packed["path"])) if there else 0)]
    needs = [(shop.place, int(spec["need_bytes"])), (shop.partial, int(spec["engine_bytes"]))]
    toolkit = spec.get("toolkit")
    if toolkit and not toolkit_stands(toolkit):
        needs.append((str(toolkit["directory"]), int(toolkit["need_bytes"])))
    return needs


def main(spec: dict[str, Any], carried: str | None) -> dict[str, Any]:
    """Make the engine of `key` stand in `engine_dir`.

    spec: key, engine_dir, archive, sha256, source_subdir ("": found), lock, work_dir, ccache_dir,
    compiler, cmake_args, target, jobs, env, user (who it is proven as), proof_args, proof_expect,
    need_bytes, engine_bytes, verify ("full" re-hashes what the stamp would vouch for), retire (see
    `retire.retire`); for cards also toolkit (see `toolkit.stand`), libraries (paths, brought beside
    the binary), driver_library (where it may be), devices_args and devices (how many it must list);
    packed (path and sha256) of a build that another node has made, which is taken instead. Answers
    with `engine` ("kept" | "verified" | "received" | "built"), `seconds` of each part, `jobs`, and
    what was `removed`. On failure `output` has the last lines.
    """
    began = time.monotonic()
    for key in ("engine_dir", "work_dir", "archive", "lock"):
        if not str(spec[key]).startswith("/"):
            raise NodeError(f"{key} {spec[key]!r} is not absolute")
    name = os.path.basename(str(spec["engine_dir"]).rstrip("/"))
    waiting = f"another run is building {name}: waiting"
    with locked(str(spec["lock"]), waiting) as lock, on_disk(str(spec["engine_dir"])):
        found = standing(spec)
        if found is not None:
            return {"ok": True, "engine": found, "seconds": {}}
        shop = Workshop(spec, lock)
        for leftover in (shop.partial, f"{shop.partial}.old", shop.place):
            clear(leftover)
        toolkit = spec.get("toolkit")
        require_together(_needs(spec, shop), f"building {name}")
        try:
            if spec.get("packed"):
                files, version = shop.receive()
            else:
                if toolkit:
                    spent = stand(toolkit)
                    if spent is not None:
                        shop.seconds["toolkit"] = spent
                version = shop.compiler_version()
                source = shop.unpack()
                shop.configure(source)
                jobs = shop.compile()
                files = shop.install()
                clear(shop.place)
            shop.prove()
            shop.publish(files, version)
        finally:
            clear(shop.place)
            clear(shop.partial)
        removed = retire(spec["retire"], shop.engine_dir)
    shop.timed("all", began)
    answer: dict[str, Any] = {"ok": True, "seconds": shop.seconds, "removed": removed}
    if spec.get("packed"):
        return {**answer, "engine": "received"}
    return {**answer, "engine": "built", "jobs": jobs}
