"""Drafting, cache, attention backend and memory plan for a build and a checkpoint on cards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from gpuwright import model_rules
from gpuwright.attention_rows import AttentionBackendRow
from gpuwright.disk_rules import disk_reason, making_of
from gpuwright.engine_rows import MemoryModel
from gpuwright.feature_choice import OFFLOAD, VISION
from gpuwright.hazard_rows import HazardRow
from gpuwright.hazard_settings import is_met, plan_settings, unbound, under
from gpuwright.hazards import met, surroundings
from gpuwright.kernel_compilers import compiler_of
from gpuwright.memory import coarse, llama_cpp, sglang, vllm, vllm_cpu
from gpuwright.memory.request import Fit, MemoryRequest
from gpuwright.memory_request import memory_request, slots_of
from gpuwright.model_rows import CheckpointRow
from gpuwright.refusals import DiskTooSmall, Hazardous, Needs, OutOfMemory, Reason
from gpuwright.rows import Effect, KvCacheDtypeRow, Scalar, WorkloadRow
from gpuwright.site import CardSet, Combination, Site, splits_tensors
from gpuwright.ways import Way, ways_of
from gpuwright.weight_formats import Formats, formats_of

_FITS: dict[MemoryModel, Callable[[MemoryRequest], Fit | Reason]] = {
    MemoryModel.VLLM: vllm.fit,
    MemoryModel.VLLM_CPU: vllm_cpu.fit,
    MemoryModel.SGLANG: sglang.fit,
    MemoryModel.LLAMA_CPP: llama_cpp.fit,
    MemoryModel.COARSE: coarse.fit,
    MemoryModel.COARSE_EXPERTS_IN_RAM: coarse.fit_with_experts_in_ram,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A combination that fits, with its memory plan and the hazards that it lives with."""

    combination: Combination
    backend: AttentionBackendRow
    kv: KvCacheDtypeRow
    fit: Fit
    hazards: tuple[HazardRow, ...]
    settings: dict[str, Scalar]
    """What hazards and pins set, in neutral words; the memory plan knows of it."""
    formats: Formats
    unstored: tuple[DiskTooSmall, ...] = ()
    """Why no way of drafting that the workload prefers to its own was taken for want of room on a
    disk; the row of each is the drafter."""

    @property
    def roomy(self) -> bool:
        """Whether the model's own context fits whole."""
        return self.fit.max_model_len == self.combination.model.max_context_tokens

    def requests(self, workload: WorkloadRow) -> int:
        """How many requests it holds at once, each with the workload's context."""
        context = min(workload.context_tokens, self.fit.max_model_len)
        return min(self.fit.max_num_seqs, self.fit.kv_cache_tokens // context)

    @property
    def label(self) -> str:
        return self.combination.label

    @property
    def layers_in_ram(self) -> int:
        """Layers whose experts the CPU computes."""
        return self.fit.cpu_expert_layers

    @property
    def applicable(self) -> bool:
        applicable = self.combination.tag.not_applicable is None
        return applicable and all(row.files is not None for row in self._checkpoints)

    @property
    def drafter(self) -> CheckpointRow | None:
        drafting = self.combination.drafting
        return drafting.drafter if drafting is not None else None

    @property
    def projector(self) -> CheckpointRow | None:
        combination = self.combination
        if VISION not in combination.features:
            return None
        return model_rules.projector(combination.model, combination.release)

    @property
    def beside(self) -> tuple[CheckpointRow, ...]:
        """Checkpoints that it needs with the model's own."""
        return tuple(row for row in (self.drafter, self.projector) if row is not None)

    @property
    def _checkpoints(self) -> tuple[CheckpointRow, ...]:
        return (self.combination.checkpoint, *self.beside)

    @property
    def not_applicable(self) -> str | None:
        """Why it can be shown and not be applied; None where it can."""
        if self.combination.tag.not_applicable is not None:
            return self.combination.tag.not_applicable
        faults = [
            f"checkpoint {row.id} is not pinned: {row.unpinned}; "
            f"`python -m tools.pin {row.id}` records it"
            for row in self._checkpoints
            if row.files is None
        ]
        return "; ".join(faults) or None


def misfit(site: Site, combination: Combination, cards: CardSet) -> Reason | None:
    """Why the build cannot serve the checkpoint on `cards`, however much they hold."""
    return (
        cards.unusable
        or _unquantized(site, combination, cards)
        or cards.untold
        or _unsplit(site, combination, cards)
    )


def best_fit(site: Site, combination: Combination, cards: CardSet) -> Candidate | Reason:
    """The candidate on `cards` with the first way of drafting and the first cache dtype that reach
    the workload's context, or else the one with the most context; the first reason where none fits.
    Where `misfit` finds nothing.
    """
    found = ways_of(site, combination, cards)
    if not isinstance(found, tuple):
        return found
    best: Candidate | None = None
    first: Reason | None = None
    unstored: list[DiskTooSmall] = []
    for ways in found:
        answer = _best_cache(site, combination, cards, ways)
        if isinstance(answer, DiskTooSmall):
            unstored.append(answer)
        if not isinstance(answer, Candidate):
            first = answer
            continue
        if unstored:
            answer = replace(answer, unstored=tuple(unstored))
        if _reaches(site, answer):
            return answer
        if best is None or answer.fit.max_model_len > best.fit.max_model_len:
            best = answer
    if best is not None:
        return best
    assert first is not None
    return first


def _reaches(site: Site, candidate: Candidate) -> bool:
    target = site.want.max_model_len or site.pins.workload.context_tokens
    most = candidate.combination.model.max_context_tokens
    workload = site.pins.workload
    enough = candidate.requests(workload) >= workload.least_num_seqs
    return enough and candidate.fit.max_model_len >= min(target, most)


def _unquantized(site: Site, combination: Combination, cards: CardSet) -> Reason | None:
    release, checkpoint = combination.release, combination.checkpoint
    if not cards.kinds:
        return model_rules.quantization_on_cpu(release, checkpoint, site.matrix)
    for gpu in cards.kinds:
        reason = model_rules.quantization(gpu, release, checkpoint, site.matrix)
        if reason is not None:
            return reason
    return None


def _unsplit(site: Site, combination: Combination, cards: CardSet) -> Reason | None:
    """Why the build cannot split the model over just these cards."""
    pinned, size, release = site.want.tensor_parallel_size, len(cards.gpus), combination.release
    if size and splits_tensors(release):
        if pinned is None:
            return cards.unequal or model_rules.tensor_parallel(combination.model, size)
        if pinned != size:
            return Needs(
                subject="cards of one kind", needed=str(pinned), found=str(size), row=release.id
            )
        return model_rules.tensor_parallel(combination.model, size)
    if pinned in (None, 1):
        return None
    return Needs(
        subject=f"tensor parallel size {pinned}",
        needed="an engine that splits tensors over cards",
        found=f"{release.engine}, which splits layers" if size else "the CPU alone",
        row=release.id,
    )


def _best_cache(
    site: Site, combination: Combination, cards: CardSet, ways: tuple[Way | Reason, ...]
) -> Candidate | Reason:
    best: Candidate | None = None
    reasons: list[Reason] = []
    for way in ways:
        answer = fitted(site, combination, cards, way) if isinstance(way, Way) else way
        if not isinstance(answer, Candidate):
            reasons.append(answer)
            continue
        if best is None or answer.fit.max_model_len > best.fit.max_model_len:
            best = answer
        if _reaches(site, best):
            break
    if best is not None:
        return best
    # Of several shortages the last is the smallest cache's, so the nearest to fitting. The disk is
    # asked only of what fits in memory.
    short = [reason for reason in reasons if isinstance(reason, OutOfMemory | DiskTooSmall)]
    return short[-1] if short else reasons[0]


def fitted(site: Site, served: Combination, cards: CardSet, way: Way) -> Candidate | Reason:
    """`served` in that way on `cards`, or why it does not fit or may not be."""
    release, kv, backend, gpus = served.release, way.kv, way.backend, cards.gpus
    combination = served.by(way.drafting, kv, backend, way.features, gpus)
    slots, workload = slots_of(site, release, cards), site.pins.workload
    plan = {
        "max_num_seqs": site.want.max_num_seqs or slots,
        "max_num_batched_tokens": site.want.max_num_batched_tokens
        or workload.max_num_batched_tokens,
    }
    compiler = compiler_of(site, release, cards.capabilities)
    around = surroundings(site.host, compiler, **plan)
    hazards = tuple(met(way.hazards, combination, site.matrix, around))
    reason = _refusing(hazards)
    if reason is not None:
        return reason
    settings = plan_settings(site, slots, hazards)
    combination = under(combination, settings)
    request = memory_request(site, combination, cards, slots, settings)
    if not isinstance(request, MemoryRequest):
        return request
    fit = _FITS[release.memory_model](request)
    if not isinstance(fit, Fit):
        return fit
    if way.context_hazards:
        around = surroundings(site.host, compiler, max_model_len=fit.max_model_len, **plan)
        more = tuple(met(way.context_hazards, combination, site.matrix, around))
        reason = _refusing(more)
        if reason is not None:
            return reason
        hazards += more
    by_itself = plan | unbound(site, served, way.drafting, fit.max_model_len, settings)
    hazards = tuple([row for row in hazards if is_met(row, settings, by_itself)])
    if fit.cpu_expert_layers:
        combination = replace(combination, features=combination.features | {OFFLOAD})
    candidate = Candidate(
        combination=combination,
        backend=backend,
        kv=kv,
        fit=fit,
        hazards=hazards,
        settings=settings,
        formats=formats_of(site.matrix, release, served.checkpoint, cards.capabilities),
    )
    return _unstored(site, candidate) or candidate


def _unstored(site: Site, candidate: Candidate) -> Reason | None:
    """Why the disk does not take what is served with the model; that it takes the model alone is
    known by then."""
    if not candidate.beside:
        return None
    chosen = candidate.combination
    making = making_of(site, chosen.release, chosen.tag)
    # The drafter last: a plan can do without it.
    beside = tuple(row for row in (candidate.projector, candidate.drafter) if row is not None)
    return disk_reason(site.host, site.want, (chosen.checkpoint, *beside), making)


def _refusing(hazards: tuple[HazardRow, ...]) -> Reason | None:
    for row in hazards:
        if row.effect is Effect.REFUSE:
            return Hazardous(
                because=row.because,
                instead=row.instead,
                found=row.when.words(),
                row=f"hazards {row.id}",
            )
    return None
