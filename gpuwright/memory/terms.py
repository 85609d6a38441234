"""What engines take beside weights and cache, as rows: measured, and rounded up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from gpuwright.engine_rows import MemoryModel
from gpuwright.rows import Claim

MIB = 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """What was seen `at` a number of devices, tokens a step or sequences."""

    at: int
    mib: int


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TermsRow:
    """Terms of releases; one takes the first row of its memory model whose range holds it."""

    id: str
    memory_model: MemoryModel
    releases: str
    runtime: tuple[Point, ...]
    """Device context and communication buffers of one device, up to so many devices."""
    activation: tuple[Point, ...]
    """Peak of one step at so many tokens: straight between two points, flat outside them."""
    graphs: tuple[Point, ...]
    """CUDA graphs at so many sequences, in the same way."""
    draft_graphs_mib: int
    """What they take more where a model of its own drafts."""
    vision_mib: int
    """What the profile of an image takes more."""
    prompt_workspace_mib: int
    """What linear attention takes beyond the profile while it reads a prompt, at 8192 a step."""
    max_share_percent: int
    """Of a card's memory, that the engine is given at most; of what is left, for a coarse model."""
    pinned_share_percent: int = 0
    """As `max_share_percent`, for a pinned context that does not fit otherwise."""
    pinned_workspace_mib: int = 0
    """What is kept of the prompt workspace for a pinned context or draft."""
    sources: tuple[Claim, ...]
    graphs_in_budget: bool = True
    """Whether the engine counts its graphs into its share of the card."""
    in_flight_batches: int = 1
    """Steps that the blocks of a sliding window outlive."""
    unread_drafter_percent: int = 0
    """Share of the pool that is lost to a drafter whose layers nobody has read."""

    def runtime_bytes(self, devices: int) -> int:
        for point in self.runtime:
            if devices <= point.at:
                return point.mib * MIB
        return self.runtime[-1].mib * MIB

    def activation_bytes(self, max_num_batched_tokens: int, *, vision: bool = False) -> int:
        more = self.vision_mib * MIB if vision else 0
        return _between(self.activation, max_num_batched_tokens) + more

    def graph_bytes(self, max_num_seqs: int, *, drafter: bool = False) -> int:
        more = self.draft_graphs_mib * MIB if drafter else 0
        return _between(self.graphs, max_num_seqs) + more

    def prompt_workspace_bytes(self, max_num_batched_tokens: int, *, drafting: bool) -> int:
        """At least a quarter of the measured figure, and the whole of it with drafts."""
        whole = self.prompt_workspace_mib * MIB
        least = whole if drafting else whole // 4
        return max(least, whole * max_num_batched_tokens // 8192)

    def faults(self) -> Iterator[str]:
        for name in ("runtime", "activation", "graphs"):
            points: tuple[Point, ...] = getattr(self, name)
            if not points:
                yield f".{name}: empty"
            if any(low.at >= high.at for low, high in pairwise(points)):
                yield f".{name}: not in ascending order of `at`"
        if not 0 < self.max_share_percent <= 100:
            yield ".max_share_percent: needs 1 to 100"


def _between(points: tuple[Point, ...], at: int) -> int:
    if at <= points[0].at:
        return points[0].mib * MIB
    for low, high in pairwise(points):
        if at <= high.at:
            return (low.mib + (high.mib - low.mib) * (at - low.at) // (high.at - low.at)) * MIB
    return points[-1].mib * MIB
