"""vLLM's CPU build: the pool of blocks that `vllm` reckons, in RAM, as large as the plan says.

The engine takes what it is told (`--kv-cache-memory-bytes`), so the pool is what the requests that
are asked for need, and no more.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from gpuwright.memory.pool import CPU_BLOCK_MULTIPLE, Pool, pool
from gpuwright.memory.request import (
    SPARE_PERCENT,
    Details,
    Figures,
    Fit,
    MemoryRequest,
    first_that_fits,
    on_each,
    spared,
    tight,
    usable_bytes,
)
from gpuwright.memory.vllm_terms import context_bytes_per_token
from gpuwright.plan import KV_CACHE, WEIGHTS, MemoryPlan, MemoryTerm
from gpuwright.quoting import counted
from gpuwright.refusals import Needs, OutOfMemory, Reason


def fit(request: MemoryRequest) -> Fit | Reason:
    """The largest context that all requests hold at once, else one of them alone."""
    if request.architecture.measured_caches:
        return Needs(subject="cache", needed="a formula", found="one that was measured on cards")
    draft = request.draft
    if draft is not None and draft.groups is None:
        return Needs(
            subject="cache of the drafter", needed="layers that were read", found="unknown"
        )
    shared = pool(
        request.architecture,
        request.kv,
        1,
        max_num_batched_tokens=request.max_num_batched_tokens,
        draft_tokens=request.draft_tokens,
        drafter=(draft.groups or ()) if draft is not None else (),
        prefix_caching=request.prefix_caching,
        state_bytes=request.state_bytes,
        multiple=CPU_BLOCK_MULTIPLE,
    )
    device, spent = request.smallest, sum(term.bytes for term in _fixed(request))
    room = usable_bytes(device.available_bytes) - spent
    blocks = shared.blocks(room) * 100 // (100 + SPARE_PERCENT)
    wanted = request.sequences
    for sequences in dict.fromkeys((wanted, 1)):
        if sequences < (request.max_num_seqs or 1):
            break
        tokens = first_that_fits(request.contexts(), _held(shared, blocks // sequences))
        if tokens is not None:
            taken = -(-shared.need(tokens) * sequences * (100 + SPARE_PERCENT) // 100)
            return Fit(
                max_model_len=tokens,
                max_num_seqs=sequences,
                kv_cache_tokens=taken * tokens // shared.need(tokens),
                details=partial(_details, request, shared, taken, tokens),
            )
    least = request.contexts()[-1]
    count = request.max_num_seqs or 1
    return OutOfMemory(
        row=request.row,
        where=device.name,
        needed_bytes=spent + spared(shared.need(least) * count * shared.block_bytes),
        available_bytes=device.available_bytes,
        others_bytes=device.others_bytes,
        what=f"weights, the engine and {counted(count, 'request')} of {least:,} tokens",
        largest_context_tokens=shared.largest_context(
            blocks // count, spare_percent=SPARE_PERCENT, step=256, most=least
        )
        or None,
    )


def _held(shared: Pool, blocks: int) -> Callable[[int], bool]:
    """Whether one request of so many tokens fits into `blocks`."""
    return lambda tokens: shared.need(tokens) <= blocks


def _fixed(request: MemoryRequest) -> tuple[MemoryTerm, ...]:
    terms, batch = request.terms, request.max_num_batched_tokens
    assert terms is not None
    drafter = request.draft.weights_bytes if request.draft is not None else 0
    return (
        MemoryTerm(name=WEIGHTS, bytes=request.weights_bytes),
        *((MemoryTerm(name="drafter", bytes=drafter),) if drafter else ()),
        MemoryTerm(name="runtime", bytes=terms.runtime_bytes(1), note="its processes, measured"),
        MemoryTerm(
            name="activations", bytes=terms.activation_bytes(batch), note=f"{batch} per step"
        ),
        *request.lora_terms(),
    )


def _details(request: MemoryRequest, shared: Pool, blocks: int, tokens: int) -> Details:
    device, requests = request.smallest, blocks / shared.need(tokens)
    fixed, pool_bytes = _fixed(request), blocks * shared.block_bytes
    note = f"{request.kv.id}, {requests:.2f} requests of {tokens:,}"
    memory = MemoryPlan(
        where=device.name,
        available_bytes=device.available_bytes,
        terms=(*fixed, MemoryTerm(name=KV_CACHE, bytes=pool_bytes, note=note)),
    )
    return Details(
        memory=memory,
        devices=on_each(request, memory),
        figures=Figures(
            weights_bytes=fixed[0].bytes,
            kv_cache_bytes=pool_bytes,
            reserve_bytes=memory.margin_bytes,
            kv_cache_tokens=blocks * tokens // shared.need(tokens),
            max_concurrency=requests,
            block_tokens=shared.block_tokens,
            num_blocks=blocks,
            bytes_per_token=context_bytes_per_token(request, shared),
            state_bytes_per_sequence=shared.state_blocks * shared.block_bytes,
        ),
        parameters={
            "kv_cache_memory_bytes": pool_bytes,
            "max_num_batched_tokens": request.max_num_batched_tokens,
            "prefix_caching": request.prefix_caching,
            # Compiling takes minutes and a compiler on the node.
            "eager": True,
        },
        warnings=tight(memory),
    )
