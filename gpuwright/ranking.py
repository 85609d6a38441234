"""What candidates are compared by: one number for each criterion, smaller first.

A candidate that nobody has made a memory plan for yet has a bound: no plan can rank before it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from gpuwright.catalogue import Matrix
from gpuwright.engine_rows import BuildTagRow, ReleaseRow
from gpuwright.fitting import Candidate
from gpuwright.memory_request import slots_of
from gpuwright.model_rows import CheckpointRow, ModelRow
from gpuwright.pace import bytes_per_second, is_drafted, reaches, weight_bytes_per_token
from gpuwright.routing import route
from gpuwright.rows import Device, Effect, Preference, WorkloadRow
from gpuwright.site import CardSet, Combination, Site
from gpuwright.weight_formats import formats_of

Rank = tuple[Any, ...]

_CRITERIA = (
    "its model is too small to be what a card is for",
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


BEFORE_MERIT = 9
"""How many criteria stand before the model's own merit."""
UNAPPLICABLE = 1
"""Place of the criterion that a candidate cannot be applied yet."""
_FEATURES, _HAZARDS, _WISHES = 6, 12, 14
"""Places of the criteria that have names to tell."""
LEAST_MERIT = 10
"""Below it a model is one to try things with, and no answer to what would serve people."""
_COARSE_MILLIBITS = 3500
"""Thousandths of a bit; below it a larger model loses what it had over a smaller one."""

_PREFERENCES: dict[Preference, Callable[[Site, Candidate], int]] = {
    Preference.CONTEXT: lambda site, candidate: -candidate.fit.max_model_len,
    Preference.REQUESTS: lambda site, candidate: -candidate.requests(site.pins.workload),
    Preference.FORMAT: lambda site, candidate: int(not candidate.formats.preferred),
    Preference.CARDS: lambda site, candidate: len(candidate.combination.gpus),
    Preference.PACE: lambda site, candidate: _slower_than_wished(site, candidate.combination),
}


_WISHED: dict[Preference, Callable[[WorkloadRow, int, int], str]] = {
    Preference.CONTEXT: lambda _, mine, best: f"tokens of context: {mine:,}, not {best:,}",
    Preference.REQUESTS: lambda _, mine, best: f"requests at once: {mine:,}, not {best:,}",
    Preference.FORMAT: lambda *_: "weights in the format to take on the card",
    Preference.CARDS: lambda _, mine, best: f"fewer cards: {mine}, not {best}",
    Preference.PACE: lambda row, *_: f"{row.wished_tokens_per_second} tokens a second",
}
"""What of each wish one plan has and the better one has."""


def is_toy(model: ModelRow, *, on_card: bool) -> bool:
    """Whether nobody has a card for such a model: one that cannot be applied yet says what to do,
    which is a better answer than to serve it because it can."""
    return on_card and model.merit < LEAST_MERIT


class _Standing(NamedTuple):
    """What is compared of a checkpoint under a build on cards of some kind, whatever node."""

    toy: int
    unapplicable: int
    small: int
    coarse: int
    place: int
    """Of the engine in the order of the first route that covers the card."""
    unpreferred: int
    wanting: int
    """Whether it is not the format to take even where it has all the room that it needs."""
    unnative: int
    bits: int


@lru_cache(maxsize=1 << 14)
def _standing(
    matrix: Matrix,
    workload: WorkloadRow,
    release: ReleaseRow,
    tag: BuildTagRow,
    model: ModelRow,
    checkpoint: CheckpointRow,
    capabilities: tuple[str | None, ...],
) -> _Standing:
    formats = formats_of(matrix, release, checkpoint, capabilities)
    order = route(workload, model, capabilities).order
    bits = matrix.quantization(checkpoint.quantization).millibits_per_weight
    return _Standing(
        toy=int(is_toy(model, on_card=tag.device is Device.CUDA)),
        unapplicable=int(tag.not_applicable is not None or checkpoint.files is None),
        small=int(model.merit < LEAST_MERIT),
        coarse=int(bits < _COARSE_MILLIBITS),
        place=order.index(release.engine) if release.engine in order else len(order),
        unpreferred=int(not formats.preferred),
        wanting=int(not (formats.preferred or formats.spared)),
        unnative=int(not formats.native),
        bits=bits,
    )


def bound(site: Site, combination: Combination, cards: CardSet, least_in_ram: int = 0) -> Rank:
    """What no candidate of `combination` on `cards` ranks before, whatever fits: it meets every
    wish, and leaves the experts of `least_in_ram` layers in RAM."""
    model, release, checkpoint = combination.model, combination.release, combination.checkpoint
    workload, count = site.pins.workload, len(cards.gpus)
    standing = _standing(
        site.matrix, workload, release, combination.tag, model, checkpoint, cards.capabilities
    )
    context = site.want.max_model_len or model.max_context_tokens
    wishes: tuple[int, ...] = ()
    few = False
    if workload.prefer or workload.least_num_seqs:
        requests = site.want.max_num_seqs or slots_of(site, release, cards)
        few = requests < workload.least_num_seqs
        most = {
            Preference.CONTEXT: -context,
            Preference.REQUESTS: -requests,
            Preference.FORMAT: standing.unpreferred,
            Preference.CARDS: count,
            Preference.PACE: 0,
        }
        wishes = tuple([most[each] for each in workload.prefer])
    return (
        standing.toy,
        standing.unapplicable,
        standing.small,
        0,
        standing.coarse,
        int(least_in_ram > 0),
        0,
        int(few),
        _slowness(workload, combination, cards),
        -model.merit,
        least_in_ram,
        0,
        0,
        standing.place,
        wishes,
        standing.wanting,
        standing.unnative,
        -standing.bits,
        0,
        -context,
        count,
    )


