"""What vLLM takes of a card beside its pool, and how the pool is laid out."""

from __future__ import annotations

from math import ceil

from gpuwright.architecture import LayerKind
from gpuwright.memory.layers import growing_bytes_per_token
from gpuwright.memory.pool import Pool, measured_pool, pool
from gpuwright.memory.request import (
    MemoryRequest,
)
from gpuwright.plan import WEIGHTS, MemoryTerm
from gpuwright.quoting import counted
from gpuwright.refusals import Needs, Reason


def layout(request: MemoryRequest) -> Pool | Reason:
    """How `request`'s cache is shared out, or why nobody can say it."""
    assert request.terms is not None
    if request.architecture.measured_caches:
        measured = measured_pool(request.architecture, request.kv, request.engine)
        if measured is not None:
            return measured
        seen = [
            dtype
            for cache in request.architecture.measured_caches
            if cache.engine == request.engine
            for dtype in cache.kv_cache_dtypes
        ]
        return Needs(
            subject=f"cache under {request.engine}",
            needed=f"one that was measured: {', '.join(seen) or 'none was'}",
            found=request.kv.id,
        )
    drafter = request.draft.groups if request.draft is not None else ()
    return pool(
        request.architecture,
        request.kv,
        request.tensor_parallel_size,
        max_num_batched_tokens=request.max_num_batched_tokens,
        in_flight_batches=request.terms.in_flight_batches,
        draft_tokens=request.draft_tokens,
        drafter=drafter or (),
        prefix_caching=request.prefix_caching,
        state_bytes=request.state_bytes,
    )


def fixed_terms(request: MemoryRequest) -> tuple[MemoryTerm, ...]:
    """What stands beside the pool inside the engine's share, on one device."""
    size, batch = request.tensor_parallel_size, request.max_num_batched_tokens
    weights, drafter, runtime, activations = _beside_pool(request)
    found = [
        MemoryTerm(name=WEIGHTS, bytes=weights, note=f"over {size}"),
        MemoryTerm(name="runtime", bytes=runtime, note="CUDA context, measured"),
        MemoryTerm(name="activations", bytes=activations, note=f"{batch} per step"),
        MemoryTerm(
            name="CUDA graphs",
            bytes=graph_bytes(request),
            note=f"for up to {counted(request.sequences, 'request')}",
        ),
    ]
    if request.draft is not None:
        found.insert(1, MemoryTerm(name="drafter", bytes=drafter, note=f"over {size}"))
    return (*found, *request.lora_terms())


def fixed_bytes(request: MemoryRequest) -> int:
    """The sum of `fixed_terms`."""
    return sum(_beside_pool(request)) + graph_bytes(request) + request.lora_bytes


def _beside_pool(request: MemoryRequest) -> tuple[int, int, int, int]:
    """Bytes of weights, drafter, runtime and activations on one device."""
    terms, size, draft = request.terms, request.tensor_parallel_size, request.draft
    assert terms is not None
    return (
        ceil(request.weights_bytes / size),
        ceil(draft.weights_bytes / size) if draft is not None else 0,
        terms.runtime_bytes(size),
        terms.activation_bytes(request.max_num_batched_tokens, vision=request.vision),
    )


def graph_bytes(request: MemoryRequest) -> int:
    assert request.terms is not None
    # A drafter without layers of its own, as Gemma's assistant, captured no graphs worth the name.
    drafter = request.draft is not None and request.draft.groups != ()
    # One set for requests with an adapter, one for those without
    # (https://github.com/vllm-project/vllm/blob/v0.33.0/vllm/config/compilation.py).
    sets = 1 if request.lora is None else 2
    return sets * request.terms.graph_bytes(request.sequences, drafter=drafter)


def prompt_workspace_bytes(request: MemoryRequest) -> int:
    """What linear-attention models take beyond the profiled budget while they read a prompt."""
    if not request.architecture.of(LayerKind.LINEAR):
        return 0
    assert request.terms is not None
    return request.terms.prompt_workspace_bytes(
        request.max_num_batched_tokens, drafting=request.draft_tokens > 0
    )


def context_bytes_per_token(request: MemoryRequest, shared: Pool) -> int:
    """By which a longer context grows, on one device."""
    if request.architecture.measured_caches:
        return shared.tables[0].count
    return growing_bytes_per_token(
        request.architecture,
        request.kv,
        request.tensor_parallel_size,
        own_draft=request.draft_tokens > 0 and request.draft is None,
        drafter=(request.draft.groups or ()) if request.draft is not None else (),
    )
