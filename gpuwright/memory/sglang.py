"""SGLang: weights and cache share a fixed part of the card, the rest is workspace.

`mem_fraction_static` is a share of the card's total for weights and cache together; it is not
comparable with vLLM's figure of a similar name.
"""

from __future__ import annotations

from math import ceil

from gpuwright.memory.layers import kv_bytes_per_token, linear_state_bytes
from gpuwright.memory.request import GIB, Fit, MemoryRequest, largest, tight
from gpuwright.memory.vllm import activation_bytes, runtime_bytes, workspace_bytes
from gpuwright.model_rows import Architecture, LayerKind
from gpuwright.plan import MemoryPlan, MemoryTerm
from gpuwright.refusals import OutOfMemory
from gpuwright.rows import KvCacheDtypeRow

MAX_SHARE = 90
GRAPH_BYTES = 5 * GIB
"""CUDA graphs at the engine's defaults, as measured on a card of 32 GB."""


def token_bytes(architecture: Architecture, kv: KvCacheDtypeRow, tensor_parallel_size: int) -> int:
    """Cache of one token over all layers, on one device.

    Sliding-window layers count in full: how its window pool divides is not known to us, and this
    is the upper bound.
    """
    return sum(
        kv_bytes_per_token(group, kv, tensor_parallel_size) * group.layers
        for group in architecture.groups
        if group.kind is not LayerKind.LINEAR
    )


def pool_bytes(*, free_after_weights: int, total: int, static_share: float) -> int:
    """Bytes for the cache when `free_after_weights` are left on a card of `total`."""
    return int(free_after_weights - total * (1 - static_share))


def fit(request: MemoryRequest) -> Fit | OutOfMemory:
    """The plan of `request` under SGLang, on CUDA devices of equal role."""
    size, device = request.tensor_parallel_size, request.smallest
    sequences = request.max_num_seqs or request.target_num_seqs
    batch = request.max_num_batched_tokens
    weights = ceil(request.weights_bytes / size)
    workspace = activation_bytes(batch) + GRAPH_BYTES + runtime_bytes(size)
    workspace += workspace_bytes(request.architecture, batch)
    share = min(MAX_SHARE, (device.total_bytes - workspace) * 100 // max(1, device.total_bytes))
    states = sum(
        linear_state_bytes(group, size) * group.layers * (sequences + 1)
        for group in request.architecture.of(LayerKind.LINEAR)
    )
    pool = pool_bytes(
        free_after_weights=device.available_bytes - weights,
        total=device.total_bytes,
        static_share=share / 100,
    )
    pool -= states
    per_token = token_bytes(request.architecture, request.kv, size)
    outside = device.total_bytes * (100 - share) // 100

    def attempt(tokens: int) -> Fit | OutOfMemory:
        if pool < per_token * tokens * 51 // 50:
            room = max(0, pool) * 50 // 51 // per_token // 256 * 256
            return OutOfMemory(
                where=device.name,
                needed_bytes=weights + states + outside + per_token * tokens * 51 // 50,
                available_bytes=device.available_bytes,
                others_bytes=device.others_bytes,
                what=f"weights, workspace and one request of {tokens:,} tokens",
                largest_context_tokens=room or None,
            )
        terms = [
            MemoryTerm(name="weights", bytes=weights, note=f"over {size}"),
            MemoryTerm(
                name="KV cache",
                bytes=pool // per_token * per_token,
                note=f"{pool // per_token:,} tokens in {request.kv.id}",
            ),
            MemoryTerm(name="workspace", bytes=workspace, note="activations, graphs, runtime"),
        ]
        if states:
            terms.append(
                MemoryTerm(name="linear states", bytes=states, note=f"{sequences + 1} slots")
            )
        memory = MemoryPlan(
            where=device.name, available_bytes=device.available_bytes, terms=tuple(terms)
        )
        return Fit(
            memory=memory,
            max_model_len=tokens,
            max_num_seqs=sequences,
            parameters={
                "mem_fraction_static": f"{share / 100:.2f}",
                "chunked_prefill_tokens": batch,
                "linear_state_slots": sequences + 1 if states else 0,
            },
            warnings=tight(memory),
        )

    return largest(request, attempt)
