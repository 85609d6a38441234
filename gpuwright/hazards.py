"""Hazards: which rows of the matrix a combination meets, and what they change of a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gpuwright.attention_rows import AttentionBackendRow
from gpuwright.catalogue import Matrix
from gpuwright.engine_rows import BuildTagRow, ReleaseRow
from gpuwright.hazard_rows import Compiler, HazardRow
from gpuwright.host import Host
from gpuwright.memory.request import MIB
from gpuwright.model_rows import CheckpointRow, ModelRow
from gpuwright.rows import KvCacheDtypeRow
from gpuwright.site import Combination
from gpuwright.versions import at_least, within


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """What a hazard may ask for beside the combination: of the node, and of what the plan would
    set. None: not known, and no condition on it holds."""

    driver: str | None = None
    virtualization: str | None = None
    cpu: str | None = None
    ram_bytes: int | None = None
    compiler: Compiler = Compiler.UNKNOWN
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None


def surroundings(
    host: Host,
    compiler: Compiler,
    *,
    max_model_len: int | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
) -> Surroundings:
    """What `host` says, and as much of the plan's settings as is known."""
    return Surroundings(
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        driver=host.driver_version,
        virtualization=host.virtualization,
        cpu=host.cpu_model,
        compiler=compiler,
        ram_bytes=host.memory_total_bytes,
    )


_NOWHERE = Surroundings()

Check = Callable[[Any, "_Asked"], bool]
Possible = tuple[HazardRow, tuple[tuple[Check, Any], ...]]
"""A hazard, and its conditions that a build does not settle, each with what it asks for."""


def hazards_of(
    combination: Combination, matrix: Matrix, around: Surroundings = _NOWHERE
) -> Iterator[HazardRow]:
    """The hazards that `combination`, with backend and cache chosen, meets; in matrix order."""
    return met(possible(combination, matrix), combination, matrix, around)


def possible(combination: Combination, matrix: Matrix) -> tuple[Possible, ...]:
    """The hazards that `combination` meets on some node, each with what is left to ask there."""
    return _of_a_build(
        matrix,
        combination.release,
        combination.tag,
        combination.model,
        combination.checkpoint,
        combination.backend,
        combination.kv,
        combination.features,
        combination.capability,
    )


def met(
    hazards: tuple[Possible, ...], combination: Combination, matrix: Matrix, around: Surroundings
) -> Iterator[HazardRow]:
    """Those of the `possible` hazards that `combination` does meet."""
    asked = _Asked(combination, matrix, around)
    for row, questions in hazards:
        for check, value in questions:
            if not check(value, asked):
                break
        else:
            yield row


@lru_cache(maxsize=1 << 14)
def _of_a_build(
    matrix: Matrix,
    release: ReleaseRow,
    tag: BuildTagRow,
    model: ModelRow,
    checkpoint: CheckpointRow,
    backend: AttentionBackendRow | None,
    kv: KvCacheDtypeRow | None,
    features: frozenset[str],
    capability: str | None,
) -> tuple[Possible, ...]:
    combination = Combination(
        release=release,
        tag=tag,
        model=model,
        checkpoint=checkpoint,
        backend=backend,
        kv=kv,
        features=features,
    )
    asked = _Asked(combination, matrix, _NOWHERE)
    found = []
    for row in matrix.hazards:
        when = row.when
        if (
            _in_releases(row, release.release)
            and (not when.engines or release.engine in when.engines)
            and (not when.capabilities or _range(capability, when.capabilities))
            and all(
                _CHECKS[name](getattr(when, name), asked)
                for name in when.named
                if name in _OF_A_BUILD
            )
        ):
            left = (name for name in when.named if name in _CHECKS and name not in _OF_A_BUILD)
            found.append((row, tuple((_CHECKS[name], getattr(when, name)) for name in left)))
    return tuple(found)


def _in_releases(row: HazardRow, release: str) -> bool:
    if row.introduced is not None and not at_least(release, row.introduced):
        return False
    return row.fixed is None or not at_least(release, row.fixed)


class _Asked:
    """A combination with its surroundings, and what several rows ask of it worked out once."""

    __slots__ = ("around", "combination", "matrix", "rows")

    def __init__(self, combination: Combination, matrix: Matrix, around: Surroundings) -> None:
        self.combination = combination
        self.matrix = matrix
        self.around = around
        self.rows: list[Any] | None = None

    @property
    def cards(self) -> list[Any]:
        """Rows of the listed cards among those of the combination."""
        if self.rows is None:
            found = (self.matrix.gpu(gpu) for gpu in self.combination.gpus)
            self.rows = [row for row in found if row is not None]
        return self.rows


