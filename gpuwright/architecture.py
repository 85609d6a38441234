"""What a model's layers are, as far as memory, kernels and splitting over cards depend on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

MOST_LAYERS = 4096
MOST_DEVICES = 64
"""Tensor parallel sizes are looked at up to here."""


class LayerKind(StrEnum):
    FULL = "full"
    SLIDING = "sliding"
    LINEAR = "linear"
    MLA = "mla"
    COMPRESSED = "compressed"
    """No closed formula is known: what engines were seen to take stands in `measured_caches`."""


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
            LayerKind.COMPRESSED: ("kv_heads", "head_size"),
        }[self.kind]
        for name in ("layers", *needed):
            if getattr(self, name) < 1:
                yield f".{name}: a {self.kind} group needs it"
        if self.layers > MOST_LAYERS:
            yield f".layers: needs at most {MOST_LAYERS:,}, found {self.layers:,}"


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredCache:
    """A cache that no formula gives, as two parameters fitted to what an engine was seen to take.

    Both are of what holds the whole of it: each device where an engine splits tensors, all of them
    together where it splits layers.
    """

    engine: str
    kv_cache_dtypes: tuple[str, ...]
    bytes_per_token: int
    bytes_per_sequence: int
    capabilities: str = ""
    """Cards like those that it was measured on."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Architecture:
    attention_heads: int
    hidden_size: int
    vocabulary: int
    groups: tuple[LayerGroup, ...]
    intermediate_size: int = 0
    """Inner size of the dense layers; 0 where there are none, or it is not known."""
    parameters_millions: int = 0
    active_parameters_millions: int = 0
    """Read for one token; 0 where all are."""
    mtp_layers: int = 0
    moe_layers: int = 0
    experts: int = 0
    active_experts: int = 0
    expert_size: int = 0
    """Inner size of one expert, which tensor parallelism splits; 0 where there are none."""
    shared_experts: int = 0
    shared_expert_size: int = 0
    sinks: bool = False
    """Attention sinks: few kernels have them."""
    vision: bool = False
    """It takes images, so a service holds an encoder too, unless it is told to leave it out."""
    tied_embeddings: bool = False
    measured_caches: tuple[MeasuredCache, ...] = ()

    def of(self, kind: LayerKind) -> tuple[LayerGroup, ...]:
        return tuple(group for group in self.groups if group.kind is kind)

    @property
    def layers(self) -> int:
        return _layers(self)

    @property
    def head_sizes(self) -> tuple[int, ...]:
        """Head sizes of the layers whose cache grows, smallest first."""
        sizes = {g.head_size for g in self.groups if g.kind in (LayerKind.FULL, LayerKind.SLIDING)}
        return tuple(sorted(sizes))

    @property
    def expert_parameters(self) -> int:
        """Weights of the routed experts: three matrices each."""
        return self.moe_layers * self.experts * 3 * self.hidden_size * self.expert_size

    def output_bytes(self, millibits_per_weight: int) -> int:
        """The matrix that turns a token's state into the vocabulary's logits."""
        return self.vocabulary * self.hidden_size * millibits_per_weight // 8000

    def misfit(self, size: int) -> str | None:
        """What does not split over `size` devices ("4 KV heads"); None where everything does.

        KV heads also fit where several devices keep the same one. vLLM and SGLang ask this of
        every layer; vocabularies are padded, so they always fit.
        """
        for name, count, replicated in self._parts():
            if count % size and not (replicated and size % count == 0):
                return f"{count} {name}"
        return None

    def divides(self, size: int) -> bool:
        return self.misfit(size) is None

    def _parts(self) -> Iterator[tuple[str, int, bool]]:
        yield "attention heads", self.attention_heads, False
        for group in self.groups:
            if group.kind is LayerKind.LINEAR:
                yield "linear key heads", group.key_heads, False
                yield "linear value heads", group.value_heads, False
            elif group.kind is not LayerKind.MLA:
                yield "KV heads", group.kv_heads, True
        yield "columns of the dense layers", self.intermediate_size, False
        yield "columns of an expert", self.expert_size, False
        yield "columns of the shared expert", self.shared_expert_size, False

    def faults(self) -> Iterator[str]:
        if bool(self.experts) != bool(self.moe_layers):
            yield ".moe_layers: stands exactly where experts does"
        if not self.groups:
            yield ".groups: empty"
        if bool(self.of(LayerKind.COMPRESSED)) != bool(self.measured_caches):
            yield ".measured_caches: stand exactly where a compressed group does"


@lru_cache(maxsize=256)
def _layers(architecture: Architecture) -> int:
    return sum(group.layers for group in architecture.groups)


@lru_cache(maxsize=256)
def tensor_parallel_sizes(architecture: Architecture) -> tuple[int, ...]:
    """Counts of devices over which everything in `architecture` splits, smallest first."""
    return tuple(size for size in range(1, MOST_DEVICES + 1) if architecture.divides(size))
