"""The ways in which a build may serve a checkpoint on cards: drafts, caches, attention, features.

No amount of memory counts here, so that answers are kept: of most cards the same is asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from gpuwright import attention
from gpuwright.attention_rows import AttentionBackendRow, Toolchain
from gpuwright.drafting import draftings
from gpuwright.feature_choice import exclusion, features_of
from gpuwright.hazard_rows import Compiler
from gpuwright.hazards import Possible, possible
from gpuwright.kernel_compilers import compiler_of
from gpuwright.model_rows import LayerKind
from gpuwright.refusals import Reason
from gpuwright.rows import KvCacheDtypeRow
from gpuwright.site import CardSet, Combination, Drafting, Site
from gpuwright.versions import at_least, within


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """What a memory plan may be made for."""

    drafting: Drafting | None
    kv: KvCacheDtypeRow
    backend: AttentionBackendRow
    features: frozenset[str]
    hazards: tuple[Possible, ...]
    """What may be met on some node."""
    context_hazards: tuple[Possible, ...]
    """Those of `hazards` that ask how long the context is."""


class _Question:
    """A combination on a site, equal to another where nothing that `Way` depends on differs."""

    __slots__ = ("cards", "combination", "key", "site")

    def __init__(self, site: Site, combination: Combination, cards: CardSet) -> None:
        self.site, self.combination, self.cards = site, combination, cards
        self.key = (
            site.taste,
            compiler_of(site, combination.release, cards.capabilities),
            combination.release,
            combination.tag,
            combination.checkpoint,
            cards.capabilities,
        )

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Question) and self.key == other.key


def ways_of(
    site: Site, combination: Combination, cards: CardSet
) -> tuple[tuple[Way | Reason, ...], ...] | Reason:
    """For each way of drafting, best first, one answer for each cache dtype, best first; or why
    the pinned way of drafting cannot be."""
    return _ways_of(_Question(site, combination, cards))


@lru_cache(maxsize=1 << 13)
def _ways_of(question: _Question) -> tuple[tuple[Way | Reason, ...], ...] | Reason:
    site, combination = question.site, question.combination.by(None, gpus=question.cards.gpus)
    found = draftings(site, combination)
    if not isinstance(found, list):
        return found
    dtypes = [site.matrix.kv_cache_dtype(each) for each in _dtypes(site, combination)]
    return tuple(
        tuple(_way(site, combination.by(drafting), kv) for kv in dtypes) for drafting in found
    )


def _dtypes(site: Site, combination: Combination) -> tuple[str, ...]:
    """The pinned cache dtype, or those that a plan may choose by itself: of the 16-bit floats one,
    and cards before 8.0 have no bf16. Where no formula gives the cache, those that were measured.
    """
    release = combination.release
    if site.pins.kv_cache_dtype is not None:
        return (site.pins.kv_cache_dtype,)
    measured = [
        dtype
        for cache in combination.model.architecture.measured_caches
        if cache.engine == release.engine
        and all(within(each or "0", cache.capabilities) for each in combination.capabilities)
        for dtype in cache.kv_cache_dtypes
        if dtype in release.kv_cache_dtypes
    ]
    if measured:
        return tuple(measured)
    dtypes = release.kv_cache_dtypes[: release.auto_kv_cache_dtypes]
    old = any(not at_least(each or "0", "8.0") for each in combination.capabilities)
    float16 = "f16" if old else dtypes[0]
    return (float16, *(dtype for dtype in dtypes if dtype not in ("bf16", "f16")))


def _way(site: Site, combination: Combination, kv: KvCacheDtypeRow) -> Way | Reason:
    backend = _backend(site, combination, kv)
    if not isinstance(backend, AttentionBackendRow):
        return backend
    features = features_of(site, combination)
    if not isinstance(features, frozenset):
        return features
    used = combination.by(combination.drafting, features=features)
    reason = exclusion(site, used, kv, backend)
    if reason is not None:
        return reason
    hazards = possible(combination.by(combination.drafting, kv, backend, features), site.matrix)
    return Way(
        drafting=combination.drafting,
        kv=kv,
        backend=backend,
        features=features,
        hazards=hazards,
        context_hazards=tuple(each for each in hazards if each[0].when.max_model_len),
    )


def _backend(
    site: Site, combination: Combination, kv: KvCacheDtypeRow
) -> AttentionBackendRow | Reason:
    """The backend that the engine takes by itself, or the pinned one, if it fits every card."""
    asked, release, pins = _asked(site, combination, kv), combination.release, site.pins
    rows = site.matrix.backends(release.engine)
    found = attention.chosen(release, rows, asked, pinned=pins.attention_backend)
    if isinstance(found, AttentionBackendRow) or pins.attention_backend or not pins.kv_cache_dtype:
        return found
    # Who pins a cache wants the backend that holds it, though the engine would not take it itself.
    return attention.beyond(release, rows, asked) or found


def taken_by_itself(
    site: Site, combination: Combination, kv: KvCacheDtypeRow, backend: str
) -> bool:
    """Whether the engine would try `backend` here if nobody told it to."""
    return backend in attention.order(combination.release, _asked(site, combination, kv)[0])


def _asked(site: Site, combination: Combination, kv: KvCacheDtypeRow) -> list[attention.Asked]:
    """What is asked of attention, on each kind of card."""
    architecture = combination.model.architecture
    compiler = compiler_of(site, combination.release, combination.capabilities)
    absent = compiler is Compiler.ABSENT
    return [
        attention.Asked(
            capability=capability,
            kv=kv.id,
            head_sizes=architecture.head_sizes,
            mla=bool(architecture.of(LayerKind.MLA)),
            sliding=bool(architecture.of(LayerKind.SLIDING)),
            sinks=architecture.sinks,
            family=combination.model.family,
            toolchain=Toolchain.NONE if absent else Toolchain.NVCC,
        )
        for capability in combination.capabilities or (None,)
    ]
