"""What a cache of a given size holds, per engine's own arithmetic: exact, with nothing to spare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpuwright.memory.by_token import cached_bytes_per_token, state_bytes
from gpuwright.memory.layers import growing_bytes_per_token
from gpuwright.memory.llama_cpp_rates import CONTEXT_STEP, draft_token_bytes, rates
from gpuwright.memory.pool import Pool
from gpuwright.memory.request import MemoryRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class Cache:
    """Bytes are of one device, or under llama.cpp of all together; None has no meaning there."""

    kv_cache_tokens: int
    max_concurrency: float
    """Requests of full length that it holds at once."""
    bytes_per_token: int
    state_bytes_per_sequence: int
    max_context: int
    """The longest request that it holds, if the model allows as much."""
    block_tokens: int | None = None
    num_blocks: int | None = None
    needed_bytes: int
    """What one request of full length takes."""


def of_pool(request: MemoryRequest, shared: Pool, pool_bytes: int, tokens: int) -> Cache:
    """vLLM: what `pool_bytes` hold, for requests of `tokens`."""
    blocks, need = shared.blocks(pool_bytes), shared.need(tokens)
    measured = bool(request.architecture.measured_caches)
    state = state_bytes(request)
    grows = growing_bytes_per_token(
        request.architecture,
        request.kv,
        request.tensor_parallel_size,
        own_draft=request.draft_tokens > 0,
    )
    return Cache(
        kv_cache_tokens=blocks * tokens // need,
        max_concurrency=blocks / need,
        bytes_per_token=shared.tables[0].count if measured else grows,
        state_bytes_per_sequence=shared.state_blocks if measured else state,
        max_context=min(shared.largest_context(blocks), request.model_context_tokens),
        block_tokens=None if measured else shared.block_tokens,
        num_blocks=None if measured else blocks,
        needed_bytes=need * shared.block_bytes,
    )


def of_tokens(request: MemoryRequest, pool_bytes: int, tokens: int) -> Cache:
    """SGLang, and engines that are reckoned coarsely: tokens alone, states stand beside them."""
    per_token = cached_bytes_per_token(request)
    held = max(0, pool_bytes) // per_token
    return Cache(
        kv_cache_tokens=held,
        max_concurrency=held / tokens,
        bytes_per_token=per_token,
        state_bytes_per_sequence=state_bytes(request),
        max_context=min(held, request.model_context_tokens),
        needed_bytes=per_token * tokens,
    )


def of_slots(request: MemoryRequest, pool_bytes: int, tokens: int) -> Cache:
    """llama.cpp: slots of one length each, whose context the engine rounds up."""
    rate = rates(request.architecture, request.kv)
    draft = 0
    if request.draft_tokens:
        draft = draft_token_bytes(request.architecture, request.kv, ())

    def cost(wanted: int) -> int:
        rounded = -(-wanted // CONTEXT_STEP) * CONTEXT_STEP
        return rate.cache(rounded, 1) + draft * rounded

    slots = request.max_num_seqs or 1
    whole = cost(tokens)
    return Cache(
        kv_cache_tokens=max(0, pool_bytes) * tokens // whole,
        max_concurrency=max(0, pool_bytes) / whole,
        bytes_per_token=rate.growing + draft,
        state_bytes_per_sequence=rate.state,
        max_context=_longest(
            lambda each: cost(each) * slots <= pool_bytes, request.model_context_tokens
        ),
        needed_bytes=whole * slots,
    )


def _longest(holds: Callable[[int], bool], most: int) -> int:
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low
