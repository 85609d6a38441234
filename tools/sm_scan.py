"""Which cards shared objects hold machine code for, read from their fat binaries' headers.

Nothing is run and no CUDA tool is needed: an ELF section `.nv_fatbin` is a row of containers, each
with entries of PTX or of machine code for one compute capability. The letter of `sm_90a` or
`sm_100f` does not stand in a header.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from gpuwright.questions.cards import CODE, PTX, entries


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


def targets_of(path: Path) -> Targets:
    """What one file holds; nothing where it is no 64-bit ELF file or has no fat binary."""
    targets = Targets()
    for kind, capability in entries(path):
        {PTX: targets.ptx, CODE: targets.code}[kind][capability] += 1
    return targets
