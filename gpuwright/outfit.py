"""What a node has to work with beside its cards: interpreters, compilers, and a clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from gpuwright.document import Reader

_UNIT_PATH = ("/usr/local/bin", "/usr/bin", "/bin")
_EARLIEST = datetime(2025, 1, 1, tzinfo=UTC)
"""No node is older than the programs that are carried to it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outfit:
    """None is unknown, and so is all of it where a document says nothing."""

    headers: dict[str, bool] | None = None
    """Minor versions of Python that are installed, and whether `Python.h` is there."""
    tools: frozenset[str] | None = None
    """Kinds of compilers on the PATH that our units have: gcc, nvcc, ..."""
    nvccs: dict[str, str] | None = None
    """Places of CUDA compilers, on that PATH or not -> version; empty where it is not known."""
    time: float | None = None
    synchronized: bool | None = None
    """Whether the clock follows a time server."""

    @classmethod
    def read(cls, root: Reader) -> Outfit:
        clock = Reader(root.get("clock", dict, None) or {}, root.at("clock"), unknown=True)
        time: object = root.value.get("time")
        return cls(
            headers=_headers(root),
            tools=_tools(root),
            nvccs=_nvccs(root),
            time=time if isinstance(time, (int, float)) and type(time) is not bool else None,
            synchronized=clock.get("synchronized", bool),
        )

    def remarks(self, *, own_clock: bool) -> Iterator[str]:
        """What an operator should know of the clock; a container has its host's."""
        if self.time is not None and self.time < _EARLIEST.timestamp():
            shown = _date(self.time)
            yield (
                f"the node's clock says {shown}: downloads fail until it is set, since "
                "certificates are not valid yet then"
            )
        elif own_clock and self.synchronized is False:
            yield "the node's clock follows no time server: `timedatectl set-ntp true` makes it"

    def lacks_headers(self, python: str | None) -> bool:
        """Whether the Python of this version is known to have no `Python.h`."""
        minor = ".".join((python or "").split(".")[:2])
        return self.headers is not None and self.headers.get(minor) is False


def _date(seconds: float) -> str:
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d}"
    except (OverflowError, ValueError, OSError):
        return "a time before all dates"


def _headers(root: Reader) -> dict[str, bool] | None:
    if root.get("pythons", list, None) is None:
        return None
    found: dict[str, bool] = {}
    for entry in root.children("pythons"):
        minor = ".".join((entry.get("version", str) or "").split(".")[:2])
        found[minor] = found.get(minor, False) or bool(entry.get("headers", bool))
    return found


def _tools(root: Reader) -> frozenset[str] | None:
    if root.get("compilers", list, None) is None:
        return None
    return frozenset(
        entry.get("kind", str) or ""
        for entry in root.children("compilers")
        if (entry.get("executable", str) or "").rpartition("/")[0] in _UNIT_PATH
    )


def _nvccs(root: Reader) -> dict[str, str] | None:
    if root.get("compilers", list, None) is None:
        return None
    return {
        entry.get("executable", str) or "": entry.get("version", str, None) or ""
        for entry in root.children("compilers")
        if entry.get("kind", str) == "nvcc"
    }
