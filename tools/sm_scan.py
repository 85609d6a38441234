"""Which cards shared objects hold machine code for, read from their fat binaries' headers:
`python -m tools.sm_scan FILE.whl ...`, of any architecture's wheels.

Nothing is run and no CUDA tool is needed: an ELF section `.nv_fatbin` is a row of containers, each
with entries of PTX or of machine code for one compute capability. The letter of `sm_90a` or
`sm_100f` does not stand in a header.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpuwright.questions.cards import CODE, PTX, entries
from gpuwright.versions import parse_version


@dataclass(frozen=True, kw_only=True, slots=True)
class Targets:
    """Compute capability ("8.6") -> how many entries a file has for it."""

    code: Counter[str] = field(default_factory=Counter)
    ptx: Counter[str] = field(default_factory=Counter)


def scan(directory: Path) -> dict[str, Targets]:
    """Every shared object under `directory` that holds any, by its path there."""
    found = {}
    for path in sorted(directory.rglob("*.so*")):
        if path.is_file() and not path.is_symlink():
            targets = targets_of(path)
            if targets.code or targets.ptx:
                found[str(path.relative_to(directory))] = targets
    return found


def scan_wheel(path: Path) -> dict[str, Targets]:
    """As `scan`, of the files in a wheel."""
    found = {}
    with zipfile.ZipFile(path) as archive, tempfile.TemporaryDirectory() as folder:
        for name in sorted(archive.namelist()):
            if ".so" in name.rpartition("/")[2]:
                one = Path(folder) / "one.so"
                with archive.open(name) as packed, one.open("wb") as file:
                    shutil.copyfileobj(packed, file)
                targets = targets_of(one)
                if targets.code or targets.ptx:
                    found[name] = targets
    return found


def lines(found: Mapping[str, Targets]) -> list[str]:
    """For people: how many entries each file has for which card."""
    return [
        f"  {name}: {_counted(targets.code)}; PTX {_counted(targets.ptx)}"
        for name, targets in found.items()
    ]


def _counted(numbers: Counter[str]) -> str:
    ordered = sorted(numbers.items(), key=lambda item: parse_version(item[0]))
    return " ".join(f"{capability}:{count}" for capability, count in ordered) or "none"


def targets_of(path: Path) -> Targets:
    """What one file holds; nothing where it is no 64-bit ELF file or has no fat binary."""
    targets = Targets()
    for kind, capability in entries(path):
        {PTX: targets.ptx, CODE: targets.code}[kind][capability] += 1
    return targets


if __name__ == "__main__":
    for each in sys.argv[1:]:
        sys.stdout.write("\n".join([each, *lines(scan_wheel(Path(each)))]) + "\n")
