"""What room engines keep on each device for LoRA adapters, whatever the adapters hold.

For each place of a batch, and each layer that could have one, two matrices of the highest rank.
vLLM's places were counted in its CPU build to the byte (`tests/engines_cpu`); SGLang's are read in
its pool (python/sglang/srt/lora/mem_pool.py of v0.5.23), which has every kind of layer in each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpuwright.architecture import Architecture, LayerGroup, LayerKind
from gpuwright.memory.layers import heads_per_device
from gpuwright.refusals import Needs, Reason


@dataclass(frozen=True, kw_only=True, slots=True)
class LoraRoom:
    """Places for adapters that an engine keeps on a device."""

    places: int
    rank: int
    everywhere: bool = False
    """Each kind of layer is taken to be in every layer, as SGLang does."""
    element_bytes: int = 2
    """Of the type that the model computes in."""
    files_bytes: int | None = None
    """Of the adapters alone, for an engine that loads them as they are and keeps no places."""

    def on_device(self, architecture: Architecture, size: int) -> int:
        """Bytes on one of `size` devices; `unknown_shape` has been asked."""
        if self.files_bytes is not None:
            return -(-self.files_bytes // size)
        sides = _sides(architecture, size, self.everywhere)
        return self.places * self.rank * self.element_bytes * sides


def unknown_shape(architecture: Architecture) -> Reason | None:
    """Why nobody can say what adapters take."""
    latent = [group.kind for group in architecture.groups if group.kind in _UNREAD]
    dense = architecture.layers - architecture.moe_layers
    if not latent and (dense <= 0 or architecture.intermediate_size):
        return None
    return Needs(
        subject="LoRA adapters",
        needed="the width of every projection",
        found=f"{latent[0]} attention, of which it is not known" if latent else "no dense width",
    )


_UNREAD = (LayerKind.MLA, LayerKind.COMPRESSED)


def _sides(architecture: Architecture, size: int, everywhere: bool) -> int:
    """Input and output widths of all projections together, as far as one device has them."""
    layers = architecture.layers
    attention = sum(
        (layers if everywhere else group.layers) * _attention(architecture, group, size, everywhere)
        for group in architecture.groups
    )
    dense = layers if everywhere else layers - architecture.moe_layers
    moe = layers if everywhere and architecture.experts else architecture.moe_layers
    hidden = architecture.hidden_size
    found = attention + dense * _mlp(hidden, architecture.intermediate_size, size)
    if moe:
        shared = architecture.shared_experts * architecture.shared_expert_size
        found += moe * (hidden + architecture.experts)  # which experts
        found += moe * architecture.experts * _mlp(hidden, architecture.expert_size, size)
        if shared:
            found += moe * (hidden + 1 + _mlp(hidden, shared, size))  # how much of it, and itself
    # The embedding and the head, each whole on every device.
    return found + 2 * (architecture.vocabulary + hidden)


def _mlp(hidden: int, inner: int, size: int) -> int:
    """Gate, up and down: what is split over devices is the inner side."""
    return 3 * hidden + 3 * inner // size if inner else 0


def _attention(architecture: Architecture, group: LayerGroup, size: int, everywhere: bool) -> int:
    return sum(_projections(architecture, group, size, everywhere))


def _projections(
    architecture: Architecture, group: LayerGroup, size: int, everywhere: bool
) -> Iterator[int]:
    hidden = architecture.hidden_size
    if group.kind is LayerKind.LINEAR:
        keys = group.key_heads * group.head_size // size
        values = group.value_heads * group.head_size // size
        # Keys, queries, values and their gate come out of one projection.
        yield (4 if everywhere else 1) * hidden + 2 * keys + 2 * values
        yield hidden + 2 * group.value_heads // size
        yield values + hidden
        yield group.convolution + 2 * keys + values
        return
    queries = architecture.attention_heads * group.head_size // size
    cached = heads_per_device(group.kv_heads, size) * group.head_size
    # Beside linear layers, attention has a gate as wide as its queries.
    gated = 2 if architecture.of(LayerKind.LINEAR) else 1
    yield 3 * hidden + gated * queries + 2 * cached
    yield queries + hidden
