"""Which cards shared objects hold machine code for, read from their fat binaries' headers.

Nothing is run and no CUDA tool is needed: an ELF section `.nv_fatbin` is a row of containers, each
with entries of PTX or of machine code for one compute capability. The letter of `sm_90a` or
`sm_100f` does not stand in a header.
"""

from __future__ import annotations

import mmap
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_MAGIC = 0xBA55ED50
_CONTAINER = struct.Struct("<IHHQ")
"""Magic, version, size of this header, size of what follows."""
_ENTRY = struct.Struct("<HHIQ")
"""Kind, version, size of this header, size of what follows; the capability is at _CAPABILITY."""
_CAPABILITY = 28
_SECTIONS = (b".nv_fatbin", b"__nv_relfatbin")
_PTX, _CODE = 1, 2


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
    with path.open("rb") as file:
        if file.read(5) != b"\x7fELF\x02":
            return targets
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for begin, end in _fat_sections(data):
                for kind, capability in _entries(data, begin, end):
                    {_PTX: targets.ptx, _CODE: targets.code}[kind][capability] += 1
    return targets


def _fat_sections(data: mmap.mmap) -> Iterator[tuple[int, int]]:
    """Begin and end of each section that holds fat binaries."""
    (offset,) = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<HHH", data, 58)
    if not offset or not count:
        return
    headers = [struct.unpack_from("<IIQQQQ", data, offset + n * size) for n in range(count)]
    strings = headers[names][4]
    for name, _, _, _, begin, length in headers:
        end = data.find(b"\0", strings + name)
        if data[strings + name : end] in _SECTIONS:
            yield begin, begin + length


def _entries(data: mmap.mmap, begin: int, end: int) -> Iterator[tuple[int, str]]:
    position = begin
    while position + _CONTAINER.size <= end:
        magic, _, header, length = _CONTAINER.unpack_from(data, position)
        if magic != _MAGIC:
            position += 8  # containers are aligned, and padded with zeros
            continue
        entry, position = position + header, position + header + length
        while entry + _CAPABILITY + 4 <= min(position, end):
            kind, _, size, content = _ENTRY.unpack_from(data, entry)
            if kind not in (_PTX, _CODE) or not size:
                break
            (number,) = struct.unpack_from("<I", data, entry + _CAPABILITY)
            yield kind, f"{number // 10}.{number % 10}"
            entry += size + content
