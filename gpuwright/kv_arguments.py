"""What `gpuwright kv` was told, made a question: names resolved, faults found, a card looked up."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from gpuwright.catalogue import Matrix, resolve
from gpuwright.engine_rows import MemoryModel, ReleaseRow
from gpuwright.gpu_names import label
from gpuwright.kv_question import KvQuestion
from gpuwright.kv_rules import check, foreign_options
from gpuwright.memory import cache, sglang, vllm_terms
from gpuwright.memory.llama_cpp_rates import GPU_RUNTIME_BYTES, rates
from gpuwright.memory.request import GIB, MIB, DeviceMemory, MemoryRequest
from gpuwright.model_rows import CheckpointRow, ModelRow
from gpuwright.quoting import nearest, quoted
from gpuwright.refusals import WantError, gib
from gpuwright.rows import GpuRow
from gpuwright.site import VISIBLE_PERCENT
from gpuwright.versions import within

SHARES = {MemoryModel.VLLM: 0.92, MemoryModel.SGLANG: 0.88}
"""Share of a card where none is said."""
_Found = TypeVar("_Found")


def read_kv_question(
    arguments: argparse.Namespace, numbers: dict[str, Any], said: tuple[str, ...], matrix: Matrix
) -> KvQuestion:
    """The question of `arguments`, whose numbers are in `numbers` and whose faults so far are
    `said`; WantError with all of them."""
    faults = [*said]
    named = _Names(arguments, matrix, faults)
    model, release, kv = named.model, named.release, named.kv
    if model is not None and release is not None and not said:
        size = numbers["tensor_parallel_size"]
        tokens = numbers.get("max_model_len", model.max_context_tokens)
        faults.extend(_faults(model, release.memory_model, release.engine, size, tokens))
        faults.extend(foreign_options(numbers["said"], release, matrix))
    if faults or model is None or release is None:
        raise WantError(*faults)
    engine, memory_model, checkpoint = release.engine, release.memory_model, named.checkpoint
    reason = check(
        matrix,
        model=model,
        releases=tuple(_meant(arguments, matrix, release, kv.id)),
        checkpoint=checkpoint,
        kv_cache_dtype=kv.id,
        draft_tokens=numbers["speculative_tokens"],
        max_num_seqs=numbers["max_num_seqs"],
        max_num_batched_tokens=numbers["max_num_batched_tokens"],
        card=named.card,
    )
    pinned = release if arguments.release is not None else None
    assumed = [*model.assumptions]
    if pinned is None and memory_model is MemoryModel.VLLM and _windowed(model):
        assumed.append(
            "no release: windows outlive one step (two from 0.26.0 on, with --release), and pages "
            "are filled"
        )
    if numbers["speculative_tokens"] and not model.mtp:
        assumed.append("the cache of a drafter is not counted")
    if memory_model not in (MemoryModel.VLLM, MemoryModel.SGLANG, MemoryModel.LLAMA_CPP):
        assumed.append("reckoned coarsely: not verified against the engine")
    request = MemoryRequest(
        architecture=model.architecture,
        kv=kv,
        terms=matrix.terms(release),
        engine=engine,
        weights_bytes=0,
        devices=(DeviceMemory(name="card", total_bytes=0, available_bytes=0),) * size,
        on_gpu=True,
        model_context_tokens=model.max_context_tokens,
        target_context_tokens=tokens,
        target_num_seqs=numbers["max_num_seqs"],
        max_num_batched_tokens=numbers["max_num_batched_tokens"],
        max_model_len=tokens,
        max_num_seqs=numbers["max_num_seqs"],
        draft_tokens=numbers["speculative_tokens"],
        prefix_caching=numbers["prefix_caching"],
        state_bytes=numbers["state_bytes"],
    )
    if "available_gib" in numbers:
        pool_bytes = int(numbers["available_gib"] * GIB)
    else:
        checkpoint = checkpoint or _first_checkpoint(model, release)
        request, pool_bytes, more = _on_card(
            arguments, numbers, matrix, request, checkpoint, memory_model
        )
        assumed += more
    return KvQuestion(
        request=request,
        model=model,
        checkpoint=checkpoint,
        engine=engine,
        memory_model=memory_model,
        release=pinned,
        block_multiple=numbers["block_multiple"],
        tokens=tokens,
        pool_bytes=max(0, pool_bytes),
        refused=reason,
        assumed=tuple(assumed),
    )


class _Names:
    """What the names of the options mean; None for one that is not said, or is unknown: a fault."""

    def __init__(self, arguments: argparse.Namespace, matrix: Matrix, faults: list[str]) -> None:
        def found(ask: Callable[[], _Found]) -> _Found | None:
            try:
                return ask()
            except WantError as error:
                faults.extend(error.faults)
                return None

        self.model = model = found(lambda: resolve("--model", matrix.models, arguments.model))
        self.release = release = found(lambda: _release(arguments, matrix))
        self.kv: Any = None
        if release is not None:
            self.kv = found(lambda: _dtype(arguments, matrix, release))
        self.checkpoint: CheckpointRow | None = None
        if model is not None and arguments.checkpoint is not None:
            name = arguments.checkpoint
            self.checkpoint = found(lambda: resolve("--checkpoint", model.weights, name))
        self.card: GpuRow | None = None
        if arguments.gpu is not None:
            self.card = found(lambda: matrix.gpu_index.find(arguments.gpu, "--gpu"))


def _meant(
    arguments: argparse.Namespace, matrix: Matrix, release: ReleaseRow, kv: str
) -> Iterator[ReleaseRow]:
    """The release that was named, or those of its engine that have the cache."""
    if arguments.release is not None:
        yield release
        return
    for row in matrix.releases:
        if row.engine == release.engine and kv in row.kv_cache_dtypes:
            yield row


def _windowed(model: ModelRow) -> bool:
    return any(group.window for group in model.architecture.groups)


def _release(arguments: argparse.Namespace, matrix: Matrix) -> ReleaseRow:
    """The release that was named, or the engine's first one in the matrix."""
    engine = next(
        (name for name in matrix.engines if name.casefold() == arguments.engine.casefold()), None
    )
    if engine is None:
        near = nearest(arguments.engine, matrix.engines)
        raise WantError(f"--engine: {quoted(arguments.engine)} is unknown{near}")
    rows = [row for row in matrix.releases if row.engine == engine]
    release = rows[0]
    if arguments.release is not None:
        found = [row for row in rows if row.release == arguments.release]
        if not found:
            near = nearest(arguments.release, [row.release for row in rows])
            raise WantError(f"--release: {engine} {quoted(arguments.release)} is unknown{near}")
        release = found[0]
    if release.memory_model is MemoryModel.UNKNOWN:
        known = dict.fromkeys(
            row.engine for row in matrix.releases if row.memory_model is not MemoryModel.UNKNOWN
        )
        raise WantError(
            f"--engine: how {engine} shares out memory is unknown; known: {', '.join(known)}"
        )
    return release


