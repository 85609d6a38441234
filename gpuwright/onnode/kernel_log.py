"""Errors that the NVIDIA driver wrote to the kernel log in this boot."""

from __future__ import annotations

import os
import re
import stat

from gpuwright.onnode.tree import Tree

_MOST_BYTES = 16 << 20
"""The largest ring that kernels of distributions can be given is of this size."""
_RECORD = 8192
_XID = re.compile(
    rb"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f]{4,8}(?::[0-9A-Fa-f]{2}){2})[^)]{0,8}\): (\d{1,5})\b"
)


def xids(tree: Tree) -> dict[str, list[int]] | None:
    """Xid numbers by the address of the card (`0000:01:00`, no function), sorted, each once.

    None where the log may not be read. An old entry may have been overwritten: the ring has no
    more than the last ones.
    """
    try:
        descriptor = os.open(tree.at("/dev/kmsg"), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    found: dict[str, set[int]] = {}
    try:
        kind = os.fstat(descriptor).st_mode
        if not (stat.S_ISCHR(kind) or stat.S_ISREG(kind)):
            return None  # containers have a pipe there
        read = 0
        rest = b""
        while read < _MOST_BYTES:
            try:
                data = os.read(descriptor, _RECORD)
            except BrokenPipeError:
                read += _RECORD
                continue  # a record that was overwritten while it was read
            except OSError:
                break  # no more of them
            if not data:
                break
            read += len(data)
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if b"Xid" in line:
                    _note(line, found)
        _note(rest, found)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return _sorted(found)


def printed(text: str) -> dict[str, list[int]]:
    """The same of what dmesg printed."""
    found: dict[str, set[int]] = {}
    for line in text.splitlines():
        _note(line.encode(), found)
    return _sorted(found)


def _sorted(found: dict[str, set[int]]) -> dict[str, list[int]]:
    return {address: sorted(numbers) for address, numbers in found.items()}


def _note(line: bytes, found: dict[str, set[int]]) -> None:
    match = _XID.search(line)
    if match:
        domain, rest = match[1].decode().lower().split(":", 1)
        found.setdefault(f"{int(domain, 16):04x}:{rest}", set()).add(int(match[2]))
