"""What engines take whose cache is counted in tokens, on one device: SGLang, and what is coarse."""

from __future__ import annotations

from functools import lru_cache
from math import ceil

from gpuwright.architecture import Architecture, LayerGroup, LayerKind
from gpuwright.memory.layers import (
    growing_bytes_per_token,
    kv_bytes_per_token,
    sequence_state_bytes,
)
from gpuwright.memory.request import MemoryRequest
from gpuwright.memory.vllm_terms import prompt_workspace_bytes
from gpuwright.rows import KvCacheDtypeRow


@lru_cache(maxsize=1 << 14)
def all_layers_bytes_per_token(
    architecture: Architecture,
    kv: KvCacheDtypeRow,
    tensor_parallel_size: int,
    *,
    own_draft: bool = False,
    drafter: tuple[LayerGroup, ...] = (),
) -> int:
    """Cache of one token over all layers.

    Sliding-window layers count in full: how a window pool divides is not known to us, and this is
    the upper bound.
    """
    return growing_bytes_per_token(
        architecture, kv, tensor_parallel_size, own_draft=own_draft, drafter=drafter
    ) + sum(
        kv_bytes_per_token(group, kv, tensor_parallel_size) * group.layers
        for group in (*architecture.groups, *drafter)
        if group.kind is LayerKind.SLIDING
    )


def cached_bytes_per_token(request: MemoryRequest) -> int:
    """The same of a request, with the layers that draft."""
    drafter = request.draft
    return all_layers_bytes_per_token(
        request.architecture,
        request.kv,
        request.tensor_parallel_size,
        own_draft=request.draft_tokens > 0 and drafter is None,
        drafter=(drafter.groups or ()) if drafter is not None else (),
    )


def state_bytes(request: MemoryRequest) -> int:
    """Linear-attention states of one request."""
    return sequence_state_bytes(
        request.architecture,
        request.tensor_parallel_size,
        state_bytes=request.state_bytes,
        draft_tokens=request.draft_tokens,
    )


def drafter_bytes(request: MemoryRequest) -> int:
    """A drafter's share of weights; 0 without one."""
    if request.draft is None:
        return 0
    return ceil(request.draft.weights_bytes / request.tensor_parallel_size)


def workspace_bytes(request: MemoryRequest) -> int:
    """All that is neither weights nor cache, at its upper end."""
    terms = request.terms
    assert terms is not None
    return (
        terms.activation_bytes(request.max_num_batched_tokens, vision=request.vision)
        + terms.graph_bytes(request.sequences, drafter=request.draft is not None)
        + terms.runtime_bytes(request.tensor_parallel_size)
        + prompt_workspace_bytes(request)
    )
