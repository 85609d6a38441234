"""Stand-ins for a GPU: driver and management library, so that engines answer on any machine."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

SOURCES = Path(__file__).parent
_FUNCTION = re.compile(r"\bcu[A-Z]\w*")
_COMPILE = ("gcc", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror")
_GIB = 2**30


def build_nvml(
    directory: Path,
    *flags: str,
    version: str = "580.95.05",
    variables: Mapping[str, str] | None = None,
) -> Path:
    """Compile the management library into `directory` under its two names; the directory.
    `variables` are the compiler's, where it is not to be this machine's."""
    library = directory / f"libnvidia-ml.so.{version}"
    _compile(SOURCES / "nvml.c", library, "libnvidia-ml.so.1", *flags, variables=variables)
    _link(directory / "libnvidia-ml.so.1", library)
    return directory


def build_driver(
    directory: Path, header: Path, *flags: str, variables: Mapping[str, str] | None = None
) -> Path:
    """Compile the driver library with every function that `header`, a cuda.h, names; the directory.
    `flags` may define CAPABILITY and DRIVER_VERSION."""
    ours = set(_FUNCTION.findall((SOURCES / "driver.c").read_text(encoding="utf-8")))
    rest = set(_FUNCTION.findall(header.read_text(encoding="utf-8"))) - ours
    directory.mkdir(parents=True, exist_ok=True)
    lines = "".join(f"REST({name})\n" for name in sorted(rest))
    (directory / "rest.inc").write_text(lines, encoding="utf-8")
    library = directory / "libcuda.so.1"
    included = f"-I{directory}"
    _compile(SOURCES / "driver.c", library, library.name, included, *flags, variables=variables)
    _link(directory / "libcuda.so", library)
    return directory


def build_runtime(directory: Path, include: Path, *flags: str) -> Path:
    """Compile what is loaded before CUDA's own runtime, with a toolkit's headers; the library."""
    library = directory / "libcards.so"
    _compile(SOURCES / "runtime.c", library, library.name, f"-I{include}", *flags)
    return library


def scenario(name: str, capability: str, memory_gib: int, *, cards: int = 1) -> str:
    """A rig of equal cards for the management library, with a driver for CUDA 13."""
    lines = ["driver 580.95.05", "cuda 13000"]
    for number in range(cards):
        lines.append(
            f"device GPU-00000000-0000-0000-0000-{number:012d}|00000000:{number + 1:02X}:00.0"
            f"|220410de|{name}|{capability}|{memory_gib * _GIB}|{memory_gib * _GIB}"
        )
    return "\n".join(lines) + "\n"


def _compile(
    source: Path,
    library: Path,
    soname: str,
    *flags: str,
    variables: Mapping[str, str] | None = None,
) -> None:
    library.parent.mkdir(parents=True, exist_ok=True)
    command = [*_COMPILE, f"-Wl,-soname,{soname}", *flags, "-o", str(library), str(source)]
    subprocess.run(command, check=True, env=variables)


def _link(link: Path, target: Path) -> None:
    link.unlink(missing_ok=True)
    link.symlink_to(target.name)
