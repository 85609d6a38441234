"""The decision: from a host, a want and the matrix to one plan, or to why there is none.

Pure: no clock, network, process or environment. The same three give the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from gpuwright.candidates import Build, Failure, builds, candidates, may_apply, may_offload
from gpuwright.catalogue import Matrix, resolve
from gpuwright.fitting import Candidate
from gpuwright.host import Host
from gpuwright.memory.request import Fit
from gpuwright.model_rows import ModelRow
from gpuwright.node_rules import node_reasons
from gpuwright.pace import tokens_per_second
from gpuwright.pins import pinned_gpus, resolve_pins
from gpuwright.plan import Plan, Rejection
from gpuwright.planning import plan_of
from gpuwright.refusals import (
    CpuNotAsked,
    Needs,
    NoCard,
    OutOfMemory,
    Reason,
    Refusal,
    Superseded,
    WantError,
    refuse,
)
from gpuwright.remedies import Remedy
from gpuwright.routing import route_for
from gpuwright.rows import Effect, Preference, WorkloadRow
from gpuwright.site import Site
from gpuwright.want import Want

Ranked = tuple[tuple[Any, ...], Candidate]
"""A candidate behind what it is compared by."""


def decide(host: Host, want: Want, matrix: Matrix) -> Plan | Refusal:
    """One plan for this node, or a Refusal that names every candidate's first hard reason.

    Pins in `want` are honoured or refused, never changed. With a card on the node the CPU is
    planned only where `gpus` says none: a broken driver is a refusal, not a slow service. Raises
    WantError where `want` names what the matrix or the node does not have.
    """
    site = Site(host=host, want=want, pins=resolve_pins(want, matrix), matrix=matrix)
    reasons = tuple(node_reasons(host, want, matrix))
    if reasons:
        summary = "this node cannot serve"
        return refuse(want.model, summary, reasons, helps=lambda each: _helps(site, each))
    if want.gpus:
        pinned_gpus(host, want)
    decision = _planned(site)
    return decision if isinstance(decision, Plan) else _refusal(site, decision)


def _planned(site: Site) -> Plan | list[Failure]:
    """The plan of the best candidate, or why there is none; of the node as a whole nothing is asked
    here."""
    running, failures = builds(site)
    ranked, lost, passed = _ranked(site, running)
    if not ranked:
        # What no newest release can, an older one may.
        every, failures = builds(site, superseded=True)
        ranked, more, passed = _ranked(site, [each for each in every if each not in running])
        lost += more
    failures += lost
    if not ranked:
        return failures
    (best_rank, best), *losers = sorted(ranked, key=lambda each: each[0])
    why_not = [failure.rejection for failure in failures]
    why_not += [_lost(loser, rank, best_rank) for rank, loser in losers]
    why_not += [Rejection(candidate=model.id, reason=_PASSED) for model in passed]
    return plan_of(site, best, tuple(why_not))


def _ranked(site: Site, running: list[Build]) -> tuple[list[Ranked], list[Failure], list[ModelRow]]:
    """Candidates with their ranks, what fails, and the models that were not looked at: a lesser one
    can only win by what stands before merit."""
    ranked: list[Ranked] = []
    failures: list[Failure] = []
    models = sorted(site.pins.models, key=lambda model: -model.merit)
    for index, model in enumerate(models):
        if ranked and _settled(site, running, ranked, models[index:]):
            return ranked, failures, models[index:]
        found, lost = _of_model(site, running, model)
        ranked += found
        failures += lost
    return ranked, failures, []


def _helps(site: Site, remedy: Remedy) -> bool:
    """Whether a plan comes of a remedy that can be tried."""
    want = replace(site.want, **dict(remedy.want))
    host = site.host
    if remedy.driver is not None:
        host = replace(host, driver_version=remedy.driver)
    try:
        pins = resolve_pins(want, site.matrix)
    except WantError:
        return False
    if any(node_reasons(host, want, site.matrix)):
        return False
    changed = Site(host=host, want=want, pins=pins, matrix=site.matrix)
    running, _ = builds(changed, superseded=True)
    pinned = want.expert_offload
    return any(
        isinstance(answer, Candidate)
        for offload in ((False, True) if pinned is None else (pinned,))
        for model in pins.models
        for build in running
        if not offload or pinned or may_offload(changed, build)
        for answer in candidates(changed, build, model, offload=offload)
    )


def _of_model(
    site: Site, running: list[Build], model: ModelRow
) -> tuple[list[Ranked], list[Failure]]:
    """The candidates of `model` with their ranks, and what fails. Experts go to RAM only where
    nothing that stays on the cards is as good as can be."""
    pinned = site.want.expert_offload

    def tried(build: Build, *, offload: bool) -> tuple[list[Ranked], list[Failure]]:
        answers = list(candidates(site, build, model, offload=offload))
        ranked = [(_rank(site, each), each) for each in answers if isinstance(each, Candidate)]
        return ranked, [each for each in answers if isinstance(each, Failure)]

    of_each = {build: tried(build, offload=pinned is True) for build in running}
    if pinned is None and model.architecture.experts:
        ranks = (rank for ranked, _ in of_each.values() for rank, _ in ranked)
        if all(any(rank[1:_BEFORE_MERIT]) for rank in ranks):
            again = (build for build in running if may_offload(site, build))
            of_each |= {build: tried(build, offload=True) for build in again}
    found = [each for ranked, _ in of_each.values() for each in ranked]
    return found, [each for _, lost in of_each.values() for each in lost]


def _settled(
    site: Site,
    running: list[Build],
    ranked: list[Ranked],
    others: list[ModelRow],
) -> bool:
    """Whether none of `others`, which are lesser models, can come before the best so far."""
    applied = any(may_apply(site, running, model) for model in others)
    best = min(rank for rank, _ in ranked)
    return best[:_BEFORE_MERIT] <= (int(not applied), *(0,) * (_BEFORE_MERIT - 1))


def reaches_its_context(plan: Plan, want: Want, matrix: Matrix) -> bool:
    """Whether `plan` holds the context that its workload asks for, or its model's own."""
    workload = resolve("workload", matrix.workloads, want.workload)
    model, _ = matrix.checkpoint(plan.checkpoint)
    return plan.max_model_len >= min(workload.context_tokens, model.max_context_tokens)


