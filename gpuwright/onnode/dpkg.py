"""Versions of installed Debian packages, from dpkg's status file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from gpuwright.onnode.outcome import NodeError, clean
from gpuwright.onnode.tree import Tree

STATUS = "/var/lib/dpkg/status"


def versions(data: bytes, names: Iterable[str]) -> dict[str, str | None]:
    """The installed version of each of `names`; None where it is not installed.

    Installed is any wish ("install", "hold") with the state "ok installed": a held package is
    installed, one whose configuration files alone remain is not.
    """
    text = b"\n" + data
    found: dict[str, str | None] = {}
    for name in names:
        found[name] = None
        needle = b"\nPackage: " + name.encode("utf-8", "replace") + b"\n"
        start = text.find(needle)
        while start >= 0 and found[name] is None:
            end = text.find(b"\n\n", start + 1)
            stanza = text[start : end if end >= 0 else len(text)]
            found[name] = _installed_version(stanza)
            start = text.find(needle, start + 1)
    return found


def _installed_version(stanza: bytes) -> str | None:
    fields = {}
    for line in stanza.split(b"\n"):
        if line[:8] in (b"Status: ", b"Version:"):
            key, _, content = line.partition(b":")
            fields[key] = content.strip()
    if fields.get(b"Status", b"").split()[1:] != [b"ok", b"installed"]:
        return None
    version = fields.get(b"Version", b"").decode("utf-8", "replace")
    return version or None


def packages(tree: Tree, names: Iterable[str]) -> dict[str, str | None]:
    """Each asked package's version. NodeError: dpkg's status cannot be read, or says nothing."""
    return versions(_status(tree), names)


def installed(tree: Tree, pattern: bytes) -> list[dict[str, Any]]:
    """Name, version and hold of each installed package whose name `pattern` matches, by name.

    NodeError as of `packages`.
    """
    text = b"\n" + _status(tree)
    found: dict[str, dict[str, Any]] = {}
    for match in re.finditer(rb"\nPackage: (" + pattern + rb")(?=\n)", text):
        end = text.find(b"\n\n", match.end())
        stanza = text[match.start() : end if end >= 0 else len(text)]
        version = _installed_version(stanza)
        if version is not None:
            name = clean(match.group(1).decode("utf-8", "replace"), 100)
            held = b"\nStatus: hold " in stanza
            found[name] = {"name": name, "version": clean(version, 100), "held": held}
    return [found[name] for name in sorted(found)]


def _status(tree: Tree) -> bytes:
    data = tree.data(STATUS, 64 << 20)
    if not data:
        raise NodeError(f"{STATUS} cannot be read" if data is None else f"{STATUS} is empty")
    return data
