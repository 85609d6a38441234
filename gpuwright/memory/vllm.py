"""vLLM: a pool of blocks that takes what its share of the card leaves, exact to the token.

The pool's arithmetic reproduces what the engine prints at start for full attention, sliding
windows, linear-attention hybrids and latent attention. The terms beside it (activations, graphs,
runtime) are measured, and rounded up.
"""

from __future__ import annotations

from itertools import pairwise
from math import ceil

from gpuwright.memory.pool import pool
from gpuwright.memory.request import GIB, Fit, MemoryRequest, largest, tight
from gpuwright.model_rows import Architecture, LayerKind
from gpuwright.plan import MemoryPlan, MemoryTerm
from gpuwright.refusals import OutOfMemory

MAX_SHARE = 92
"""Percent of a card's total memory that the engine is given at most."""


def runtime_bytes(tensor_parallel_size: int) -> int:
    """CUDA context and communication buffers of one device: 0.35, 0.8 and 1.7 GiB measured."""
    if tensor_parallel_size == 1:
        return int(0.35 * GIB)
    return int((0.8 if tensor_parallel_size <= 4 else 1.7) * GIB)


def activation_bytes(max_num_batched_tokens: int) -> int:
    """Peak of one step: 1 GiB at 2048 tokens, 1.8 at 8192, 4.4 from 16384 on, straight between."""
    points = ((2048, 1.0), (8192, 1.8), (16384, 4.4))
    if max_num_batched_tokens <= points[0][0]:
        return GIB
    for (low, low_gib), (high, high_gib) in pairwise(points):
        if max_num_batched_tokens <= high:
            share = (max_num_batched_tokens - low) / (high - low)
            return int((low_gib + share * (high_gib - low_gib)) * GIB)
    return int(points[-1][1] * GIB)


def graph_bytes(max_num_seqs: int) -> int:
    """CUDA graphs: 0.3 GiB up to 16 sequences, growing to 5 GiB at 256 and more."""
    if max_num_seqs <= 16:
        return int(0.3 * GIB)
    return int((0.3 + min(1.0, (max_num_seqs - 16) / 240) * 4.7) * GIB)


def workspace_bytes(architecture: Architecture, max_num_batched_tokens: int) -> int:
    """What linear-attention models take beyond the profiled budget while they read a prompt.

    2.86 GiB was measured at a batch of 8192; it follows the batch.
    """
    if not architecture.of(LayerKind.LINEAR):
        return 0
    return max(GIB * 3 // 4, 3 * GIB * max_num_batched_tokens // 8192)


def fit(request: MemoryRequest) -> Fit | OutOfMemory:
    """The plan of `request` under vLLM, on CUDA devices of equal role."""
    size, device = request.tensor_parallel_size, request.smallest
    batch = request.max_num_batched_tokens
    sequences = request.max_num_seqs or request.target_num_seqs
    layout = pool(request.architecture, request.kv, size, max_num_batched_tokens=batch)
    workspace = workspace_bytes(request.architecture, batch)
    share = min(MAX_SHARE, (device.available_bytes - workspace) * 100 // max(1, device.total_bytes))
    fixed = (
        MemoryTerm(name="weights", bytes=ceil(request.weights_bytes / size), note=f"over {size}"),
        MemoryTerm(name="runtime", bytes=runtime_bytes(size), note="CUDA context, measured"),
        MemoryTerm(name="activations", bytes=activation_bytes(batch), note=f"{batch} per step"),
        MemoryTerm(name="CUDA graphs", bytes=graph_bytes(sequences), note=f"{sequences} requests"),
    )
    pool_bytes = device.total_bytes * share // 100 - sum(term.bytes for term in fixed)
    blocks = layout.blocks(pool_bytes)

    def attempt(tokens: int) -> Fit | OutOfMemory:
        need = layout.need(tokens)
        # 2 % more than one full request: at the edge the same start succeeds or fails by chance.
        if blocks * 50 < need * 51:
            spent = sum(term.bytes for term in fixed) + workspace
            return OutOfMemory(
                where=device.name,
                needed_bytes=spent + need * layout.block_bytes * 51 // 50,
                # What is compared: the share of the card that the engine may fill.
                available_bytes=min(
                    device.available_bytes,
                    max(0, device.total_bytes * share // 100 + workspace),
                ),
                others_bytes=device.others_bytes,
                what=f"weights, workspace and one request of {tokens:,} tokens",
                largest_context_tokens=layout.largest_context(blocks, spare_percent=2) // 256 * 256
                or None,
            )
        # Every sequence keeps at least its state and one block of its context.
        held = min(sequences, blocks // layout.need(1))
        if request.max_num_seqs is not None and held < request.max_num_seqs:
            return OutOfMemory(
                where=device.name,
                needed_bytes=request.max_num_seqs * layout.need(1) * layout.block_bytes,
                available_bytes=blocks * layout.block_bytes,
                what=f"the cache of {request.max_num_seqs} requests at their shortest",
            )
        requests = blocks / need
        cache = MemoryTerm(
            name="KV cache",
            bytes=blocks * layout.block_bytes,
            note=f"{layout.tokens(pool_bytes, tokens):,} tokens in {request.kv.id}, "
            f"{requests:.2f} requests of {tokens:,}",
        )
        terms = [*fixed, cache]
        if workspace:
            terms.append(
                MemoryTerm(name="prompt workspace", bytes=workspace, note="outside the pool")
            )
        memory = MemoryPlan(
            where=device.name, available_bytes=device.available_bytes, terms=tuple(terms)
        )
        warnings = tight(memory) if not workspace else ()
        if requests < 1.06:
            warnings += (f"the cache holds {requests:.2f} requests of {tokens:,} tokens",)
        return Fit(
            memory=memory,
            max_model_len=tokens,
            max_num_seqs=held,
            parameters={
                "gpu_memory_utilization": f"{share / 100:.2f}",
                "max_num_batched_tokens": batch,
                "prefix_caching": True,
            },
            warnings=warnings,
        )

    return largest(request, attempt)