def _refusal(site: Site, failures: list[Failure]) -> Refusal:
    # What is there and was merely not asked for explains least, so it comes last.
    unasked = (CpuNotAsked, NoCard, Superseded)
    ordered = sorted(failures, key=lambda failure: isinstance(failure.reason, unasked))
    reasons: list[Reason] = [failure.reason for failure in ordered]
    if site.pins.auto_model and not site.host.gpus:
        reasons = list(_nearest_to_fitting(ordered))
    if not reasons:
        reasons = [Needs(subject="pins", needed="a build that meets them all", found="none")]
    summary = f"no way to serve {site.want.model} fits this node"
    if site.pins.auto_model:
        summary = "no model of the catalogue fits this node"
    return refuse(
        site.want.model,
        summary,
        reasons,
        [failure.rejection for failure in failures],
        helps=lambda each: _helps(site, each),
    )


def _nearest_to_fitting(failures: list[Failure]) -> Iterator[Reason]:
    """The least shortage of RAM, and what is not about one model: who asked for no model in
    particular wants to know whether any fits, not what each of them lacks."""
    short = [each.reason for each in failures if isinstance(each.reason, OutOfMemory)]
    if short:
        yield min(short, key=lambda reason: reason.needed_bytes)
    for failure in failures:
        if not failure.of_model or (not short and not isinstance(failure.reason, OutOfMemory)):
            yield failure.reason


