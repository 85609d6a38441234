"""Versions of installed Debian packages, from dpkg's status file."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from typing import Any

from gpuwright.onnode.outcome import NodeError, clean
from gpuwright.onnode.tree import Tree

STATUS = "/var/lib/dpkg/status"
_STANZA_BYTES = 1 << 16
_MOST = 1000
"""Stanzas that are read for one question; a whole system has a few dozen of them."""


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
        start = -1
        for _ in range(_MOST):
            start = text.find(needle, start + 1)
            if start < 0 or found[name] is not None:
                break
            found[name] = _installed_version(_stanza(text, start))
    return found


def _stanza(text: bytes, start: int) -> bytes:
    most = start + _STANZA_BYTES
    end = text.find(b"\n\n", start + 1, most)
    return text[start : end if end >= 0 else most]


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
    matches = re.finditer(rb"\nPackage: (" + pattern + rb")(?=\n)", text)
    for match in itertools.islice(matches, _MOST):
        stanza = _stanza(text, match.start())
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
