"""Rows about models: what their layers cost, and the checkpoints that can be had."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from gpuwright.plan import Source
from gpuwright.rows import Claim, hash_faults

_DIRECTORY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,127}", re.ASCII)


class LayerKind(StrEnum):
    FULL = "full"
    SLIDING = "sliding"
    LINEAR = "linear"
    MLA = "mla"


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerGroup:
    """Layers of one kind; which fields stand depends on `kind`."""

    kind: LayerKind
    layers: int
    kv_heads: int = 0
    head_size: int = 0
    window: int = 0
    key_heads: int = 0
    value_heads: int = 0
    convolution: int = 4
    latent_size: int = 0
    rope_size: int = 0

    def faults(self) -> Iterator[str]:
        needed = {
            LayerKind.FULL: ("kv_heads", "head_size"),
            LayerKind.SLIDING: ("kv_heads", "head_size", "window"),
            LayerKind.LINEAR: ("key_heads", "value_heads", "head_size"),
            LayerKind.MLA: ("latent_size", "rope_size"),
        }[self.kind]
        for name in needed:
            if getattr(self, name) < 1:
                yield f".{name}: a {self.kind} group needs it"


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    attention_heads: int
    hidden_size: int
    vocabulary: int
    groups: tuple[LayerGroup, ...]
    mtp_layers: int = 0
    experts: int = 0
    expert_size: int = 0
    """Inner size of one expert, which tensor parallelism splits; 0 where there are none."""

    def of(self, kind: LayerKind) -> tuple[LayerGroup, ...]:
        return tuple(group for group in self.groups if group.kind is kind)

    @property
    def head_sizes(self) -> tuple[int, ...]:
        """Head sizes of the layers whose cache grows, smallest first."""
        sizes = {g.head_size for g in self.groups if g.kind in (LayerKind.FULL, LayerKind.SLIDING)}
        return tuple(sorted(sizes))


@dataclass(frozen=True, kw_only=True, slots=True)
class FileRow:
    path: str
    bytes: int
    sha256: str
    sources: tuple[Source, ...]

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
class CheckpointRow:
    """One file set of a model's weights. `files: null` plans, and is never installed."""

    id: str
    aliases: tuple[str, ...]
    format: str
    quantization: str
    repo: str | None
    min_bytes: int
    max_bytes: int
    """Published size of the weights as an interval; both ends equal where it is exact."""
    engines: dict[str, str]
    """Engine -> releases that serve it."""
    files: tuple[FileRow, ...] | None
    sources: tuple[Claim, ...]
    host_bytes: int = 0
    """Part that llama.cpp keeps in RAM even when every layer is on a GPU."""
    group_size: int = 0
    """Weights per scale in quantized experts, 0 where it does not matter."""
    max_capability: str | None = None
    unpinned: str | None = None
    unknown: dict[str, str] = field(default_factory=dict)

    def faults(self) -> Iterator[str]:
        if not _DIRECTORY_NAME.fullmatch(self.id):
            yield f".id: {self.id!r} cannot name a directory"
        if not 0 < self.min_bytes <= self.max_bytes:
            yield ".min_bytes: needs 0 < min_bytes <= max_bytes"
        if self.files is not None and sum(file.bytes for file in self.files) < self.min_bytes:
            yield ".files: together smaller than min_bytes"


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelRow:
    id: str
    name: str
    aliases: tuple[str, ...]
    family: str
    licence: str
    merit: int
    """Orders models for `auto`: higher is the better model. Ours, from size and generation."""
    max_context_tokens: int
    tensor_parallel_sizes: tuple[int, ...]
    architecture: Architecture
    checkpoints: tuple[CheckpointRow, ...]
    sources: tuple[Claim, ...]
    parsers: dict[str, dict[str, str]] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
