"""Rows about what is installed: an engine release's locked packages, and what a lock must keep to.

A lock is published once it has been proven: every Python that its row names has a proof.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from packaging.version import Version

from gpuwright.rows import Claim, hash_faults

LOCKS = Path(__file__).parent / "matrix/locks"
_FULL_VERSION = re.compile(r"3\.\d+\.\d+", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """What was seen of a lock, installed with its hashes on one version of Python."""

    python: str
    """The interpreter's whole version."""
    date: str
    platform: str
    """What it was proven on: distribution, C library, processor, and what emulated that."""
    flags: int
    """Options that the server's own parser has."""
    answers: dict[str, int]
    """Compute capability, or `cpu` -> choices of a backend that the engine made for it."""
    recorded: bool
    """The flags and the choices are those of the release's record, every one on a card that it has;
    on another card the commonest choice was asked alone."""
    install_seconds: int
    installed_bytes: int

    def faults(self) -> Iterator[str]:
        if not _FULL_VERSION.fullmatch(self.python):
            yield f".python: {self.python!r} is no whole version such as 3.11.7"
        if not self.answers:
            yield ".answers: empty"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LockRow:
    """One file of requirements with hashes, beside its row in matrix/locks/; `sha256: null` with
    `unpinned` is never installed from."""

    id: str
    """Engine, release, build tag and architecture: also the name of the file."""
    engine: str
    release: str
    build_tag: str
    architecture: str
    package: str
    """The project that was asked for; the lock holds all that it needs."""
    index: str
    """`default`: a node's Python index has all of it; `vendor`: an index that must be named;
    `find-links`: one of its wheels is in no index."""
    glibc: str | None
    """Oldest C library that every wheel of it runs with."""
    python: tuple[str, ...]
    """Minor versions that it holds wheels for; each has a proof."""
    sha256: str | None
    """Of the file."""
    packages: int | None
    download_bytes: int | None
    """All wheels, for the Python that needs most."""
    proofs: tuple[Proof, ...]
    sources: tuple[Claim, ...]
    not_for: dict[str, str] = field(default_factory=dict)
    """Python or architecture that the release is for and the lock is not -> why."""
    unpinned: str | None = None
    unknown: dict[str, str] = field(default_factory=dict)

    @property
    def filename(self) -> str:
        return f"{self.id}.txt"

    def proof(self, python: str) -> Proof:
        """The proof for a minor version; StopIteration where it is not of this lock."""
        return next(proof for proof in self.proofs if proof.python.rpartition(".")[0] == python)

    def faults(self) -> Iterator[str]:
        named = f"{self.engine}-{self.release}-{self.build_tag}-{self.architecture}"
        if self.id != named:
            yield f".id: {self.id!r} is not {named!r}"
        if self.index not in ("default", "vendor", "find-links"):
            yield f".index: {self.index!r} is none of default, vendor, find-links"
        if (self.sha256 is None) != (self.unpinned is not None):
            yield ".unpinned: stands exactly where sha256 is null"
        if self.sha256 is not None:
            proven = [proof.python.rpartition(".")[0] for proof in self.proofs]
            if proven != list(self.python) or not proven:
                yield f".proofs: for {', '.join(proven) or 'none'}, needed {self.python}"
        yield from hash_faults(self.sha256)


@dataclass(frozen=True, kw_only=True, slots=True)
class ConstraintRow:
    """A version that a lock must keep to, or a package that it must leave out, beyond what the
    engine's own metadata asks."""

    engine: str
    releases: str
    package: str
    because: str
    sources: tuple[Claim, ...]
    specifier: str = ""
    left_out: bool = False
    build_tags: tuple[str, ...] = ()
    """Builds of the release that it is for; empty: all."""

    def faults(self) -> Iterator[str]:
        if bool(self.specifier) == self.left_out:
            yield ": needs a specifier, or left_out, not both"


class CompanionRule(StrEnum):
    SAME_VERSION = "same_version"
    SAME_MINOR = "same_minor"
    AT_LEAST = "at_least"
    NEVER = "never"


@dataclass(frozen=True, kw_only=True, slots=True)
class CompanionRow:
    """Packages of which a lock holds only what goes together."""

    packages: tuple[str, ...]
    rule: CompanionRule
    because: str
    sources: tuple[Claim, ...]
    floor: str | None = None
    """The oldest version, with `at_least`."""

    def faults(self) -> Iterator[str]:
        if (self.floor is None) == (self.rule is CompanionRule.AT_LEAST):
            yield ".floor: stands exactly where rule is at_least"
        if len(self.packages) < (1 if self.rule is CompanionRule.NEVER else 2):
            yield ".packages: too few for its rule"

    def broken_by(self, versions: Mapping[str, str]) -> str | None:
        """What of these versions, by package, does not go together; None where all does."""
        found = {name: versions[name] for name in self.packages if name in versions}
        if self._holds([Version(version) for version in found.values()]):
            return None
        pins = ", ".join(f"{name}=={version}" for name, version in found.items())
        needed = f"{self.rule.replace('_', ' ')}{f' {self.floor}' if self.floor else ''}"
        return f"{pins}: {needed}: {self.because} (companions.yaml)"

    def _holds(self, found: list[Version]) -> bool:
        if self.rule is CompanionRule.NEVER:
            return not found
        if self.rule is CompanionRule.AT_LEAST:
            floor = Version(self.floor or "0")
            return len(found) < len(self.packages) or all(each >= floor for each in found)
        if self.rule is CompanionRule.SAME_MINOR:
            return len({each.release[:2] for each in found}) <= 1
        return len({each.public for each in found}) <= 1
