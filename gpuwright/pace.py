"""How fast a card could write for one request: each token reads the weights that it uses once.

An upper end, of memory bandwidth alone: caches, links and the engine's own work come on top, drafts
take off. It tells what is hopelessly slow from what is not, and half the weights from all, no more.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuwright.catalogue import Matrix
from gpuwright.engine_rows import ReleaseRow
from gpuwright.feature_rows import Draft
from gpuwright.host import Gpu
from gpuwright.site import Combination, splits_tensors

RAM_BYTES_PER_SECOND = 2 * 4_800_000_000 * 8
"""Taken for RAM, of which no node says it: two channels of DDR5-4800, eight bytes a transfer."""
DRAFTED = 2
"""How many times as fast a model writes with a draft that was trained for it, by what three rigs
measured: 11.7 tokens a second became 22.6 on two P40
(https://github.com/sudoingX/qwen38-mtp/pull/29), 47.6 became 87.1 on an RTX 4090
(https://github.com/sudoingX/qwen38-mtp/pull/18), 76 became 172 on an RTX 5090
(https://github.com/sudoingX/qwen38-mtp/pull/33)."""


def tokens_per_second(combination: Combination, matrix: Matrix) -> int | None:
    """At most, for one request; None where a card's bandwidth or a size is unknown."""
    together = bytes_per_second(combination.gpus, combination.release, matrix)
    read = weight_bytes_per_token(combination)
    return together // read if together is not None and read else None


def pace_sentences(chosen: Combination, pace: int, floor: int, workload: str) -> Iterator[str]:
    """What the bandwidth allows. A CPU is held up by what it computes before its RAM is, so there
    only that the RAM is too slow says anything."""
    asked = f"the {floor} that {workload} asks for"
    if not chosen.gpus:
        if pace < floor:
            yield f"at most {pace:,} tokens a second for one request, by the RAM: below {asked}"
        return
    alone = " without drafts" if chosen.drafting is not None else ""
    drafted = f", taken for {pace * DRAFTED:,} with them" if is_drafted(chosen) else ""
    sides = "nothing here reaches" if pace < floor else "it allows"
    yield (
        f"at most {pace:,} tokens a second for one request{alone}, by the bandwidth of the card"
        f"{drafted}: {sides} {asked}"
    )


def reaches(asked: int, combination: Combination, width: int | None, *, drafted: bool) -> bool:
    """Whether what reads `width` bytes a second writes the tokens that are `asked` for each second,
    by the same reckoning; what is unknown counts as reached."""
    if width is None:
        return True
    return asked * weight_bytes_per_token(combination) <= width * (DRAFTED if drafted else 1)


def is_drafted(combination: Combination) -> bool:
    """Whether it has a draft that was trained, and not what is found in the prompt alone."""
    drafting = combination.drafting
    return drafting is not None and drafting.row.draft is not Draft.PROMPT


def bytes_per_second(gpus: tuple[Gpu, ...], release: ReleaseRow, matrix: Matrix) -> int | None:
    """What the cards, or without any the RAM, read; None where the bandwidth of one is unknown."""
    if not gpus:
        return RAM_BYTES_PER_SECOND
    rows = [matrix.gpu(gpu) for gpu in gpus]
    widths = [row.bandwidth_gb_per_s for row in rows if row is not None]
    if len(widths) < len(rows) or None in widths:
        return None
    slowest = min(width for width in widths if width is not None)
    # Layers that are split over cards are read one card after the other.
    return slowest * 10**9 * (len(gpus) if splits_tensors(release) else 1)


def weight_bytes_per_token(combination: Combination) -> int:
    """Fewest bytes of weights that one token reads: of experts those that are active."""
    shape = combination.model.architecture
    weights = combination.checkpoint.min_bytes or 0
    if not shape.active_parameters_millions or not shape.parameters_millions:
        return weights
    return weights * shape.active_parameters_millions // shape.parameters_millions
