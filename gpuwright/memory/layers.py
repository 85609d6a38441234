"""Bytes that one layer's cache or state takes, for each kind of layer."""

from __future__ import annotations

from gpuwright.model_rows import LayerGroup, LayerKind
from gpuwright.rows import KvCacheDtypeRow


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
    group: LayerGroup, tensor_parallel_size: int, *, state_bytes: int = 4, draft_tokens: int = 0
) -> int:
    """State of one sequence in one linear-attention layer: a matrix per value head, and the
    convolution's last inputs, which grow by the draft's length."""
    value_heads = group.value_heads // tensor_parallel_size
    convolution = (2 * group.key_heads + group.value_heads) // tensor_parallel_size
    convolution *= group.head_size
    matrix = value_heads * group.head_size * group.head_size * state_bytes
    return matrix + (group.convolution - 1 + draft_tokens) * convolution * 2
