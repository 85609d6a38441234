"""vLLM: a pool of blocks that takes what its share of the card leaves.

What the pool holds is exact; the terms beside it (activations, graphs, runtime) are measured, and
rounded up.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from gpuwright.architecture import LayerKind
from gpuwright.memory.layers import growing_bytes_per_token, sequence_state_bytes
from gpuwright.memory.pool import Pool, measured_pool, pool
from gpuwright.memory.request import (
    GIB,
    MIB,
    SPARE_PERCENT,
    Figures,
    Fit,
    MemoryRequest,
    comfort_bytes,
    tight,
)
from gpuwright.plan import MemoryPlan, MemoryTerm
from gpuwright.refusals import Needs, OutOfMemory, Reason

COMFORT = 1.06
"""Requests that the cache holds, below which a plan warns."""


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
    terms, size, batch = request.terms, request.tensor_parallel_size, request.max_num_batched_tokens
    assert terms is not None
    weights = ceil(request.weights_bytes / size)
    activations = terms.activation_bytes(batch, vision=request.vision)
    found = [
        MemoryTerm(name="weights", bytes=weights, note=f"over {size}"),
        MemoryTerm(name="runtime", bytes=terms.runtime_bytes(size), note="CUDA context, measured"),
        MemoryTerm(name="activations", bytes=activations, note=f"{batch} per step"),
        graph_term(request),
    ]
    if request.draft is not None:
        drafter = ceil(request.draft.weights_bytes / size)
        found.insert(1, MemoryTerm(name="drafter", bytes=drafter, note=f"over {size}"))
    return tuple(found)


def graph_term(request: MemoryRequest) -> MemoryTerm:
    assert request.terms is not None
    # A drafter without layers of its own, as Gemma's assistant, captured no graphs worth the name.
    drafter = request.draft is not None and request.draft.groups != ()
    graphs = request.terms.graph_bytes(request.sequences, drafter=drafter)
    return MemoryTerm(name="CUDA graphs", bytes=graphs, note=f"{request.sequences} requests")


def prompt_workspace_bytes(request: MemoryRequest) -> int:
    """What linear-attention models take beyond the profiled budget while they read a prompt."""
    if not request.architecture.of(LayerKind.LINEAR):
        return 0
    assert request.terms is not None
    return request.terms.prompt_workspace_bytes(
        request.max_num_batched_tokens, drafting=request.draft_tokens > 0
    )


def fit(request: MemoryRequest) -> Fit | Reason:
    """The plan of `request` under vLLM, on CUDA devices of equal role.

    A pinned context that fits only beside a smaller reserve is planned with it, and says so.
    """
    terms = request.terms
    assert terms is not None
    shared = layout(request)
    if not isinstance(shared, Pool):
        return shared
    workspace = prompt_workspace_bytes(request)
    answer = _attempt(request, shared, workspace, terms.max_share_percent)
    if isinstance(answer, Fit) or request.max_model_len is None:
        return answer
    least = min(workspace, terms.pinned_workspace_mib * MIB)
    closer = _attempt(request, shared, least, terms.pinned_share_percent)
    if not isinstance(closer, Fit):
        return answer
    warning = (
        f"the pinned context leaves {closer.figures.reserve_bytes / GIB:.2f} GiB outside the pool, "
        f"where {max(workspace, comfort_bytes(request.smallest.available_bytes)) / GIB:.2f} GiB "
        "are advised"
    )
    return replace(closer, warnings=(warning, *closer.warnings))


def _attempt(
    request: MemoryRequest, shared: Pool, workspace: int, max_share_percent: int
) -> Fit | OutOfMemory:
    device, terms, fixed = request.smallest, request.terms, fixed_terms(request)
    assert terms is not None
    spent = sum(term.bytes for term in fixed)
    graphs = 0 if terms.graphs_in_budget else graph_term(request).bytes
    percent = min(
        max_share_percent,
        max(0, device.available_bytes - workspace - graphs) * 100 // max(1, device.total_bytes),
    )
    if request.share is not None:
        percent = int(request.share * 100 + 0.5)
    budget = device.total_bytes * percent // 100
    pool_bytes = budget + graphs - spent
    if request.draft is not None and request.draft.groups is None:
        pool_bytes -= max(0, pool_bytes) * terms.unread_drafter_percent // 100
    blocks = shared.blocks(pool_bytes)
    for tokens in request.contexts():
        need = shared.need(tokens)
        if blocks * 100 >= need * (100 + SPARE_PERCENT):
            break
    else:
        return OutOfMemory(
            where=device.name,
            needed_bytes=spent + workspace + need * shared.block_bytes * 51 // 50,
            # What is compared: the share of the card that the engine may fill.
            available_bytes=min(device.available_bytes, max(0, budget + graphs + workspace)),
            others_bytes=device.others_bytes,
            what=f"weights, workspace and one request of {tokens:,} tokens",
            largest_context_tokens=shared.largest_context(blocks, spare_percent=SPARE_PERCENT)
            // 256
            * 256
            or None,
        )
    # Every sequence keeps at least its state and one block of its context.
    held = min(request.sequences, blocks // shared.need(1))
    if request.max_num_seqs is not None and held < request.max_num_seqs:
        return OutOfMemory(
            where=device.name,
            needed_bytes=request.max_num_seqs * shared.need(1) * shared.block_bytes,
            available_bytes=blocks * shared.block_bytes,
            what=f"the cache of {request.max_num_seqs} requests at their shortest",
        )
    return _fit(request, shared, blocks, tokens, held, fixed, workspace, percent)


def _fit(
    request: MemoryRequest,
    shared: Pool,
    blocks: int,
    tokens: int,
    held: int,
    fixed: tuple[MemoryTerm, ...],
    workspace: int,
    percent: int,
) -> Fit:
    device, requests = request.smallest, blocks / shared.need(tokens)
    cached = blocks * tokens // shared.need(tokens)
    found = [
        *fixed,
        MemoryTerm(
            name="KV cache",
            bytes=blocks * shared.block_bytes,
            note=f"{cached:,} tokens in {request.kv.id}, {requests:.2f} requests of {tokens:,}",
        ),
    ]
    if workspace:
        found.append(MemoryTerm(name="prompt workspace", bytes=workspace, note="outside the pool"))
    memory = MemoryPlan(
        where=device.name, available_bytes=device.available_bytes, terms=tuple(found)
    )
    warnings = tight(memory) if not workspace else ()
    if requests < COMFORT:
        warnings += (f"the cache holds {requests:.2f} requests of {tokens:,} tokens",)
    drafts = request.draft_tokens
    measured = bool(request.architecture.measured_caches)
    return Fit(
        memory=memory,
        max_model_len=tokens,
        max_num_seqs=held,
        figures=Figures(
            weights_bytes=fixed[0].bytes,
            kv_cache_bytes=blocks * shared.block_bytes,
            reserve_bytes=memory.margin_bytes + workspace,
            kv_cache_tokens=cached,
            max_concurrency=requests,
            block_tokens=None if measured else shared.block_tokens,
            num_blocks=None if measured else blocks,
            bytes_per_token=bytes_per_token(request, shared),
            state_bytes_per_sequence=shared.state_blocks
            if measured
            else sequence_state_bytes(
                request.architecture,
                request.tensor_parallel_size,
                state_bytes=request.state_bytes,
                draft_tokens=drafts,
            ),
        ),
        parameters={
            "gpu_memory_utilization": f"{percent / 100:.2f}",
            "max_num_batched_tokens": request.max_num_batched_tokens,
            "prefix_caching": request.prefix_caching,
        },
        warnings=warnings,
    )


def bytes_per_token(request: MemoryRequest, shared: Pool) -> int:
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
