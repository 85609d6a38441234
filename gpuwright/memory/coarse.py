"""A coarse plan for engines that print no arithmetic of their own: upper ends, said to be so."""

from __future__ import annotations

from functools import partial
from math import ceil

from gpuwright.memory.by_token import (
    cached_bytes_per_token,
    drafter_bytes,
    state_bytes,
    workspace_bytes,
)
from gpuwright.memory.request import (
    Details,
    Fit,
    MemoryRequest,
    on_each,
    spared,
    tight,
    token_figures,
    usable_bytes,
    with_spare,
)
from gpuwright.plan import KV_CACHE, WEIGHTS, MemoryPlan, MemoryTerm
from gpuwright.quoting import counted
from gpuwright.refusals import Needs, OutOfMemory, Reason

UNVERIFIED = "memory reckoned coarsely: not verified against the engine, which prints no such plan"


def fit(request: MemoryRequest) -> Fit | Reason:
    """Weights over the devices, and a cache in its share of what upper ends leave of them."""
    return _fit(request, experts_in_ram=0)


def fit_with_experts_in_ram(request: MemoryRequest) -> Fit | Reason:
    """As `fit`, with all routed experts in RAM and the dense part on the devices."""
    if not request.expert_bytes:
        return Needs(subject="weights", needed="routed experts to keep in RAM", found="none")
    needed = with_spare(request.expert_bytes + request.host_bytes)
    if needed > request.ram_available_bytes:
        return OutOfMemory(
            row=request.row,
            where="RAM",
            needed_bytes=needed,
            available_bytes=request.ram_available_bytes,
            what="routed experts",
        )
    return _fit(request, experts_in_ram=request.expert_bytes)


def _fit(request: MemoryRequest, *, experts_in_ram: int) -> Fit | Reason:
    terms, device, size = request.terms, request.smallest, request.tensor_parallel_size
    assert terms is not None
    if request.architecture.measured_caches:
        return Needs(subject="cache", needed="a formula, or one that was measured", found="neither")
    sequences = request.sequences
    weights = ceil((request.weights_bytes - experts_in_ram) / size)
    beside, workspace = drafter_bytes(request), workspace_bytes(request)
    state, per_token = state_bytes(request), cached_bytes_per_token(request)
    fixed = weights + beside + workspace + state * sequences
    left = device.available_bytes - fixed
    pool = max(
        0,
        min(
            left * terms.max_share_percent // 100,
            usable_bytes(device.available_bytes) - fixed,
        ),
    )
    for tokens in request.contexts():
        if pool >= spared(per_token * tokens):
            break
    else:
        needed = spared(per_token * tokens)
        return OutOfMemory(
            row=request.row,
            where=device.name,
            needed_bytes=max(
                fixed + -(-needed * 100 // terms.max_share_percent), with_spare(fixed + needed)
            ),
            available_bytes=device.available_bytes,
            others_bytes=device.others_bytes,
            what=f"weights, workspace and one request of {tokens:,} tokens",
            largest_context_tokens=pool * 50 // 51 // per_token // 256 * 256 or None,
        )
    cached = pool // per_token
    return Fit(
        max_model_len=tokens,
        max_num_seqs=sequences,
        kv_cache_tokens=cached,
        details=partial(
            _details, request, tokens, cached, per_token, state, workspace, experts_in_ram
        ),
    )


def _details(
    request: MemoryRequest,
    tokens: int,
    cached: int,
    per_token: int,
    state: int,
    workspace: int,
    experts_in_ram: int,
) -> Details:
    terms, device, size = request.terms, request.smallest, request.tensor_parallel_size
    assert terms is not None
    sequences, beside = request.sequences, drafter_bytes(request)
    weights = ceil((request.weights_bytes - experts_in_ram) / size)
    found = [
        MemoryTerm(name=WEIGHTS, bytes=weights, note=f"over {size}"),
        MemoryTerm(name="drafter", bytes=beside, note=f"over {size}"),
        MemoryTerm(
            name=KV_CACHE,
            bytes=cached * per_token,
            note=f"{cached:,} tokens in {request.kv.id}",
        ),
        MemoryTerm(
            name="linear states", bytes=state * sequences, note=counted(sequences, "request")
        ),
        MemoryTerm(name="workspace", bytes=workspace, note="upper ends of what others take"),
    ]
    memory = MemoryPlan(
        where=device.name,
        available_bytes=device.available_bytes,
        terms=tuple(term for term in found if term.bytes),
    )
    return Details(
        memory=memory,
        devices=on_each(request, memory),
        ram_bytes=experts_in_ram + request.host_bytes if experts_in_ram else 0,
        figures=token_figures(
            memory,
            weights_bytes=weights,
            cached_tokens=cached,
            max_model_len=tokens,
            bytes_per_token=per_token,
            state_bytes_per_sequence=state,
        ),
        parameters={
            "max_num_batched_tokens": request.max_num_batched_tokens,
            "cache_share": f"{terms.max_share_percent / 100:.2f}",
        },
        warnings=(UNVERIFIED, *tight(memory)),
    )
