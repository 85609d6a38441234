"""The search: which of all openings are looked at, so that the best of each engine is found.

Memory plans are what takes time. Of each engine the opening that could rank first is looked at
first, and none that could only rank behind what was found. Across engines nothing is left out: why
the best of another engine is not taken is what people ask.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpuwright.candidates import Build, Failure, Opening, may_offload, openings
from gpuwright.fitting import Candidate, best_fit
from gpuwright.model_rows import ModelRow
from gpuwright.plan import Rejection
from gpuwright.ranking import Rank, bound, falls_behind, is_satisfying, rank
from gpuwright.refusals import OutOfMemory, Reason
from gpuwright.rows import WorkloadRow
from gpuwright.shortages import TooLarge, too_large
from gpuwright.site import Combination, Site

EQUAL = "it is equal and stands later in the matrix"
Ranked = tuple[Rank, Candidate]
"""A candidate behind what it is compared by."""


@dataclass(slots=True)
class _Asked:
    """An opening with its bound, and the answer: at once where no plan need be made to tell it, or
    else once it was looked at."""

    opening: Opening
    least: Rank
    answer: Candidate | Reason | None = None
    rank: Rank | None = None
    leader: _Asked | None = None
    """Which the opening could only rank behind, where it was not looked at."""


class Found:
    """What came of openings, in the matrix's order."""

    def __init__(self, entries: Iterable[_Asked | Failure] = ()) -> None:
        self._entries = list(entries)
        self.ranked: list[Ranked] = []
        for each in self._entries:
            if isinstance(each, _Asked) and isinstance(each.answer, Candidate):
                assert each.rank is not None
                self.ranked.append((each.rank, each.answer))

    def add(self, other: Found) -> None:
        self._entries += other._entries
        self.ranked += other.ranked

    def failures(self) -> Iterator[Failure]:
        for each in self._entries:
            if isinstance(each, Failure):
                yield each
            elif each.answer is not None and not isinstance(each.answer, Candidate):
                yield Failure(label=each.opening.label, reason=each.answer)

    def passed(self, workload: WorkloadRow) -> Iterator[Rejection]:
        """Those that were not looked at."""
        for each in self._entries:
            if isinstance(each, _Asked) and each.answer is None and each.leader is not None:
                yield _passed(each, each.leader, workload)


def found_of(site: Site, running: list[Build], model: ModelRow) -> Found:
    """The candidates of `model` with their ranks, and what fails. Experts go to RAM only where
    nothing that stays on the cards is as good as can be."""
    pinned = site.want.expert_offload
    may_follow = pinned is None and bool(model.architecture.experts)
    of_each: dict[Build, list[_Asked | Failure]] = {}
    for build in running:
        entries: list[_Asked | Failure] = []
        for each in openings(site, build, model, offload=pinned is True):
            if isinstance(each, Opening):
                entries.append(_asked(site, each))
            else:
                entries.append(each)
        of_each[build] = entries
    satisfied = _look(site, of_each, satisfied=not may_follow)
    if may_follow and not satisfied:
        again = {
            build: [_with_experts_in_ram(site, each) for each in of_each[build]]
            for build in running
            if may_offload(site, build)
        }
        _look(site, again, satisfied=True)
        of_each |= again
    return Found(each for entries in of_each.values() for each in entries)


def _look(site: Site, of_each: dict[Build, list[_Asked | Failure]], *, satisfied: bool) -> bool:
    """Looks at what may come first of each engine's, and until it is `satisfied` at what may meet
    all wishes; whether that was found."""
    engines: dict[str, list[_Asked]] = {}
    for (release, _), entries in of_each.items():
        due = [each for each in entries if isinstance(each, _Asked) and each.answer is None]
        engines.setdefault(release.engine, []).extend(due)
    for asked in engines.values():
        # Sorting keeps equals in order, and of equals the first wins.
        places = {id(each): place for place, each in enumerate(asked)}
        best: tuple[Rank, int] | None = None
        leader = None
        for each in sorted(asked, key=lambda each: each.least):
            behind = best is not None and (each.least, places[id(each)]) > best
            if behind and (satisfied or not is_satisfying(each.least)):
                each.leader = leader
                continue
            each.answer = best_fit(site, each.opening.combination, each.opening.cards)
            if not isinstance(each.answer, Candidate):
                continue
            each.rank = rank(site, each.least, each.answer)
            satisfied = satisfied or is_satisfying(each.rank)
            if best is None or (each.rank, places[id(each)]) < best:
                best, leader = (each.rank, places[id(each)]), each
    return satisfied


def _asked(site: Site, opening: Opening, least_in_ram: int = 0) -> _Asked:
    combination, cards = opening.combination, opening.cards
    answer = too_large(site, combination, cards)
    least = bound(site, combination, cards, least_in_ram) if answer is None else ()
    return _Asked(opening=opening, least=least, answer=answer)


def _with_experts_in_ram(site: Site, entry: _Asked | Failure) -> _Asked | Failure:
    """`entry` to be looked at again. Of the engines that may leave experts in RAM, what no rule
    lets be is not changed by it."""
    if not isinstance(entry, _Asked):
        return entry
    opening, answer = entry.opening, entry.answer
    combination = opening.combination.offloading()
    again = Opening(combination=combination, cards=opening.cards)
    if isinstance(answer, OutOfMemory | TooLarge):
        return _asked(site, again, _least_in_ram(again))
    if isinstance(answer, Candidate):
        answer = None
    return _Asked(opening=again, least=entry.least, answer=answer)


def _least_in_ram(opening: Opening) -> int:
    """Layers whose experts cannot be on the cards, counted from the first as the engine does."""
    combination: Combination = opening.combination
    shape, checkpoint = combination.model.architecture, combination.checkpoint
    experts = checkpoint.expert_bytes(shape)
    over = (checkpoint.max_bytes or 0) - checkpoint.host_bytes - opening.cards.most_weights_bytes
    least = max(1, over * shape.moe_layers // experts) if experts else 1
    return shape.layers - shape.moe_layers + least


def _passed(asked: _Asked, leader: _Asked, workload: WorkloadRow) -> Rejection:
    """That whatever fits, it would rank behind the best of its engine, and why."""
    assert leader.rank is not None
    why = falls_behind(asked.least, leader.rank, workload) or EQUAL
    checkpoint = leader.opening.combination.checkpoint.id + leader.opening.cards.label
    return Rejection(
        candidate=asked.opening.label,
        reason=f"not looked at, {checkpoint} fits and comes before it: {why}",
    )