def _dtype(arguments: argparse.Namespace, matrix: Matrix, release: ReleaseRow) -> Any:
    """The element type: the one that was named, if the engine takes it, or its first."""
    rows = [release]
    if arguments.release is None:
        rows = [row for row in matrix.releases if row.engine == release.engine]
    legal = dict.fromkeys(dtype for row in rows for dtype in row.kv_cache_dtypes)
    if arguments.kv_cache_dtype is None:
        return matrix.kv_cache_dtype(release.kv_cache_dtypes[0])
    dtypes = [row for row in matrix.kv_cache_dtypes if row.id in legal]
    return resolve("--kv-cache-dtype", dtypes, arguments.kv_cache_dtype)


def _faults(
    model: ModelRow, memory_model: MemoryModel, engine: str, size: int, tokens: int
) -> Iterator[str]:
    if tokens > model.max_context_tokens:
        yield (
            f"--max-model-len: {model.id} needs at most {model.max_context_tokens:,}, "
            f"found {tokens:,}"
        )
    if memory_model is MemoryModel.LLAMA_CPP:
        if size > 1:
            yield f"--tensor-parallel-size: {engine} splits layers, needs 1, found {size}"
        return
    misfit = model.architecture.misfit(size)
    if misfit is not None:
        legal = ", ".join(str(each) for each in model.tensor_parallel_sizes)
        yield (
            f"--tensor-parallel-size: {size} does not divide {misfit} of {model.id}; legal: {legal}"
        )


