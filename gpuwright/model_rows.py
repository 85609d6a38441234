"""Rows about models and the checkpoints that can be had of them, drafters and projectors too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

from gpuwright.architecture import (
    Architecture,
    LayerGroup,
    LayerKind,
    MeasuredCache,
    tensor_parallel_sizes,
)
from gpuwright.checkpoint_files import misnamed
from gpuwright.plan import Source
from gpuwright.rows import Claim, hash_faults
from gpuwright.sizes import size_interval, size_words

__all__ = [
    "WEIGHTS",
    "Architecture",
    "CheckpointRow",
    "Confidence",
    "DraftMethod",
    "Drafts",
    "FileRow",
    "LayerGroup",
    "LayerKind",
    "MeasuredCache",
    "ModelRow",
    "Role",
]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/+-]{0,127}", re.ASCII)
"""What may be an argument of an engine: one that begins with - would be an option."""
_DIRECTORY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,127}", re.ASCII)
_WIDEST_GGUF_MILLIBITS = 8500
WEIGHTS = (".safetensors", ".gguf")
"""How files that hold weights end."""


class Role(StrEnum):
    WEIGHTS = "weights"
    DRAFTER = "drafter"
    PROJECTOR = "projector"


class Confidence(StrEnum):
    """How well a checkpoint's size is known."""

    VERIFIED = "verified"
    REPORTED = "reported"
    DERIVED = "derived"
    SEEN = "seen"
    UNCERTAIN = "uncertain"


class DraftMethod(StrEnum):
    MTP = "mtp"
    EAGLE3 = "eagle3"
    DFLASH = "dflash"
    DSPARK = "dspark"
    DRAFT = "draft"


@dataclass(frozen=True, kw_only=True, slots=True)
class FileRow:
    path: str
    bytes: int
    sha256: str
    sources: tuple[Source, ...]

    @property
    def is_weights(self) -> bool:
        return self.path.endswith(WEIGHTS)

    def faults(self) -> Iterator[str]:
        yield from hash_faults(self.sha256)
        if self.path.startswith("/") or ".." in self.path.split("/"):
            yield f".path: {self.path!r} leaves the checkpoint's directory"
        for index, source in enumerate(self.sources):
            needed = {
                "python_package": ("project", "version", "filename", "sha256", "bytes", "member"),
                "hub": ("repo", "revision", "path"),
                "url": ("url",),
                "local": ("path",),
            }.get(source.kind)
            if needed is None:
                yield f".sources[{index}].kind: {source.kind!r} is no kind of source"
                continue
            for name in needed:
                if getattr(source, name) is None:
                    yield f".sources[{index}].{name}: missing"


