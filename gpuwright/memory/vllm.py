"""vLLM: a pool of blocks that takes what its share of the card leaves.

What the pool holds is exact; the terms beside it (activations, graphs, runtime) are measured, and
rounded up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

from gpuwright.memory.layers import sequence_state_bytes
from gpuwright.memory.pool import Pool
from gpuwright.memory.request import (
    MIB,
    SPARE_PERCENT,
    Details,
    Figures,
    Fit,
    MemoryRequest,
    comfort_bytes,
    first_that_fits,
    less_than_advised,
    on_each,
    spared,
    tight,
    usable_bytes,
)
from gpuwright.memory.vllm_terms import (
    context_bytes_per_token,
    fixed_bytes,
    fixed_terms,
    graph_bytes,
    layout,
    prompt_workspace_bytes,
)
from gpuwright.plan import KV_CACHE, MemoryPlan, MemoryTerm
from gpuwright.quoting import counted
from gpuwright.refusals import OutOfMemory, Reason

COMFORT = 1.06
"""Requests that the cache holds, below which a plan warns."""
SMALLEST_STEP = 1024
"""Tokens a step below which prompts are read too slowly to offer."""


def fit(request: MemoryRequest) -> Fit | Reason:
    """The plan of `request` under vLLM, on CUDA devices of equal role.

    A pinned context that does not fit is tried with fewer tokens a step, then beside a smaller
    reserve; so is a pinned draft, up to the context that its workload asks for.
    """
    shared = layout(request)
    if not isinstance(shared, Pool):
        return shared
    steps = [_stepping(request, step) for step in _steps(request, shared)]
    answer = _first(_advised(each) for each in steps)
    pinned = request.max_model_len is not None
    least = request.target_context_tokens
    if isinstance(answer, Fit) and (pinned or answer.max_model_len >= least):
        return answer
    if not pinned:
        if not request.must_draft:
            return answer
        steps = [replace(request, model_context_tokens=min(least, request.model_context_tokens))]
    closer = _first(_closer(each) for each in steps)
    if isinstance(answer, OutOfMemory):
        return closer
    more = isinstance(closer, Fit) and closer.max_model_len > answer.max_model_len
    return closer if more else answer


def _first(answers: Iterable[Fit | OutOfMemory]) -> Fit | OutOfMemory:
    """The first that fits, or the last."""
    answer: Fit | OutOfMemory | None = None
    for answer in answers:
        if isinstance(answer, Fit):
            break
    assert answer is not None
    return answer


def _advised(request: MemoryRequest) -> Fit | OutOfMemory:
    assert request.terms is not None
    return _attempt(request, prompt_workspace_bytes(request), request.terms.max_share_percent)


def _closer(request: MemoryRequest) -> Fit | OutOfMemory:
    """With the smaller reserve, which the plan says."""
    terms, workspace = request.terms, prompt_workspace_bytes(request)
    assert terms is not None
    pinned = request.max_model_len is not None
    answer = _attempt(
        request,
        min(workspace, terms.pinned_workspace_mib * MIB),
        terms.pinned_share_percent if pinned else terms.max_share_percent,
    )
    if not isinstance(answer, Fit):
        return answer
    return replace(answer, below_advice=True, details=partial(_closer_details, request, answer))


def _closer_details(request: MemoryRequest, answer: Fit) -> Details:
    advised = max(prompt_workspace_bytes(request), comfort_bytes(request.smallest.available_bytes))
    details = answer.details()
    warning = less_than_advised(request, left=details.figures.reserve_bytes, advised=advised)
    return replace(details, warnings=(warning, *details.warnings))


def _steps(request: MemoryRequest, shared: Pool) -> Iterator[int]:
    """Tokens a step to try: as asked, then halves that hold a block and a token of each request."""
    step = request.max_num_batched_tokens
    yield step
    if request.max_model_len is None or not request.steps_may_shrink:
        return
    least = max(SMALLEST_STEP, shared.block_tokens, request.sequences)
    while step // 2 >= least:
        step //= 2
        yield step


def _stepping(request: MemoryRequest, step: int) -> MemoryRequest:
    if step == request.max_num_batched_tokens:
        return request
    return replace(request, max_num_batched_tokens=step)


def _attempt(request: MemoryRequest, workspace: int, max_share_percent: int) -> Fit | OutOfMemory:
    device, terms, spent = request.smallest, request.terms, fixed_bytes(request)
    shared = layout(request)
    assert terms is not None and isinstance(shared, Pool)
    graphs = 0 if terms.graphs_in_budget else graph_bytes(request)
    # What a prompt takes outside the pool is free until one is read.
    room = min(usable_bytes(device.available_bytes), device.available_bytes - workspace)
    percent = min(
        max_share_percent,
        max(0, room - graphs) * 100 // max(1, device.total_bytes),
    )
    if request.share is not None:
        percent = int(request.share * 100 + 0.5)
    budget = device.total_bytes * percent // 100
    pool_bytes = budget + graphs - spent
    if request.draft is not None and request.draft.groups is None:
        pool_bytes -= max(0, pool_bytes) * terms.unread_drafter_percent // 100
    blocks = shared.blocks(pool_bytes)
    room = blocks * 100 // (100 + SPARE_PERCENT)
    contexts = request.contexts()
    tokens = first_that_fits(contexts, lambda each: shared.need(each) <= room)
    if tokens is None:
        least = contexts[-1]
        return OutOfMemory(
            row=request.row,
            where=device.name,
            needed_bytes=spent + workspace + spared(shared.need(least) * shared.block_bytes),
            # What is compared: the share of the card that the engine may fill.
            available_bytes=min(device.available_bytes, max(0, budget + graphs + workspace)),
            others_bytes=device.others_bytes,
            what=f"weights, workspace and one request of {least:,} tokens",
            largest_context_tokens=shared.largest_context(
                blocks, spare_percent=SPARE_PERCENT, step=256, most=least
            )
            or None,
        )
    # Every sequence keeps at least its state and one block of its context.
    held = min(request.sequences, blocks // shared.need(1))
    if request.max_num_seqs is not None and held < request.max_num_seqs:
        return OutOfMemory(
            row=request.row,
            where=device.name,
            needed_bytes=request.max_num_seqs * shared.need(1) * shared.block_bytes,
            available_bytes=blocks * shared.block_bytes,
            what=f"the cache of {counted(request.max_num_seqs, 'request')} at their shortest",
        )
    cached = blocks * tokens // shared.need(tokens)
    return Fit(
        max_model_len=tokens,
        max_num_seqs=held,
        kv_cache_tokens=cached,
        details=partial(_details, request, shared, blocks, tokens, cached, workspace, percent),
    )


def _details(
    request: MemoryRequest,
    shared: Pool,
    blocks: int,
    tokens: int,
    cached: int,
    workspace: int,
    percent: int,
) -> Details:
    device, requests, fixed = request.smallest, blocks / shared.need(tokens), fixed_terms(request)
    found = [
        *fixed,
        MemoryTerm(
            name=KV_CACHE,
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
    return Details(
        memory=memory,
        devices=on_each(request, memory),
        figures=Figures(
            weights_bytes=fixed[0].bytes,
            kv_cache_bytes=blocks * shared.block_bytes,
            reserve_bytes=memory.margin_bytes + workspace,
            kv_cache_tokens=cached,
            max_concurrency=requests,
            block_tokens=None if measured else shared.block_tokens,
            num_blocks=None if measured else blocks,
            bytes_per_token=context_bytes_per_token(request, shared),
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
