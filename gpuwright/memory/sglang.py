"""SGLang: weights and cache share a fixed part of the card, the rest is workspace.

`mem_fraction_static` is a share of the card's total for weights and cache together; it is not
comparable with vLLM's figure of a similar name.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import ceil

from gpuwright.memory.by_token import (
    cached_bytes_per_token,
    drafter_bytes,
    state_bytes,
    workspace_bytes,
)
from gpuwright.memory.request import (
    MIB,
    SPARE_PERCENT,
    Details,
    Fit,
    MemoryRequest,
    comfort_bytes,
    less_than_advised,
    on_each,
    spared,
    tight,
    token_figures,
)
from gpuwright.memory.vllm_terms import prompt_workspace_bytes
from gpuwright.plan import KV_CACHE, WEIGHTS, MemoryPlan, MemoryTerm
from gpuwright.quoting import counted
from gpuwright.refusals import Needs, OutOfMemory, Reason


def pool_bytes(*, free_after_weights: int, total: int, static_share: float) -> int:
    """Bytes for the cache when `free_after_weights` are left on a card of `total`."""
    return int(free_after_weights - total * (1 - static_share))


def fit(request: MemoryRequest) -> Fit | Reason:
    """The plan of `request` under SGLang, on CUDA devices of equal role."""
    size, device, terms = request.tensor_parallel_size, request.smallest, request.terms
    assert terms is not None
    if request.architecture.measured_caches:
        return Needs(
            subject="cache under sglang", needed="a formula or a measured one", found="neither"
        )
    sequences, drafter = request.sequences, request.draft
    weights = ceil(request.weights_bytes / size)
    beside, workspace = drafter_bytes(request), workspace_bytes(request)
    state, per_token = state_bytes(request), cached_bytes_per_token(request)
    states = state * (sequences + 1)
    free = device.available_bytes - weights - beside - request.lora_bytes
    unread = drafter is not None and drafter.groups is None
    lost = terms.unread_drafter_percent if unread else 0
    contexts = list(request.contexts())
    target = min(request.target_context_tokens, contexts[0])
    for share in _shares(request, workspace):
        percent, outside = share
        pool = pool_bytes(
            free_after_weights=free, total=device.total_bytes, static_share=percent / 100
        )
        pool -= states
        pool -= max(0, pool) * lost // 100
        fitting = (each for each in contexts if pool >= spared(per_token * each))
        tokens = next(fitting, 0)
        if tokens >= target:
            break
        if request.max_model_len is None:
            # What is tight is filled for the workload's context, never for more than that.
            contexts = [each for each in contexts if each <= target]
    if not tokens:
        least = contexts[-1]
        rest = device.total_bytes * (100 - percent) // 100
        return OutOfMemory(
            row=request.row,
            where=device.name,
            needed_bytes=weights
            + beside
            + request.lora_bytes
            + states
            + rest
            + spared(per_token * least),
            available_bytes=device.available_bytes,
            others_bytes=device.others_bytes,
            what=f"weights, workspace and one request of {least:,} tokens",
            largest_context_tokens=max(0, pool) * 50 // 51 // per_token // 256 * 256 or None,
        )
    cached = pool // per_token
    return Fit(
        max_model_len=tokens,
        max_num_seqs=sequences,
        kv_cache_tokens=cached,
        below_advice=outside < workspace,
        details=partial(_details, request, tokens, cached, per_token, state, workspace, share),
    )


def _details(
    request: MemoryRequest,
    tokens: int,
    cached: int,
    per_token: int,
    state: int,
    workspace: int,
    share: tuple[int, int],
) -> Details:
    size, device, sequences = request.tensor_parallel_size, request.smallest, request.sequences
    percent, outside = share
    weights, states = ceil(request.weights_bytes / size), state * (sequences + 1)
    found = [
        MemoryTerm(name=WEIGHTS, bytes=weights, note=f"over {size}"),
        MemoryTerm(
            name=KV_CACHE,
            bytes=cached * per_token,
            note=f"{cached:,} tokens in {request.kv.id}",
        ),
        MemoryTerm(name="workspace", bytes=outside, note="activations, graphs, runtime"),
    ]
    if request.draft is not None and request.draft.weights_bytes:
        beside = MemoryTerm(name="drafter", bytes=drafter_bytes(request), note=f"over {size}")
        found.insert(1, beside)
    found += request.lora_terms()
    if states:
        found.append(
            MemoryTerm(name="linear states", bytes=states, note=counted(sequences + 1, "slot"))
        )
    memory = MemoryPlan(
        where=device.name, available_bytes=device.available_bytes, terms=tuple(found)
    )
    warnings: tuple[str, ...] = ()
    if outside < workspace:
        left, advised = outside + memory.margin_bytes, workspace + comfort_bytes(device.total_bytes)
        warnings = (less_than_advised(request, left=left, advised=advised),)
    return Details(
        memory=memory,
        devices=on_each(request, memory),
        figures=token_figures(
            memory,
            weights_bytes=weights,
            cached_tokens=cached,
            max_model_len=tokens,
            bytes_per_token=per_token,
            state_bytes_per_sequence=state,
        ),
        parameters={
            "mem_fraction_static": f"{percent / 100:.2f}",
            "chunked_prefill_tokens": request.max_num_batched_tokens,
            "linear_state_slots": sequences + 1 if states else 0,
        },
        warnings=warnings + tight(memory),
    )


def _shares(request: MemoryRequest, workspace: int) -> Iterator[tuple[int, int]]:
    """Percents of the card for weights and cache, each with the workspace that it leaves:
    comfortable beside the whole of it, then tight; then, for what is pinned, beside less of it."""
    terms = request.terms
    assert terms is not None
    if request.share is not None:
        yield int(request.share * 100 + 0.5), workspace
        return
    total = request.smallest.total_bytes
    close = total * SPARE_PERCENT // 100
    left = [(workspace, comfort_bytes(total)), (workspace, close)]
    less = prompt_workspace_bytes(request) - terms.pinned_workspace_mib * MIB
    if less > 0 and (request.must_draft or request.max_model_len is not None):
        left.append((workspace - less, close))
    for outside, spare in left:
        share = (total - outside - spare) * 100 // max(1, total)
        yield min(terms.max_share_percent, share), outside
