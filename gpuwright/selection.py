"""The decision: from a host, a want and the matrix to one plan, or to why there is none.

Pure: no clock, network, process or environment. The same three give the same answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from gpuwright.candidates import Build, Failure, Opening, builds, may_apply, may_offload, openings
from gpuwright.catalogue import Matrix, resolve
from gpuwright.fitting import Candidate
from gpuwright.host import Host
from gpuwright.model_rows import ModelRow
from gpuwright.node_rules import node_reasons
from gpuwright.pins import pinned_gpus, resolve_pins
from gpuwright.plan import Plan, Rejection
from gpuwright.planning import plan_of
from gpuwright.ranking import BEFORE_MERIT, UNAPPLICABLE, Rank, is_toy, shortcoming
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
from gpuwright.rows import Device
from gpuwright.search import EQUAL, Found, Ranked, found_of
from gpuwright.site import Site
from gpuwright.unified import with_ram_as_memory
from gpuwright.want import Want


def decide(host: Host, want: Want, matrix: Matrix) -> Plan | Refusal:
    """One plan for this node, or a Refusal that names every candidate's first hard reason.

    Pins in `want` are honoured or refused, never changed. With a card on the node the CPU is
    planned only where `gpus` says none: a broken driver is a refusal, not a slow service. Raises
    WantError where `want` names what the matrix or the node does not have.
    """
    host = with_ram_as_memory(host, matrix)
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
    found, passed = _found(site, running)
    if not found.ranked:
        # What no newest release can, an older one may.
        every, failures = builds(site, superseded=True)
        more, passed = _found(site, [each for each in every if each not in running])
        found.add(more)
    if not found.ranked:
        return [*failures, *found.failures()]
    (best_rank, best), *losers = sorted(found.ranked, key=lambda each: each[0])

    @cache
    def others() -> tuple[Rejection, ...]:
        return (
            *(failure.rejection for failure in (*failures, *found.failures())),
            *(_lost(site, loser, rank, best_rank) for rank, loser in losers),
            *found.passed(site.pins.workload),
            *(Rejection(candidate=model.id, reason=_PASSED) for model in passed),
        )

    return replace(plan_of(site, best, others), rank=best_rank)


def _found(site: Site, running: list[Build]) -> tuple[Found, list[ModelRow]]:
    """What comes of each model, and the models that were not looked at: a lesser one can only win
    by what stands before merit."""
    found = Found()
    models = sorted(site.pins.models, key=lambda model: -model.merit)
    for index, model in enumerate(models):
        if found.ranked and _is_settled(site, running, found.ranked, models[index:]):
            return found, models[index:]
        found.add(found_of(site, running, model))
    return found, []


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
        isinstance(opening, Opening) and isinstance(opening.answer(changed), Candidate)
        for offload in ((False, True) if pinned is None else (pinned,))
        for model in pins.models
        for build in running
        if not offload or pinned or may_offload(changed, build)
        for opening in openings(changed, build, model, offload=offload)
    )


def _is_settled(
    site: Site,
    running: list[Build],
    ranked: list[Ranked],
    others: list[ModelRow],
) -> bool:
    """Whether none of `others`, which are lesser models, can come before the best so far."""
    on_card = any(tag.device is Device.CUDA for _, tag in running)
    useful = [model for model in others if not is_toy(model, on_card=on_card)]
    applied = any(may_apply(site, running, model) for model in useful or others)
    best = min(rank for rank, _ in ranked)
    return best[:BEFORE_MERIT] <= (
        int(not useful),
        int(not applied),
        *(0,) * (BEFORE_MERIT - 2),
    )


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


_PASSED = "not looked at: a better model by the catalogue's order fits with all that is asked for"


def _lost(site: Site, loser: Candidate, mine: Rank, best: Rank) -> Rejection:
    """Why a candidate that fits is not the one: the first criterion on which it falls behind."""
    text = shortcoming(loser, mine, best, site.pins.workload) or EQUAL
    if mine[0] == best[0] and mine[UNAPPLICABLE] > best[UNAPPLICABLE]:
        text += f": {loser.not_applicable}"
    return Rejection(candidate=loser.label, reason=f"fits; {text}")
