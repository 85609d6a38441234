"""A folder with every wheel of a lock, filled once: what the lab's own index serves to nodes."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuwright.environments import requirements
from gpuwright.load import load_matrix
from gpuwright.lock_rows import LockRow
from gpuwright.python_rows import UvRow
from tests.lab import caches
from tests.lab.machine import directory, locked, say


class UnavailableError(Exception):
    """A wheel cannot be had here; the text says which."""


def cpu_lock() -> LockRow:
    return next(row for row in load_matrix().locks if row.build_tag == "cpu" and row.sha256)


def uv_row(architecture: str = "x86_64") -> UvRow:
    return next(row for row in load_matrix().uv if row.architecture == architecture)


def _stamp(lock: LockRow) -> tuple[Path, str]:
    return caches.shared(f"wheels/{lock.id}") / "complete", f"{lock.sha256} {uv_row().sha256}"


def is_complete(lock: LockRow) -> bool:
    """Whether the folder holds every wheel of the lock, and uv's."""
    stamp, wanted = _stamp(lock)
    return stamp.exists() and stamp.read_text() == wanted


@contextmanager
def borrowed(lock: LockRow) -> Iterator[Path]:
    """The folder of a lock that takes gigabytes: gone afterwards, unless it was here before."""
    stays = is_complete(lock)
    try:
        yield ensure(lock)
    finally:
        if not stays:
            shutil.rmtree(caches.shared(f"wheels/{lock.id}"))


def ensure(lock: LockRow) -> Path:
    """The folder: each file's hash is one of the lock's, and uv's wheel is among them."""
    stamp, wanted = _stamp(lock)
    folder, uv = stamp.parent, uv_row()
    with locked(directory() / f"wheels-{lock.id}.lock"):
        if is_complete(lock):
            return folder
        say(f"downloading the wheels of {lock.id} once ({(lock.download_bytes or 0) / 1e9:.1f} GB)")
        lines = [
            " ".join([line, *(f"--hash=sha256:{one}" for one in hashes)])
            for line, hashes in requirements(lock, lock.python[0], lock.architecture).items()
        ]
        lines.append(f"{uv.project}=={uv.version} --hash=sha256:{uv.sha256}")
        listed = folder / "requirements.txt"
        listed.write_text("\n".join(lines) + "\n")
        version = ["--python-version", lock.python[0]]
        words = [
            "download",
            "-q",
            *version,
            "--no-deps",
            "--require-hashes",
            "--only-binary",
            ":all:",
        ]
        done = subprocess.run(
            [sys.executable, "-m", "pip", *words, "-d", str(folder), "-r", str(listed)],
            # Versions that this machine's own settings ask for are not the lock's.
            env=os.environ | {"PIP_CONFIG_FILE": os.devnull},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            links = os.environ.get("PIP_FIND_LINKS", "not set")
            raise UnavailableError(
                f"{lock.filename}: PIP_FIND_LINKS is {links}; pip said: {done.stderr[-1500:]}"
            )
        stamp.write_text(wanted)
    return folder