@dataclass(frozen=True, kw_only=True, slots=True)
class Drafts:
    """What a drafter does for the model that it stands under, and what its own cache costs."""

    method: DraftMethod
    tokens: int | None
    """Draft tokens that its makers or those who measured it use."""
    groups: tuple[LayerGroup, ...] | None
    """Layers that keep a cache of their own; empty where it attends the model's."""
    unknown: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CheckpointRow:
    """One file set under a model. `files: null` plans, and is never installed."""

    id: str
    format: str
    quantization: str
    repo: str | None
    size: str | None
    """Weights alone, as a source prints them; null is never planned unless files are pinned."""
    confidence: Confidence
    engines: dict[str, str]
    """Engine -> releases that serve it."""
    files: tuple[FileRow, ...] | None
    sources: tuple[Claim, ...]
    aliases: tuple[str, ...] = ()
    role: Role = Role.WEIGHTS
    loaded: str | None = None
    """What engines print once it is loaded, over all devices; it counts before `size`."""
    host_bytes: int = 0
    """Part that llama.cpp keeps in RAM even when every layer is on a GPU."""
    experts: str | None = None
    """Printed share of the routed experts, where that is known better than from the shapes."""
    group_size: int = 0
    """Weights per scale in quantized experts, 0 where it does not matter."""
    mtp: bool = True
    """It holds the MTP layers that its model has."""
    drafts: Drafts | None = None
    unverified: tuple[str, ...] = ()
    unpinned: str | None = None
    unknown: dict[str, str] = field(default_factory=dict)

    @property
    def weights(self) -> tuple[int, int] | None:
        """Fewest and most bytes of the weights; None where no figure is published.

        Both ends are the real count once files are pinned; nothing else counts then.
        """
        return _weights_of(self)

    @property
    def min_bytes(self) -> int | None:
        return self.weights[0] if self.weights is not None else None

    @property
    def max_bytes(self) -> int | None:
        """The end that a fit is tested on."""
        return self.weights[1] if self.weights is not None else None

    def expert_bytes(self, architecture: Architecture) -> int:
        """Fewest bytes of the routed experts: printed, or what the rest of the weights leaves at
        its widest, which is 8.5 bits in GGUF files and 16 elsewhere; 0 without experts."""
        return _expert_bytes(self, architecture)

    @property
    def disk_bytes(self) -> int | None:
        """Most bytes that its files take on a disk."""
        if self.files is None and self.size is not None:
            return size_interval(self.size)[1]
        return self.max_bytes

    @property
    def assumed(self) -> str | None:
        """What a plan takes the weights for without having seen them; None once pinned."""
        if self.files is not None or self.weights is None:
            return None
        origin = f"loaded size {self.loaded}" if self.loaded else f"published size {self.size}"
        text = f"{self.id}: weights {size_words(*self.weights)}, from the {origin}"
        return text + (
            f" ({self.confidence})" if self.confidence is not Confidence.VERIFIED else ""
        )

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Everything about it that a plan rests on and that nobody has verified."""
        unseen = (
            [f"{self.id}: {', '.join(self.unverified)} not verified"] if self.unverified else []
        )
        return tuple(text for text in (self.assumed, *unseen) if text is not None)

    def faults(self) -> Iterator[str]:
        if not _DIRECTORY_NAME.fullmatch(self.id):
            yield f".id: {self.id!r} cannot name a directory"
        if self.size is None and "size" not in self.unknown:
            yield ".unknown.size: missing, pinning does not answer for a size"
        for key in ("size", "loaded", "experts"):
            try:
                size_interval("1 B" if getattr(self, key) is None else getattr(self, key))
            except ValueError as error:
                yield f".{key}: {error}"
                return
        if self.files is not None and self.size is not None and self.weights is not None:
            least, most = size_interval(self.size)
            if not least <= self.weights[0] <= most:
                yield f".files: {self.weights[0]:,} bytes of weights, and size says {self.size}"
        if (self.role is Role.DRAFTER) != (self.drafts is not None):
            yield ".drafts: stands exactly where role is drafter"
        if self.files is not None:
            yield from misnamed(self.format, [file.path for file in self.files])
        yield from _unknown_keys(self)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ModelRow:
    id: str
    name: str
    aliases: tuple[str, ...]
    family: str
    licence: str
    merit: int
    """Orders models for `auto`: higher is the better model. Ours, from size and generation."""
    max_context_tokens: int
    architecture: Architecture
    checkpoints: tuple[CheckpointRow, ...]
    """All roles; a decision picks from `weights`, `drafters` and `projectors`."""
    sources: tuple[Claim, ...]
    parsers: dict[str, dict[str, str]] = field(default_factory=dict)
    arguments: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Engine -> what it must be told to serve this model, word by word."""
    mtp_tokens: int = 0
    """Draft tokens that its makers use with the built-in MTP layers."""
    sampling: dict[str, str] = field(default_factory=dict)
    """Mode -> the makers' sampling settings, for people."""
    unverified: tuple[str, ...] = ()
    unknown: dict[str, str] = field(default_factory=dict)

    @property
    def weights(self) -> tuple[CheckpointRow, ...]:
        return self.in_role(Role.WEIGHTS)

    @property
    def drafters(self) -> tuple[CheckpointRow, ...]:
        return self.in_role(Role.DRAFTER)

    @property
    def projectors(self) -> tuple[CheckpointRow, ...]:
        return self.in_role(Role.PROJECTOR)

    def in_role(self, role: Role) -> tuple[CheckpointRow, ...]:
        return _in_role(self, role)

    @property
    def mtp(self) -> bool:
        """Its weights hold layers that draft."""
        return self.architecture.mtp_layers > 0

    @property
    def tensor_parallel_sizes(self) -> tuple[int, ...]:
        return tensor_parallel_sizes(self.architecture)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What a plan rests on and nobody has read from the model's own configuration."""
        if not self.unverified:
            return ()
        keys = ", ".join(key.removeprefix("architecture.") for key in self.unverified)
        return (f"{self.id}: {keys} not verified against the published configuration",)

    def faults(self) -> Iterator[str]:
        if not _NAME.fullmatch(self.name):
            yield f".name: {self.name!r} cannot be what clients call it"
        for engine, parsers in self.parsers.items():
            for kind, word in parsers.items():
                if not _NAME.fullmatch(word):
                    yield f".parsers.{engine}.{kind}: {word!r} cannot be an argument"
        if self.max_context_tokens < 1:
            yield f".max_context_tokens: needs 1 or more, found {self.max_context_tokens}"
        if not self.weights:
            yield ".checkpoints: none of them has the role weights"
        yield from _unknown_keys(self)


# Asked for every candidate; rows never change, and there are few of them.


@lru_cache(maxsize=1 << 10)
def _weights_of(row: CheckpointRow) -> tuple[int, int] | None:
    if row.files is not None:
        total = sum(file.bytes for file in row.files if file.is_weights)
        return total, total
    printed = row.loaded or row.size
    return size_interval(printed) if printed is not None else None


@lru_cache(maxsize=1 << 10)
def _expert_bytes(row: CheckpointRow, architecture: Architecture) -> int:
    if not architecture.expert_parameters or row.max_bytes is None:
        return 0
    if row.experts is not None:
        return size_interval(row.experts)[0]
    rest = architecture.parameters_millions * 10**6 - architecture.expert_parameters
    bits = _WIDEST_GGUF_MILLIBITS if row.format == "gguf" else 16000
    return max(0, row.max_bytes - max(0, rest) * bits // 8000)


@lru_cache(maxsize=1 << 10)
def _in_role(model: ModelRow, role: Role) -> tuple[CheckpointRow, ...]:
    return tuple(row for row in model.checkpoints if row.role is role)


def _unknown_keys(row: CheckpointRow | ModelRow) -> Iterator[str]:
    for index, key in enumerate(row.unverified):
        owner: object = row
        for part in key.split("."):
            if not hasattr(owner, part):
                yield f".unverified[{index}]: the row has no key {key!r}"
                break
            owner = getattr(owner, part)