def rank(site: Site, least: Rank, candidate: Candidate) -> Rank:
    """What is compared, one number per line of _CRITERIA; `least` is the candidate's bound."""
    combination, fit, workload = candidate.combination, candidate.fit, site.pins.workload
    formats = candidate.formats
    target = workload.context_tokens
    if not site.pins.auto_model:
        # Who names a model knows how long its context can be; no model is chosen for a short one.
        target = min(target, combination.model.max_context_tokens)
    return (
        *least[:3],
        _shortage(workload, fit.max_model_len, target),
        least[4],
        int(fit.cpu_expert_layers > 0),
        sum([each not in combination.features for each in workload.asks]),
        int(candidate.requests(workload) < workload.least_num_seqs),
        least[8],
        least[9],
        fit.cpu_expert_layers,
        int(fit.below_advice),
        len(_avoidable(candidate)),
        least[13],
        tuple([_PREFERENCES[each](site, candidate) for each in workload.prefer]),
        int(not (formats.preferred or (candidate.roomy and formats.spared))),
        least[16],
        least[17],
        combination.release.kv_cache_dtypes.index(candidate.kv.id),
        -fit.max_model_len,
        least[20],
    )


def _avoidable(candidate: Candidate) -> list[str]:
    """Ids of the hazards that a plan had better not meet, and that no setting of it mends."""
    return [row.id for row in candidate.hazards if row.effect is Effect.AVOID and not row.sets]


def between_models(rank: Rank, context: int, workload: WorkloadRow) -> Rank:
    """The part of a plan's `rank` that models are compared by where none is named; `context` is
    what the plan holds. Who names a model is content with the context that it can have."""
    before = (*rank[:3], _shortage(workload, context, workload.context_tokens))
    return before + rank[4 : BEFORE_MERIT + 1]


def is_satisfying(rank: Rank) -> bool:
    """Whether all that is asked for is met, so that no lesser model can do better and no expert
    need leave its card."""
    return not any(rank[2:BEFORE_MERIT])


def falls_behind(rank: Rank, other: Rank, workload: WorkloadRow) -> str | None:
    """The first criterion on which `rank` is behind `other`, and of wishes which and by how much;
    None where they are equal."""
    for place, (line, mine, theirs) in enumerate(zip(_CRITERIA, rank, other, strict=True)):
        if mine > theirs:
            if place != _WISHES:
                return line
            each = zip(workload.prefer, mine, theirs, strict=True)
            wish, had, best = next(three for three in each if three[1] > three[2])
            return f"{line}: {_WISHED[wish](workload, abs(had), abs(best))}"
    return None


def shortcoming(candidate: Candidate, rank: Rank, other: Rank, workload: WorkloadRow) -> str | None:
    """As `falls_behind`, for a candidate that fits: with the features that it lacks and the hazards
    that it meets."""
    line = falls_behind(rank, other, workload)
    names: list[str] = []
    if line == _CRITERIA[_FEATURES]:
        names = [each for each in workload.asks if each not in candidate.combination.features]
    elif line == _CRITERIA[_HAZARDS]:
        names = _avoidable(candidate)
    return f"{line}: {', '.join(names)}" if names else line


def _shortage(workload: WorkloadRow, context: int, target: int) -> int:
    """0 where the context is reached; how much is missing counts where context is preferred."""
    if context >= target:
        return 0
    return target - context if Preference.CONTEXT in workload.prefer else 1


def _slowness(workload: WorkloadRow, combination: Combination, cards: CardSet) -> int:
    """How many times the pace that the workload asks for is that of the device; 0: it is reached.
    Whole times alone: what is half again as fast is no reason to take coarser weights."""
    if not workload.least_tokens_per_second or not cards.bytes_per_second:
        return 0
    # As `tokens_per_second` has it, without its division.
    read = weight_bytes_per_token(combination)
    return max(0, workload.least_tokens_per_second * read - 1) // cards.bytes_per_second


def _slower_than_wished(site: Site, combination: Combination) -> int:
    """Nobody knows how fast RAM is read: what is taken for it is enough for a floor, and no reason
    for coarser weights."""
    if not combination.gpus:
        return 0
    width = bytes_per_second(combination.gpus, combination.release, site.matrix)
    wished = site.pins.workload.wished_tokens_per_second
    return int(not reaches(wished, combination, width, drafted=is_drafted(combination)))
