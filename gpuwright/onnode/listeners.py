"""Who listens on which TCP port, from /proc alone."""

from __future__ import annotations

import re
import socket
from typing import Any

from gpuwright.onnode.outcome import NodeError, clean
from gpuwright.onnode.tree import Tree

_LISTEN = "0A"


def sockets(table: str) -> list[tuple[str, int, str]]:
    """(address, port, inode) of each listening socket of /proc/net/tcp or tcp6."""
    found = []
    for line in table.splitlines()[1:]:
        words = line.split()
        if len(words) < 10 or words[3] != _LISTEN:
            continue
        address, colon, port = words[1].partition(":")
        shown = _address(address)
        if shown and colon and re.match(r"[0-9A-Fa-f]{4}\Z", port) and words[9].isdigit():
            found.append((shown, int(port, 16), words[9]))
    return found


def _address(digits: str) -> str | None:
    """The kernel prints each 32-bit word in the machine's own (little endian) byte order."""
    if not re.match(r"(?:[0-9A-Fa-f]{8}|[0-9A-Fa-f]{32})\Z", digits):
        return None
    raw = bytes.fromhex(digits)
    packed = b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4))
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)


def unit_of(cgroup: str) -> str | None:
    """The systemd service or scope a /proc/PID/cgroup file puts a process in."""
    for line in cgroup.splitlines():
        words = line.split(":", 2)
        if len(words) == 3 and (words[1] in ("", "name=systemd")):
            for part in reversed(words[2].split("/")):
                if part.endswith((".service", ".scope")):
                    return clean(part, 255)
    return None


def ports(tree: Tree, port: int | None = None) -> list[dict[str, Any]]:
    """Each listening TCP socket, or those of one port.

    pid, process and unit are None where they may not be read. NodeError: nothing can be told.
    """
    table = tree.text("/proc/net/tcp")
    if table is None:
        raise NodeError("/proc/net/tcp cannot be read")
    heard = sockets(table) + sockets(tree.text("/proc/net/tcp6") or "")  # IPv6 may be off
    heard = [one for one in heard if port in (None, one[1])]
    owners = _owners(tree, {inode for _, _, inode in heard if inode != "0"})
    found = []
    for address, number, inode in sorted(heard, key=lambda one: (one[1], one[0])):
        pid = owners.get(inode)
        comm = tree.word(f"/proc/{pid}/comm") if pid else None
        found.append(
            {
                "port": number,
                "address": address,
                "pid": pid,
                "process": clean(comm, 64) if comm else None,
                "unit": unit_of(tree.text(f"/proc/{pid}/cgroup") or "") if pid else None,
            }
        )
    return found


def reached(heard: list[dict[str, Any]], address: str, port: int) -> list[dict[str, Any]]:
    """The listeners that a connection to an address and port reaches, as the kernel chooses them.

    The one on that very address, else those on every address; an IPv6 socket serves IPv4 too.
    """
    wanted = _mapped(address)
    everywhere = ("::",) if ":" in address else ("0.0.0.0", "::")  # noqa: S104  compared only
    here = [row for row in heard if row["port"] == port]
    exact = [row for row in here if _mapped(row["address"]) == wanted]
    return exact or [row for row in here if row["address"] in everywhere]


def _mapped(address: str) -> str:
    """One spelling for each address, `::ffff:127.0.0.1` being 127.0.0.1."""
    address = address.partition("%")[0]
    try:
        packed = socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
    except OSError:
        return address
    if packed.startswith(b"\0" * 10 + b"\xff\xff"):
        packed = packed[12:]
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)


def place(address: str, port: int) -> str:
    """An address with its port, as a URL or an HTTP header has them."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def stranger(heard: list[dict[str, Any]] | None, address: str, port: int, unit: str) -> str | None:
    """Who else than `unit` a connection would reach, for people; None: the unit, or nobody."""
    if heard is None:
        return f"who listens on {place(address, port)} cannot be told"
    for row in reached(heard, address, port):
        if row["unit"] != unit:
            if row["pid"] is None:
                return f"who listens on {place(address, port)} cannot be told"
            placed = f"pid {row['pid']}" + (f", {row['unit']}" if row["unit"] else "")
            return f"port {port} is held by {row['process']} ({placed}), not by {unit}"
    return None


def _owners(tree: Tree, inodes: set[str]) -> dict[str, int]:
    """Which process holds each socket; the first (oldest) where several share it."""
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    found: dict[str, int] = {}
    for pid in sorted(int(name) for name in tree.names("/proc", 1 << 20) if name.isdigit()):
        if len(found) == len(wanted):
            break
        for descriptor in tree.names(f"/proc/{pid}/fd", 1 << 20):
            inode = wanted.get(tree.link(f"/proc/{pid}/fd/{descriptor}") or "")
            if inode is not None:
                found.setdefault(inode, pid)
    return found
