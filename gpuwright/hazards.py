"""Hazards: which rows of the matrix a combination meets."""

from __future__ import annotations

from collections.abc import Iterator

from gpuwright.catalogue import Matrix
from gpuwright.memory.request import MIB
from gpuwright.rows import HazardRow, When
from gpuwright.site import Combination
from gpuwright.versions import at_least, within


def hazards_of(
    combination: Combination, matrix: Matrix, *, speculative: bool = False
) -> Iterator[HazardRow]:
    """The hazards that `combination`, with backend and cache chosen, meets; in matrix order."""
    for row in matrix.hazards:
        if _in_releases(row, combination.release.release) and _meets(
            row.when, combination, speculative
        ):
            yield row


def _in_releases(row: HazardRow, release: str) -> bool:
    if row.introduced is not None and not at_least(release, row.introduced):
        return False
    return row.fixed is None or not at_least(release, row.fixed)


def _meets(when: When, combination: Combination, speculative: bool) -> bool:
    backend = combination.backend.backend if combination.backend else ""
    named = (
        (when.engines, combination.release.engine),
        (when.build_tags, combination.tag.tag),
        (when.backends, backend),
        (when.kv_cache_dtypes, combination.kv.id if combination.kv else ""),
        (when.quantizations, combination.checkpoint.quantization),
        (when.families, combination.model.family),
        (when.models, combination.model.id),
    )
    if any(words and word not in words for words, word in named) or backend in when.not_backends:
        return False
    if when.device is not None and combination.tag.device is not when.device:
        return False
    capability = combination.capability
    if when.capabilities and (capability is None or not within(capability, when.capabilities)):
        return False
    if when.card_below_mib is not None and not (
        combination.gpus
        and min(gpu.total_bytes or 0 for gpu in combination.gpus) < when.card_below_mib * MIB
    ):
        return False
    size = str(combination.tensor_parallel_size)
    if when.tensor_parallel and not within(size, when.tensor_parallel):
        return False
    return all(
        wanted is None or wanted == found
        for wanted, found in (
            (when.nvlink, combination.nvlink),
            (when.speculative, speculative),
            (when.experts_misfit, combination.experts_misfit),
        )
    )
