"""What an engine's release has of a feature here, and what cannot stand beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

from gpuwright.engine_rows import ReleaseRow
from gpuwright.feature_rows import Exclusion, FeatureRow, FeatureSupport, Grade
from gpuwright.model_rows import ModelRow
from gpuwright.refusals import Needs, Reason
from gpuwright.versions import within


@lru_cache(maxsize=1 << 14)
def support_of(
    row: FeatureRow, release: ReleaseRow, model: ModelRow, capability: str | None
) -> FeatureSupport | Reason:
    """What `release` has of `row` for `model` on a card, or on the CPU where `capability` is None;
    the reason where it has nothing."""
    subject = f"{row.id} under {release.engine} {release.release}"
    for entry in row.engines.get(release.engine, ()):
        if not within(release.release, entry.releases):
            continue
        if capability is not None and not within(capability, entry.capabilities):
            continue
        named = (model.id, model.family)
        if entry.models and not set(entry.models) & set(named):
            continue
        if set(entry.not_models) & set(named):
            continue
        if entry.grade is Grade.NONE:
            return Needs(
                subject=subject, needed="support", found=f"none: {entry.because}", row=row.id
            )
        return entry
    return Needs(subject=subject, needed="support", found="none", row=row.id)


def excluded(
    row: FeatureRow,
    *,
    release: ReleaseRow,
    family: str,
    features: frozenset[str],
    kv_cache_dtype: str,
    backend: str,
) -> Reason | None:
    """Why `row` cannot stand beside the rest of a combination; None where it can."""
    for rule in row.excludes:
        if rule.engines and release.engine not in rule.engines:
            continue
        if not within(release.release, rule.releases):
            continue
        if rule.families and family not in rule.families:
            continue
        for word in _met(rule, features, kv_cache_dtype, backend):
            return Needs(
                subject=f"{row.id} beside {word}",
                needed="a pair that works",
                found=rule.because,
                row=row.id,
            )
    return None


def _met(
    rule: Exclusion, features: frozenset[str], kv_cache_dtype: str, backend: str
) -> Iterator[str]:
    yield from sorted(features.intersection(rule.features))
    if kv_cache_dtype in rule.kv_cache_dtypes:
        yield f"a {kv_cache_dtype} cache"
    if backend in rule.backends:
        yield f"attention backend {backend}"


def filled(arguments: Iterable[str], values: dict[str, str]) -> tuple[str, ...]:
    """`arguments` with `{name}` replaced for each name in `values`; other braces stay."""
    words = []
    for word in arguments:
        for name, value in values.items():
            word = word.replace("{" + name + "}", value)
        words.append(word)
    return tuple(words)
