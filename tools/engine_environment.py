"""An engine's real wheels in an environment of their own, run on stand-in cards.

Nothing here knows an engine: what is asked stands in tools/standins/*_questions.py.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuwright import questions
from tools.emulation import HERE, PROGRAMS, Machine
from tools.lock_resolve import LockError
from tools.package_index import PackageIndex, UvError, uv
from tools.standins import SOURCES, build_driver, build_nvml, scenario

ENGINES = Path(tempfile.gettempdir()) / "gpuwright-engines"
CPU = "cpu"
"""Where a build is asked that needs no card."""
QUESTIONS = Path(questions.__path__[0])
"""Programs that nodes run in the same environments, which those here go on from."""
PLATFORM = """
import platform
name = platform.freedesktop_os_release()["PRETTY_NAME"]
print(f"{name}, glibc {platform.libc_ver()[1]}, {platform.machine()}")
"""
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
"""Of the engines that have records."""
_PLAIN = Toolchain(nvcc=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineEnvironment:
    """Where it stands, and how long it took to install; 0 where it stood already."""

    engine: str
    release: str
    cuda: str | None
    """Toolkit of the build; None: it runs on the CPU, without stand-ins."""
    directory: Path
    seconds: float = 0
    machine: Machine = HERE

    @property
    def python(self) -> Path:
        return self.directory / "venv/bin/python"

    def installed(self) -> dict[str, str]:
        """Name of a package -> its version, as uv finds them."""
        words = ("pip", "list", "--format", "json", "--python", str(self.python))
        told = uv(*words, variables=self.machine.variables())
        return {row["name"]: row["version"] for row in json.loads(told)}

    def platform(self) -> str:
        """What its Python says that it runs on, and what emulates that."""
        done = subprocess.run(
            [str(self.python), "-c", PLATFORM],
            env={**os.environ, **self.machine.variables()},
            capture_output=True,
            text=True,
            check=True,
        )
        told = done.stdout.strip()
        if self.machine.root is None:
            return told
        return f"{told}, emulated by {self.machine.emulator(told.rpartition(' ')[2])}"

    def bytes(self) -> int:
        """What it takes on a disk that holds nothing of it yet."""
        files = (self.directory / "venv").rglob("*")
        return sum(path.lstat().st_blocks * 512 for path in files)

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
        program = SOURCES / f"{self.engine.replace('-', '_')}_questions.py"
        done = subprocess.run(
            [str(self.python), str(program)],
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
        path = [str(self.directory / "programs")]
        common = {
            "PYTHONPATH": str(QUESTIONS),
            "HOME": str(self.directory / "home"),
            "HF_HUB_OFFLINE": "1",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_NO_USAGE_STATS": "1",
            **self.machine.variables(),
        }
        if self.cuda is None:
            return common | {"PATH": ":".join([str(self.directory / "venv/bin"), *path])}
        kind = TOOLCHAINS.get(self.engine, {}).get(toolchain, _PLAIN)
        toolkit = self.directory / ("cuda" if kind.nvcc else "no-cuda")
        if kind.nvcc:
            path = [str(toolkit / "bin"), str(self.directory / "venv/bin"), *path]
        return {
            **common,
            "PATH": ":".join(path),
            "CUDA_HOME": str(toolkit),
            "LD_LIBRARY_PATH": str(self.directory / "lib"),
            "NVML_SCENARIO": str(rig),
            "STANDIN_CAPABILITY": capability,
            "STANDIN_CARDS": str(cards),
            "STANDIN_MEMORY_GIB": str(memory_gib),
            "STANDIN_TOOLKIT": self.cuda,
            "FLASHINFER_CUBINS_REPOSITORY": NOWHERE,
            **dict(kind.environment),
        }


def absent_pythons(minors: Iterable[str], machine: Machine = HERE) -> tuple[str, ...]:
    """Those of which nothing on the machine is an interpreter, as uv looks for one."""

    def there(minor: str) -> bool:
        words = ("--no-python-downloads", "--system", machine.python(minor))
        try:
            uv("python", "find", *words, variables=machine.variables())
        except UvError:
            return False
        return True

    return tuple(minor for minor in minors if not there(minor))


def install(
    engine: str,
    release: str,
    cuda: str | None,
    directory: Path,
    lock: Path,
    *,
    python: str,
    index: PackageIndex,
    machine: Machine = HERE,
) -> EngineEnvironment:
    """Install what `lock` says into `directory`, hash by hash, unless just that stands there."""
    stamp, seconds = directory / "installed", 0.0
    key = f"{python}\n{lock.read_text(encoding='utf-8')}"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != key:
        began = time.monotonic()
        stamp.unlink(missing_ok=True)
        _install(lock, directory, python, index, machine)
        seconds = time.monotonic() - began
        stamp.write_text(key, encoding="utf-8")
    # Always anew: they are of this checkout, and an environment may outlive it.
    _stand_in(directory, machine, driver=cuda is not None)
    return EngineEnvironment(
        engine=engine,
        release=release,
        cuda=cuda,
        directory=directory,
        seconds=seconds,
        machine=machine,
    )


def _install(
    lock: Path, directory: Path, python: str, index: PackageIndex, machine: Machine
) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    venv = ("venv", "-q", "--clear", "--python", machine.python(python), str(directory / "venv"))
    uv(*venv, variables=machine.variables())
    uv(
        *("pip", "sync", "-q", "--require-hashes", "--no-build", "--link-mode", "hardlink"),
        *("--python", str(directory / "venv/bin/python"), str(lock)),
        index=index,
        cache=directory.parent / "cache",
        variables=machine.variables(),
    )


def _stand_in(directory: Path, machine: Machine, *, driver: bool) -> None:
    """Libraries, compiler and programs that the engine finds in place of the machine's."""
    for name in ("home", "no-cuda", "programs", "cuda/bin"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    for name in PROGRAMS:
        found, link = machine.program(name), directory / "programs" / name
        if found and not link.exists():
            link.symlink_to(found)
    if driver:
        variables = machine.variables() or None
        if variables:
            variables |= {"PATH": str(directory / "programs")}
        build_nvml(directory / "lib", variables=variables)
        build_driver(directory / "lib", _toolkit_header(directory / "venv"), variables=variables)
    shutil.copy2(SOURCES / "nvcc", directory / "cuda/bin/nvcc")


def _toolkit_header(venv: Path) -> Path:
    """The CUDA runtime wheel's own cuda.h; else Triton's copy, which names fewer functions."""
    packages = next(venv.glob("lib/python*/site-packages"))
    triton = "triton/backends/nvidia/include/cuda.h"
    for pattern in ("nvidia/cu*/include/cuda.h", "nvidia/*/include/cuda.h", triton):
        for header in sorted(packages.glob(pattern)):
            return header
    raise LockError("no cuda.h in what was installed: that is no build for CUDA")
