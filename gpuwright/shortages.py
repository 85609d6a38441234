"""Why weights are more than cards hold: seen at once, and worked out only where it is read."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from gpuwright.engine_rows import MemoryModel
from gpuwright.fitting import Candidate, fitted
from gpuwright.memory.request import MIB
from gpuwright.refusals import OutOfMemory, Reason
from gpuwright.remedies import Remedy
from gpuwright.site import CardSet, Combination, Site
from gpuwright.ways import Way, ways_of

_ROUNDING_BYTES = MIB
"""More than an engine's shares of the weights lose where they are rounded down."""


class TooLarge:
    """The Reason where weights alone are more than cards hold: what exactly is short, which is for
    people to read, is worked out where it is read."""

    __slots__ = ("_reason", "_work")

    def __init__(self, work: Callable[[], Reason]) -> None:
        self._work = work
        self._reason: Reason | None = None

    @property
    def reason(self) -> Reason:
        if self._reason is None:
            self._reason = self._work()
        return self._reason

    @property
    def needed(self) -> str | None:
        return getattr(self.reason, "needed", None)

    @property
    def found(self) -> str | None:
        return getattr(self.reason, "found", None)

    @property
    def row(self) -> str | None:
        return getattr(self.reason, "row", None)

    def sentence(self) -> str:
        return self.reason.sentence()

    def remedies(self) -> tuple[Remedy, ...]:
        return self.reason.remedies()


def too_large(site: Site, combination: Combination, cards: CardSet) -> TooLarge | None:
    """Why nothing fits, if the weights alone are more than the cards hold, whatever is drafted and
    cached."""
    checkpoint, release = combination.checkpoint, combination.release
    weights = checkpoint.max_bytes or 0
    if release.memory_model is MemoryModel.LLAMA_CPP:
        weights -= checkpoint.host_bytes
    if combination.offload or release.memory_model is MemoryModel.COARSE_EXPERTS_IN_RAM:
        weights -= checkpoint.expert_bytes(combination.model.architecture)
    if not cards.gpus or weights - _ROUNDING_BYTES <= cards.most_weights_bytes:
        return None
    return TooLarge(partial(_least_shortage, site, combination, cards))


def _least_shortage(site: Site, combination: Combination, cards: CardSet) -> Reason:
    """What is to be said where nothing fits: the shortage of the last way, which takes the least,
    or else the first reason."""
    found = ways_of(site, combination, cards)
    if not isinstance(found, tuple):
        return found
    ways = found[-1]
    for way in reversed(ways):
        if isinstance(way, Way):
            answer = fitted(site, combination, cards, way)
            assert not isinstance(answer, Candidate)
            if isinstance(answer, OutOfMemory):
                return answer
    first = ways[0]
    reason = fitted(site, combination, cards, first) if isinstance(first, Way) else first
    assert not isinstance(reason, Candidate)
    return reason