def _range(found: object, spec: str) -> bool:
    return found is not None and within(str(found), spec)


def _smallest_below(mib: int, asked: _Asked) -> bool:
    gpus = asked.combination.gpus
    return bool(gpus) and min(gpu.total_bytes or 0 for gpu in gpus) < mib * MIB


def _least(name: str) -> Callable[[str, _Asked], bool]:
    """A range over the least that a card has of something; holds where all of them say it."""

    def check(spec: str, asked: _Asked) -> bool:
        found = [getattr(gpu, name) for gpu in asked.combination.gpus]
        return bool(found) and None not in found and _range(min(found), spec)

    return check


def _ram_misfit(wanted: bool, asked: _Asked) -> bool:
    ram, weights = asked.around.ram_bytes, asked.combination.checkpoint.max_bytes
    return ram is not None and weights is not None and wanted is (ram < weights)


def _layers(kinds: tuple[Any, ...], asked: _Asked) -> bool:
    groups = asked.combination.model.architecture.groups
    return any(group.kind in kinds for group in groups)


def _backend(asked: _Asked) -> str:
    backend = asked.combination.backend
    return backend.backend if backend else ""


def _draft_tokens(spec: str, asked: _Asked) -> bool:
    drafting = asked.combination.drafting
    return drafting is not None and within(str(drafting.tokens), spec)


_CHECKS: dict[str, Check] = {
    "build_tags": lambda words, asked: asked.combination.tag.tag in words,
    "cuda": lambda words, asked: asked.combination.tag.cuda in words,
    "device": lambda word, asked: asked.combination.tag.device is word,
    "backends": lambda words, asked: _backend(asked) in words,
    "not_backends": lambda words, asked: _backend(asked) not in words,
    "kv_cache_dtypes": lambda words, asked: (
        asked.combination.kv is not None and asked.combination.kv.id in words
    ),
    "quantizations": lambda words, asked: asked.combination.checkpoint.quantization in words,
    "formats": lambda words, asked: asked.combination.checkpoint.format in words,
    "families": lambda words, asked: asked.combination.model.family in words,
    "models": lambda words, asked: asked.combination.model.id in words,
    "layers": _layers,
    "experts_misfit": lambda wanted, asked: asked.combination.experts_misfit is wanted,
    "speculative": lambda wanted, asked: (asked.combination.drafting is not None) is wanted,
    "draft_tokens": _draft_tokens,
    "features": lambda words, asked: not asked.combination.features.isdisjoint(words),
    "not_features": lambda words, asked: asked.combination.features.isdisjoint(words),
    "kinds": lambda words, asked: any(row.kind in words for row in asked.cards),
    "gpus": lambda words, asked: any(row.id in words for row in asked.cards),
    "unified_memory": lambda wanted, asked: (
        any(row.unified_memory for row in asked.cards) is wanted
    ),
    "card_below_mib": _smallest_below,
    "cards": lambda spec, asked: _range(len(asked.combination.gpus), spec),
    "mixed_cards": lambda wanted, asked: (
        (len({gpu.compute_capability for gpu in asked.combination.gpus}) > 1) is wanted
    ),
    "tensor_parallel": lambda spec, asked: _range(asked.combination.tensor_parallel_size, spec),
    "nvlink": lambda wanted, asked: asked.combination.nvlink is wanted,
    "pcie_lanes": _least("lanes"),
    "power_percent": _least("power_percent"),
    "vgpus": lambda words, asked: any(gpu.vgpu in words for gpu in asked.combination.gpus),
    "drivers": lambda spec, asked: _range(asked.around.driver, spec),
    "virtualizations": lambda words, asked: asked.around.virtualization in words,
    "cpus": lambda words, asked: (asked.around.cpu or "").startswith(words),
    "compiler": lambda words, asked: asked.around.compiler in words,
    "ram_misfit": _ram_misfit,
    "max_model_len": lambda spec, asked: _range(asked.around.max_model_len, spec),
    "max_num_seqs": lambda spec, asked: _range(asked.around.max_num_seqs, spec),
    "max_num_batched_tokens": lambda spec, asked: _range(asked.around.max_num_batched_tokens, spec),
}
"""One question per condition of When but `engines` and `capabilities`, which sort the rows
beforehand."""

_OF_A_BUILD = frozenset(
    ("build_tags", "cuda", "device", "backends", "not_backends", "kv_cache_dtypes", "quantizations")
) | {"formats", "families", "models", "layers", "features", "not_features"}
"""Conditions that no amount of memory and no other property of a node changes."""
