"""Which Python an engine's environment is made with: one of the node's own, or one from a row."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpuwright.catalogue import Matrix
from gpuwright.engine_rows import BuildTagRow, ReleaseRow
from gpuwright.host import Host, Python
from gpuwright.python_rows import PythonRow

_REACHED = re.compile(r"/(?:usr|opt)/")
"""What a service may run: homes are hidden from it."""
_OWN = "/usr/bin/python3"


@dataclass(frozen=True, kw_only=True, slots=True)
class Interpreter:
    """A Python of the node, or (`row`) one that is brought to it."""

    minor: str
    executable: str | None = None
    headers: bool = False
    row: PythonRow | None = None


def pythons(host: Host) -> tuple[Python, ...]:
    """The node's Pythons; that which answered, where nobody looked for others."""
    if host.pythons or host.python is None:
        return host.pythons
    return (Python(version=host.python, executable=_OWN, headers=False),)


def served_pythons(
    host: Host, release: ReleaseRow, tag: BuildTagRow, matrix: Matrix
) -> tuple[str, ...]:
    """Minor versions that the release serves here: those of its lock, where it has one."""
    lock = matrix.lock(release.engine, release.release, tag.tag, host.architecture or "")
    return lock.python if lock is not None and lock.python else release.python


def interpreter(
    host: Host, release: ReleaseRow, tag: BuildTagRow, matrix: Matrix
) -> Interpreter | None:
    """The node's own first, with headers where the engine compiles against them; None: neither
    the node nor a row has one."""
    minors = served_pythons(host, release, tag, matrix)
    compiles = release.environment is not None and release.environment.compiles
    distro = matrix.find_distro(host)
    own = [
        each
        for each in pythons(host)
        if each.minor in minors
        and _REACHED.match(each.executable)
        # Headers of its own python3 are a package of the distribution; of another they are not.
        and (not compiles or each.headers or distro is None or each.minor == distro.python)
    ]
    if own:
        best = min(own, key=lambda each: (compiles and not each.headers, minors.index(each.minor)))
        return Interpreter(minor=best.minor, executable=best.executable, headers=best.headers)
    for minor in minors:
        for row in matrix.pythons:
            if (row.minor, row.architecture) == (minor, host.architecture):
                return Interpreter(minor=minor, headers=True, row=row)
    return None
