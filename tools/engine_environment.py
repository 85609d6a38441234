"""An engine's real CUDA wheels in an environment of their own, run on stand-in cards.

Nothing here knows an engine: what is asked stands in tools/standins/*_questions.py.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuwright.python_index import default_index_url
from tools.standins import SOURCES, build_driver, build_nvml, scenario

PYTHON = "3.11"
PROGRAMS = (
    *("ar", "as", "basename", "c++", "cat", "cc", "dirname", "env", "g++", "gcc", "ld"),
    *("ldconfig", "lscpu", "mkdir", "rm", "sh", "uname", "which"),
)
"""What of the machine's own programs an engine finds: with more, a compiler for CUDA could be."""
NOWHERE = "http://127.0.0.1:9/"
"""Where downloads of kernels are sent: nothing listens there."""
MEMORY_GIB = 24


@dataclass(frozen=True, kw_only=True, slots=True)
class Toolchain:
    """What a service finds beside the engine: nothing, a CUDA compiler, or built kernels too."""

    nvcc: bool
    environment: tuple[tuple[str, str], ...] = ()


TOOLCHAINS: dict[str, dict[str, Toolchain]] = {
    "vllm": {
        "none": Toolchain(nvcc=False),
        "nvcc": Toolchain(nvcc=True),
        "prebuilt": Toolchain(nvcc=True, environment=(("VLLM_HAS_FLASHINFER_CUBIN", "1"),)),
    },
    "sglang": {"none": Toolchain(nvcc=False), "nvcc": Toolchain(nvcc=True)},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineEnvironment:
    """Where it stands, and how long it took to install; 0 where it stood already."""

    engine: str
    release: str
    cuda: str
    directory: Path
    seconds: float = 0

    @property
    def python(self) -> Path:
        return self.directory / "venv/bin/python"

    def lock(self) -> str:
        """What is installed, one `name==version` a line."""
        command = [sys.executable, "-m", "uv", "pip", "freeze", "--python", str(self.python)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def ask(
        self,
        questions: dict[str, Any],
        *,
        capability: str,
        toolchain: str = "nvcc",
        memory_gib: int = MEMORY_GIB,
        cards: int = 1,
    ) -> dict[str, Any]:
        """The answers of one process on stand-in cards; CalledProcessError where it ended badly."""
        rig = self.directory / f"rigs/{capability}-{memory_gib}-{cards}"
        rig.parent.mkdir(exist_ok=True)
        rig.write_text(
            scenario(f"Stand-in {capability}", capability, memory_gib, cards=cards),
            encoding="utf-8",
        )
        done = subprocess.run(
            [str(self.python), str(SOURCES / f"{self.engine}_questions.py")],
            input=json.dumps(questions),
            env=self._variables(toolchain, capability, rig, cards, memory_gib),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            sys.stderr.write(done.stderr[-4000:])
            raise subprocess.CalledProcessError(done.returncode, done.args)
        answers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return answers

    def _variables(
        self, toolchain: str, capability: str, rig: Path, cards: int, memory_gib: int
    ) -> dict[str, str]:
        kind = TOOLCHAINS[self.engine][toolchain]
        toolkit = self.directory / ("cuda" if kind.nvcc else "no-cuda")
        path = [str(self.directory / "programs")]
        if kind.nvcc:
            path = [str(toolkit / "bin"), str(self.directory / "venv/bin"), *path]
        return {
            "PATH": ":".join(path),
            "HOME": str(self.directory / "home"),
            "CUDA_HOME": str(toolkit),
            "LD_LIBRARY_PATH": str(self.directory / "lib"),
            "NVML_SCENARIO": str(rig),
            "STANDIN_CAPABILITY": capability,
            "STANDIN_CARDS": str(cards),
            "STANDIN_MEMORY_GIB": str(memory_gib),
            "STANDIN_TOOLKIT": self.cuda,
            "FLASHINFER_CUBINS_REPOSITORY": NOWHERE,
            "HF_HUB_OFFLINE": "1",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_NO_USAGE_STATS": "1",
            **dict(kind.environment),
        }


def install(
    engine: str, release: str, cuda: str, directory: Path, constraints: tuple[str, ...]
) -> EngineEnvironment:
    """Install the release into `directory` unless it stands there, with its stand-ins."""
    stamp, seconds = directory / "installed", 0.0
    if not stamp.exists():
        began = time.monotonic()
        _install(f"{engine}=={release}", directory, constraints)
        seconds = time.monotonic() - began
        stamp.touch()
    # Always anew: they are of this checkout, and an environment may outlive it.
    _stand_in(directory)
    return EngineEnvironment(
        engine=engine, release=release, cuda=cuda, directory=directory, seconds=seconds
    )


def _install(requirement: str, directory: Path, constraints: tuple[str, ...]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    limits = directory / "constraints.txt"
    limits.write_text("".join(f"{line}\n" for line in constraints), encoding="utf-8")
    _uv("venv", "-q", "--clear", "--python", PYTHON, str(directory / "venv"), index=False)
    _uv(
        *("pip", "install", "-q", "--python", str(directory / "venv/bin/python")),
        *("--link-mode", "hardlink", "--constraint", str(limits), requirement),
        cache=directory.parent / "cache",
    )


def _uv(*arguments: str, index: bool = True, cache: Path | None = None) -> None:
    command = [sys.executable, "-m", "uv", *arguments]
    if index:
        command += ["--default-index", default_index_url()]
    environment = dict(os.environ)
    if cache is not None:
        # Beside the environments: only on one filesystem can files be shared by hard links.
        environment["UV_CACHE_DIR"] = str(cache)
    subprocess.run(command, check=True, env=environment)


def _stand_in(directory: Path) -> None:
    """Libraries, compiler and programs that the engine finds in place of the machine's."""
    for name in ("home", "no-cuda", "programs", "cuda/bin"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    build_nvml(directory / "lib")
    build_driver(directory / "lib", _toolkit_header(directory / "venv"))
    shutil.copy2(SOURCES / "nvcc", directory / "cuda/bin/nvcc")
    for name in PROGRAMS:
        found, link = shutil.which(name), directory / "programs" / name
        if found and not link.exists():
            link.symlink_to(Path(found).resolve())


def _toolkit_header(venv: Path) -> Path:
    """The CUDA runtime wheel's own cuda.h; else Triton's copy, which names fewer functions."""
    packages = next(venv.glob("lib/python*/site-packages"))
    for pattern in ("nvidia/cu*/include/cuda.h", "nvidia/*/include/cuda.h"):
        for header in sorted(packages.glob(pattern)):
            return header
    return packages / "triton/backends/nvidia/include/cuda.h"
