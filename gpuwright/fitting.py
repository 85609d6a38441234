"""Cache dtype, attention backend and memory plan for a build and a checkpoint on given cards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from gpuwright import attention, compat
from gpuwright.attention_rows import AttentionBackendRow
from gpuwright.engine_rows import MemoryModel
from gpuwright.hazards import hazards_of
from gpuwright.memory import llama_cpp, sglang, vllm
from gpuwright.memory.request import Fit, MemoryRequest
from gpuwright.model_rows import LayerKind
from gpuwright.refusals import Hazardous, Needs, OutOfMemory, Reason
from gpuwright.rows import Effect, HazardRow, KvCacheDtypeRow
from gpuwright.site import Combination, Site, card_memory, ram_memory, splits_tensors

_FITS: dict[MemoryModel, Callable[[MemoryRequest], Fit | OutOfMemory]] = {
    MemoryModel.VLLM: vllm.fit,
    MemoryModel.SGLANG: sglang.fit,
    MemoryModel.LLAMA_CPP: llama_cpp.fit,
}
MAX_SLOTS = 4
"""llama.cpp gives every slot its whole context, so few of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A combination that fits, with its memory plan and the hazards that it lives with."""

    combination: Combination
    backend: AttentionBackendRow
    kv: KvCacheDtypeRow
    fit: Fit
    hazards: tuple[HazardRow, ...]
    native: bool
    """Whether every card computes in the weights' format."""

    @property
    def label(self) -> str:
        return self.combination.label

    @property
    def not_applicable(self) -> str | None:
        """Why it can be shown and not be applied; None where it can."""
        checkpoint = self.combination.checkpoint
        if self.combination.tag.not_applicable is not None:
            return self.combination.tag.not_applicable
        if checkpoint.files is None:
            return (
                f"checkpoint {checkpoint.id} is not pinned: {checkpoint.unpinned}; "
                f"`python -m tools.pin {checkpoint.id}` records it"
            )
        return None


def best_cache(site: Site, combination: Combination) -> Candidate | Reason:
    """The candidate with the first cache dtype that reaches the workload's context, or else the
    one with the most context; the first reason where none fits."""
    release, model = combination.release, combination.model
    dtypes = release.kv_cache_dtypes[: release.auto_kv_cache_dtypes]
    if site.pins.kv_cache_dtype is not None:
        dtypes = (site.pins.kv_cache_dtype,)
    target = site.want.max_model_len or site.pins.workload.context_tokens
    best: Candidate | None = None
    reasons: list[Reason] = []
    for dtype in dtypes:
        kv = site.matrix.kv_cache_dtype(dtype)
        answer = _with_cache(site, replace(combination, kv=kv), kv)
        if not isinstance(answer, Candidate):
            reasons.append(answer)
            continue
        if best is None or answer.fit.max_model_len > best.fit.max_model_len:
            best = answer
        if best.fit.max_model_len >= min(target, model.max_context_tokens):
            break
    if best is not None:
        return best
    # Of several shortages the last is the smallest cache's, so the nearest to fitting.
    short = [reason for reason in reasons if isinstance(reason, OutOfMemory)]
    return short[-1] if short else reasons[0]


def _with_cache(site: Site, combination: Combination, kv: KvCacheDtypeRow) -> Candidate | Reason:
    release = combination.release
    if kv.id not in release.kv_cache_dtypes:
        return Needs(
            subject=f"cache of {release.engine} {release.release}",
            needed=" or ".join(release.kv_cache_dtypes),
            found=kv.id,
            row=release.id,
        )
    backend = _backend(site, combination, kv)
    if not isinstance(backend, AttentionBackendRow):
        return backend
    combination = replace(combination, backend=backend)
    hazards = tuple(hazards_of(combination, site.matrix))
    for hazard in hazards:
        if hazard.effect is Effect.REFUSE:
            return Hazardous(because=hazard.because, instead=hazard.instead, row=hazard.id)
    request = _memory_request(site, combination, kv)
    if not isinstance(request, MemoryRequest):
        return request
    fit = _FITS[release.memory_model](request)
    if not isinstance(fit, Fit):
        return fit
    return Candidate(
        combination=combination,
        backend=backend,
        kv=kv,
        fit=fit,
        hazards=hazards,
        native=all(
            compat.native(gpu, release, combination.checkpoint, site.matrix)
            for gpu in combination.gpus
        ),
    )


def _backend(
    site: Site, combination: Combination, kv: KvCacheDtypeRow
) -> AttentionBackendRow | Reason:
    """The backend that the engine takes by itself, or the pinned one, if it fits every card."""
    architecture = combination.model.architecture
    asked = [
        attention.Asked(
            capability=capability,
            kv=kv.id,
            head_sizes=architecture.head_sizes,
            mla=bool(architecture.of(LayerKind.MLA)),
            sliding=bool(architecture.of(LayerKind.SLIDING)),
            family=combination.model.family,
        )
        for capability in [gpu.compute_capability for gpu in combination.gpus] or [None]
    ]
    rows = site.matrix.backends(combination.release.engine)
    return attention.chosen(combination.release, rows, asked, pinned=site.pins.attention_backend)


def _memory_request(
    site: Site, combination: Combination, kv: KvCacheDtypeRow
) -> MemoryRequest | Reason:
    model, workload, host = combination.model, site.pins.workload, site.host
    slots = workload.max_num_seqs
    if not splits_tensors(combination.release):
        slots = min(slots, MAX_SLOTS)
    if combination.gpus:
        devices = tuple(card_memory(gpu, site.matrix) for gpu in combination.gpus)
    elif not host.memory_total_bytes:
        return Needs(subject="RAM", needed="a size", found="unknown")
    else:
        devices = (ram_memory(host.memory_total_bytes),)
        slots = min(slots, max(1, host.cpu_threads or 1))
    weights = combination.checkpoint.max_bytes
    assert weights is not None, "compat.published_size has refused it"
    return MemoryRequest(
        architecture=model.architecture,
        kv=kv,
        weights_bytes=weights,
        host_bytes=combination.checkpoint.host_bytes,
        ram_bytes=host.memory_total_bytes or 0,
        devices=devices,
        on_gpu=bool(combination.gpus),
        model_context_tokens=model.max_context_tokens,
        target_context_tokens=min(workload.context_tokens, model.max_context_tokens),
        target_num_seqs=slots,
        max_num_batched_tokens=workload.max_num_batched_tokens,
        max_model_len=site.want.max_model_len,
        max_num_seqs=site.want.max_num_seqs,
    )
