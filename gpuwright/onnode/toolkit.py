"""A CUDA toolkit out of verified wheels: a directory that is complete, or not there."""

from __future__ import annotations

import calendar
import os
import shutil
import time
import zipfile
import zlib
from typing import IO, Any

from gpuwright.onnode.archives import clear, inside
from gpuwright.onnode.outcome import NodeError, say
from gpuwright.onnode.room import on_disk, require_room, unwritable
from gpuwright.onnode.stamps import (
    STAMP,
    read_stamp,
    same_as_stamped,
    stamped,
    vouched,
    write_stamp,
)
from gpuwright.onnode.storage import locked, sha256_of, sync_directory


def standing(spec: dict[str, Any]) -> bool:
    """Whether the toolkit of this key is there, with every program and library as it was made."""
    directory = str(spec["directory"])
    stamp = read_stamp(directory)
    files = vouched(stamp)
    return (
        stamp.get("key") == spec["key"]
        and bool(files)
        and all(same_as_stamped(f"{directory}/{name}", entry) for name, entry in files.items())
        and all(os.path.exists(f"{directory}/{link}") for link in spec["links"])
    )


def stand(spec: dict[str, Any]) -> float | None:
    """Make the toolkit stand; the seconds that it took, None where it stood.

    spec: directory, key, wheels (path and sha256 of each), root (what of them is the toolkit),
    links (name: target), lock, need_bytes. NodeError: a wheel is another file, or has no place.
    """
    directory = str(spec["directory"])
    name = os.path.basename(directory)
    with locked(str(spec["lock"]), f"another run is unpacking {name}: waiting"):
        if standing(spec):
            # The newest in use is the last to be removed.
            os.utime(f"{directory}/{STAMP}")
            return None
        began = time.monotonic()
        partial = f"{directory}.partial"
        with on_disk(directory):
            clear(partial)
            require_room(partial, int(spec["need_bytes"]), f"unpacking {name}")
            os.makedirs(partial)
        try:
            for wheel in spec["wheels"]:
                say(f"unpack {os.path.basename(str(wheel['path']))}")
                _unpack(wheel, str(spec["root"]), partial)
            programs = sorted(_programs(partial))
            if not programs:
                raise NodeError(f"the wheels hold nothing below {spec['root']}")
            for link, target in spec["links"].items():
                os.symlink(target, inside(partial, link, link))
            entries = {
                each: stamped(f"{partial}/{each}", sha256_of(f"{partial}/{each}"))
                for each in programs
            }
            write_stamp(partial, {"schema": 1, "key": spec["key"], "files": entries})
            clear(directory)
            os.rename(partial, directory)
            sync_directory(os.path.dirname(directory))
        except OSError as problem:
            raise unwritable(problem, directory) from None
        finally:
            clear(partial)
    return round(time.monotonic() - began, 1)


def _unpack(wheel: dict[str, Any], root: str, partial: str) -> None:
    path = str(wheel["path"])
    if not os.path.isfile(path):
        raise NodeError(f"the wheel {path} is not there", "run again: it is fetched anew")
    found = sha256_of(path)
    if found != wheel["sha256"]:
        told = f"{path}: sha256 is {found[:16]}..., needed {wheel['sha256'][:16]}..."
        raise NodeError(told, "run again: it is fetched anew")
    try:
        with zipfile.ZipFile(path) as opened:
            for member in opened.infolist():
                name = member.filename
                if not name.startswith(f"{root}/") or member.is_dir():
                    continue
                target = inside(partial, name[len(root) + 1 :], name)
                os.makedirs(os.path.dirname(target), exist_ok=True)
                runs = (member.external_attr >> 16) & 0o100
                mode = 0o755 if runs or "/bin/" in name else 0o644
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
                with opened.open(member) as content:
                    _write(os.open(target, flags, mode), content)
                # ccache tells compilers apart by time: what is unpacked again is the same one.
                year, month, *rest = member.date_time
                # Four bits, where whoever packed it had no date to give.
                packed = calendar.timegm((year, min(max(month, 1), 12), *rest, 0, 0, 0))
                os.utime(target, (packed, packed))
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, FileExistsError) as problem:
        raise NodeError(f"{path} cannot be unpacked: {problem}") from None


def _write(descriptor: int, content: IO[bytes]) -> None:
    with open(descriptor, "wb") as file:
        shutil.copyfileobj(content, file, 1 << 20)


def _programs(directory: str) -> list[str]:
    """What compiles and what is linked: the headers beside them are many, and small."""
    return [
        os.path.relpath(f"{place}/{name}", directory)
        for place, _, names in os.walk(directory)
        for name in names
        if not os.path.islink(f"{place}/{name}") and "/include" not in place
    ]
