"""Rows about what Python environments are made with: uv itself, and Pythons that it brings."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gpuwright.plan import ModelFile, Source
from gpuwright.rows import Claim, hash_faults

PYTHON_RELEASES = "https://github.com/astral-sh/python-build-standalone/releases/download"
"""Where the archives of `PythonRow` stand upstream; a mirror of it has the same paths."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class UvRow:
    """One wheel of uv, and the program in it."""

    id: str
    architecture: str
    project: str
    version: str
    filename: str
    sha256: str
    bytes: int
    member: str
    member_sha256: str
    member_bytes: int
    sources: tuple[Claim, ...]

    @property
    def file(self) -> ModelFile:
        """The program, as a file to fetch."""
        source = Source(
            kind="python_package",
            project=self.project,
            version=self.version,
            filename=self.filename,
            member=self.member,
            sha256=self.sha256,
            bytes=self.bytes,
        )
        return ModelFile(
            path=f"uv-{self.version}",
            bytes=self.member_bytes,
            sha256=self.member_sha256,
            sources=(source,),
        )

    def faults(self) -> Iterator[str]:
        yield from hash_faults(self.sha256)
        yield from hash_faults(self.member_sha256)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PythonRow:
    """One archive with a Python that runs on any distribution with glibc."""

    id: str
    python: str
    """Whole version."""
    architecture: str
    path: str
    """Below `PYTHON_RELEASES`."""
    sha256: str
    sources: tuple[Claim, ...]

    @property
    def minor(self) -> str:
        return self.python.rpartition(".")[0]

    @property
    def directory(self) -> str:
        """Its name among the Pythons that uv has installed."""
        return f"cpython-{self.python}-linux-{self.architecture}-gnu"

    def faults(self) -> Iterator[str]:
        if not re.fullmatch(r"3\.\d+\.\d+", self.python, re.ASCII):
            yield f".python: {self.python!r} is no whole version such as 3.11.7"
        yield from hash_faults(self.sha256)
