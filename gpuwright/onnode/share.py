"""Pack a build that stands here, for nodes of which the same is wanted."""

from __future__ import annotations

import os
import tarfile
import time
from typing import Any

from gpuwright.onnode.archives import clear
from gpuwright.onnode.build import standing
from gpuwright.onnode.outcome import NodeError, say
from gpuwright.onnode.room import on_disk, require_room
from gpuwright.onnode.storage import locked, sha256_of


def main(spec: dict[str, Any], carried: str | None) -> dict[str, Any]:
    """Pack the engine of `key` in `engine_dir` into the file `packed`, which root alone reads.

    spec: that of the build, and packed. Answers with `sha256`, `bytes` and `seconds`.
    """
    began = time.monotonic()
    directory, packed = str(spec["engine_dir"]).rstrip("/"), str(spec["packed"])
    with locked(str(spec["lock"]), f"another run is at work on {directory}: waiting"):
        if standing(spec) is None:
            raise NodeError(f"{directory} does not hold the build that others want")
        clear(packed)
        size = sum(
            os.lstat(f"{place}/{name}").st_size
            for place, _, names in os.walk(directory)
            for name in names
        )
        os.makedirs(os.path.dirname(packed), exist_ok=True)
        require_room(os.path.dirname(packed), size + (1 << 20), f"packing {directory}")
        say(f"pack {os.path.basename(directory)}: {size // 10**6} MB")
        with on_disk(packed):
            try:
                _pack(directory, packed)
            except BaseException:
                clear(packed)  # or a full disk stays full
                raise
    return {
        "ok": True,
        "sha256": sha256_of(packed),
        "bytes": os.path.getsize(packed),
        "seconds": round(time.monotonic() - began, 1),
    }


def _pack(directory: str, packed: str) -> None:
    descriptor = os.open(packed, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w") as archive:
        archive.add(directory, arcname=".")