_CRITERIA = (
    "it cannot be applied yet",
    "its model is too small to be of use",
    "it does not reach the context that the workload asks for",
    "its weights are so coarse that answers suffer",
    "it leaves experts to the CPU",
    "it lacks a feature that the workload asks for",
    "it holds fewer requests at once than the workload asks for",
    "it reads too many bytes for each token to write as fast as the workload asks for",
    "its model is the lesser one by the catalogue's order",
    "it leaves more experts to the CPU",
    "it keeps a smaller reserve than is advised",
    "it meets a hazard that is better avoided",
    "its engine comes later for this workload and card",
    "it has less of what the workload prefers",
    "its weights are not in the format to take on this card",
    "its weights are expanded to 16 bits on this card",
    "its weights are coarser",
    "its cache dtype is coarser",
    "it holds less context",
    "it takes more cards for the same",
)


_BEFORE_MERIT = 8
"""How many criteria stand before the model's own merit."""
LEAST_MERIT = 10
"""Below it a model is one to try things with, and no answer to what would serve people."""
_PASSED = "not looked at: a better model by the catalogue's order fits with all that is asked for"
COARSE_MILLIBITS = 3500
"""Thousandths of a bit; below it a larger model loses what it had over a smaller one."""


def _is_slow(workload: WorkloadRow, candidate: Candidate, matrix: Matrix) -> bool:
    if not workload.least_tokens_per_second:
        return False
    pace = tokens_per_second(candidate.combination, matrix)
    return pace is not None and pace < workload.least_tokens_per_second


_PREFERENCES: dict[Preference, Callable[[WorkloadRow, Fit, Candidate], int]] = {
    Preference.CONTEXT: lambda workload, fit, candidate: -fit.max_model_len,
    Preference.REQUESTS: lambda workload, fit, candidate: -candidate.requests(workload),
    Preference.FORMAT: lambda workload, fit, candidate: int(not candidate.preferred),
    Preference.CARDS: lambda workload, fit, candidate: len(candidate.combination.gpus),
}


def _rank(site: Site, candidate: Candidate) -> tuple[Any, ...]:
    """What is compared, in this order, smaller first: one number per line of _CRITERIA."""
    combination = candidate.combination
    model, release = combination.model, combination.release
    workload = site.pins.workload
    target = workload.context_tokens
    if not site.pins.auto_model:
        # Who names a model knows how long its context can be; no model is chosen for a short one.
        target = min(target, model.max_context_tokens)
    order = route_for(workload, combination).order
    weights = site.matrix.quantization(combination.checkpoint.quantization)
    return (
        int(not candidate.applicable),
        int(model.merit < LEAST_MERIT),
        _shortage(workload, candidate.fit.max_model_len, target),
        int(weights.millibits_per_weight < COARSE_MILLIBITS),
        int(candidate.layers_in_ram > 0),
        sum(each not in combination.features for each in workload.asks),
        int(candidate.requests(workload) < workload.least_num_seqs),
        int(_is_slow(workload, candidate, site.matrix)),
        -model.merit,
        candidate.layers_in_ram,
        int(candidate.fit.below_advice),
        sum(row.effect is Effect.AVOID and not row.sets for row in candidate.hazards),
        order.index(release.engine) if release.engine in order else len(order),
        tuple(_PREFERENCES[each](workload, candidate.fit, candidate) for each in workload.prefer),
        int(not (candidate.preferred or (candidate.roomy and candidate.spared))),
        int(not candidate.native),
        -weights.millibits_per_weight,
        release.kv_cache_dtypes.index(candidate.kv.id),
        -candidate.fit.max_model_len,
        len(combination.gpus),
    )


def _shortage(workload: WorkloadRow, context: int, target: int) -> int:
    """0 where the context is reached; how much is missing counts where context is preferred."""
    if context >= target:
        return 0
    return target - context if Preference.CONTEXT in workload.prefer else 1


def _lost(loser: Candidate, rank: tuple[Any, ...], best_rank: tuple[Any, ...]) -> Rejection:
    """Why a candidate that fits is not the one: the first criterion on which it falls behind."""
    pairs = zip(_CRITERIA, rank, best_rank, strict=True)
    text = next((line for line, mine, theirs in pairs if mine > theirs), None)
    sentence = f"fits; {text or 'it is equal and stands later in the matrix'}"
    if text == _CRITERIA[0]:
        sentence += f": {loser.not_applicable}"
    return Rejection(candidate=loser.label, reason=sentence)
