"""Bytes that one layer's cache or state takes, for each kind of layer."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from gpuwright.architecture import Architecture, LayerGroup, LayerKind
from gpuwright.rows import KvCacheDtypeRow

UNQUANTIZED_BYTES = 64
"""Bytes of 32 elements of 16 bits."""


def heads_per_device(heads: int, tensor_parallel_size: int) -> int:
    """KV heads that one device keeps: divided, down to one, then replicated."""
    return max(1, heads // tensor_parallel_size)


def kv_bytes_per_token(group: LayerGroup, kv: KvCacheDtypeRow, tensor_parallel_size: int) -> int:
    """K and V of one token in one layer of `group`, on one device.

    Latent attention keeps one vector per token and does not divide by tensor parallelism.
    """
    if group.kind is LayerKind.MLA:
        return (group.latent_size + group.rope_size) * kv.bytes_per_32_elements // 32
    heads = heads_per_device(group.kv_heads, tensor_parallel_size)
    elements = heads * group.head_size * 2
    return elements * kv.bytes_per_32_elements // 32 + heads * kv.scale_bytes_per_head


def linear_state_bytes(
    group: LayerGroup,
    tensor_parallel_size: int,
    *,
    state_bytes: int = 4,
    convolution_bytes: int = 2,
    draft_tokens: int = 0,
) -> int:
    """State of one sequence in one linear-attention layer: a matrix per value head, and the
    convolution's last inputs, which grow by the draft's length; bytes of an element of each."""
    value_heads = group.value_heads // tensor_parallel_size
    convolution = (2 * group.key_heads + group.value_heads) // tensor_parallel_size
    convolution *= group.head_size
    matrix = value_heads * group.head_size * group.head_size * state_bytes
    return matrix + (group.convolution - 1 + draft_tokens) * convolution * convolution_bytes


@lru_cache(maxsize=1 << 14)
def sequence_state_bytes(
    architecture: Architecture,
    tensor_parallel_size: int,
    *,
    state_bytes: int = 4,
    draft_tokens: int = 0,
) -> int:
    """States of one sequence in all linear-attention layers, on one device; 0 without any."""
    return sum(
        linear_state_bytes(
            group, tensor_parallel_size, state_bytes=state_bytes, draft_tokens=draft_tokens
        )
        * group.layers
        for group in architecture.of(LayerKind.LINEAR)
    )


def unquantized(kv: KvCacheDtypeRow) -> KvCacheDtypeRow:
    """The element type of 16 bits that some layers keep beside `kv`."""
    return replace(kv, bytes_per_32_elements=UNQUANTIZED_BYTES, scale_bytes_per_head=0)


def unquantized_layers(architecture: Architecture, kv: KvCacheDtypeRow) -> int:
    """Layers that keep 16 bits whatever the cache's element type."""
    return 0 if architecture.of(LayerKind.LINEAR) else kv.unquantized_layers


@lru_cache(maxsize=1 << 14)
def growing_bytes_per_token(
    architecture: Architecture,
    kv: KvCacheDtypeRow,
    tensor_parallel_size: int,
    *,
    own_draft: bool = False,
    drafter: tuple[LayerGroup, ...] = (),
) -> int:
    """By which a longer context grows the cache on one device, draft layers included."""
    total, more = 0, architecture.mtp_layers if own_draft else 0
    plain = unquantized_layers(architecture, kv)
    for group in (*architecture.groups, *drafter):
        if group.kind in (LayerKind.FULL, LayerKind.MLA):
            each = kv_bytes_per_token(group, kv, tensor_parallel_size)
            whole = kv_bytes_per_token(group, unquantized(kv), tensor_parallel_size)
            total += each * (group.layers + more - plain) + whole * plain
            more = plain = 0
    return total