def _first_checkpoint(model: ModelRow, release: ReleaseRow) -> CheckpointRow:
    """The first checkpoint with a size that the engine serves."""
    for row in model.weights:
        spec = row.engines.get(release.engine)
        if spec is not None and row.max_bytes is not None and within(release.release, spec):
            return row
    raise WantError(
        f"--checkpoint: none of {model.id} with a known size is served by {release.engine} "
        f"{release.release}; known: {', '.join(row.id for row in model.weights)}"
    )


def _on_card(
    arguments: argparse.Namespace,
    numbers: dict[str, Any],
    matrix: Matrix,
    request: MemoryRequest,
    checkpoint: CheckpointRow,
    memory_model: MemoryModel,
) -> tuple[MemoryRequest, int, list[str]]:
    """`request` on a card, the bytes that its cache gets there, and what that takes for granted."""
    row = matrix.gpu_index.find(arguments.gpu, "--gpu")
    if checkpoint.max_bytes is None:
        raise WantError(f"--checkpoint: the size of {checkpoint.id} is not known; --available-gib")
    visible, assumed = row.memory_mib * MIB * VISIBLE_PERCENT // 100, []
    if row.visible_mib is not None:
        visible = row.visible_mib * MIB
    else:
        assumed.append(f"{label(row)}: CUDA sees {VISIBLE_PERCENT} % of it")
    assumed += checkpoint.assumptions
    card = DeviceMemory(name=label(row), total_bytes=visible, available_bytes=visible)
    size = request.tensor_parallel_size
    request = replace(request, devices=(card,) * size, weights_bytes=checkpoint.max_bytes)
    share = numbers.get("gpu_memory_utilization")
    if memory_model is MemoryModel.SGLANG:
        share = numbers.get("mem_fraction_static", share)
    if share is None:
        share = SHARES.get(memory_model, 1.0)
        if memory_model in SHARES:
            assumed.append(f"{share} of the card is the engine's")
    terms = request.terms
    if memory_model is MemoryModel.VLLM:
        assert terms is not None
        fixed = vllm_terms.fixed_bytes(request)
        if not terms.graphs_in_budget:
            fixed -= vllm_terms.graph_bytes(request)
        return request, int(visible * share) - fixed, assumed
    weights = -(-checkpoint.max_bytes // size)
    if memory_model is MemoryModel.LLAMA_CPP:
        rate = rates(request.architecture, request.kv)
        slots = request.max_num_seqs or 1
        tokens = (request.max_model_len or 0) * slots
        used = weights - checkpoint.host_bytes + GPU_RUNTIME_BYTES + rate.buffers(tokens)
        used += rate.state * slots + (rate.draft(0, tokens) if request.draft_tokens else 0)
        return request, int(visible * share) - used, assumed
    states = cache.of_tokens(request, 0, 1).state_bytes_per_sequence * (request.sequences + 1)
    if memory_model is MemoryModel.SGLANG:
        left = sglang.pool_bytes(
            free_after_weights=visible - weights, total=visible, static_share=share
        )
        return request, left - states, assumed
    assert terms is not None
    spent = terms.activation_bytes(request.max_num_batched_tokens) + terms.runtime_bytes(size)
    spent += terms.graph_bytes(request.sequences)
    left = max(0, int(visible * share) - weights - spent - states) * terms.max_share_percent // 100
    assumed.append(f"{gib(spent)} for all but weights and cache")
    return request, left, assumed
