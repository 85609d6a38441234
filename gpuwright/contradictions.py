"""Pins that no node could meet together, found by the rules that decide, before any node counts.

What depends on a card, or on how features get on with one another, is no contradiction: the
decision refuses it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from gpuwright import model_rules, want_rules
from gpuwright.catalogue import Matrix
from gpuwright.engine_rows import MemoryModel, ReleaseRow
from gpuwright.feature_rows import Draft, FeatureRow, FeatureSupport
from gpuwright.features import support_of
from gpuwright.model_rows import CheckpointRow, ModelRow
from gpuwright.quoting import quoted
from gpuwright.refusals import Reason
from gpuwright.rows import Device
from gpuwright.versions import within
from gpuwright.want import Want

_STRUCTURED_OUTPUT = "structured-output"
_MOST = 4
"""Different faults that still say what is wrong; more are the decision's to list."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pinned:
    """What the pins mean; None is open."""

    want: Want
    models: tuple[ModelRow, ...]
    releases: tuple[ReleaseRow, ...]
    """Those of the pinned engine, release and build tag."""
    checkpoint: CheckpointRow | None
    attention_backend: str | None
    kv_cache_dtype: str | None
    speculation: FeatureRow | None


@lru_cache(maxsize=1 << 10)
def contradictions(pinned: Pinned, matrix: Matrix) -> tuple[str, ...]:
    """Sentences, each beginning with a pin's key, where every way to serve one of the models with
    one of the releases is ruled out by pins alone; else none."""
    if not pinned.releases:
        return (_no_build(pinned.want, matrix),)
    found: dict[tuple[int, str], None] = {}
    for model in pinned.models:
        for release in pinned.releases:
            for row in model.weights if pinned.checkpoint is None else (pinned.checkpoint,):
                rules = enumerate(_RULES)
                faults = (
                    (number, fault)
                    for number, rule in rules
                    for fault in rule(pinned, matrix, model, release, row)
                )
                fault = next(faults, None)
                if fault is None:
                    return ()
                found[fault] = None
    # What comes closest to being served says most: the others fail before they are asked.
    deepest = max(number for number, _ in found)
    told = [fault for number, fault in found if number == deepest]
    return tuple(told) if len(told) <= _MOST else ()


def _no_build(want: Want, matrix: Matrix) -> str:
    tags = dict.fromkeys(
        tag.tag
        for row in matrix.releases
        if want.release in (None, row.release)
        for tag in row.build_tags
    )
    return (
        f"build_tag: release {quoted(want.release)} has no {quoted(want.build_tag)}; "
        f"legal: {', '.join(tags)}"
    )


def _loads(
    pinned: Pinned, _matrix: Matrix, model: ModelRow, release: ReleaseRow, row: CheckpointRow
) -> Iterator[str]:
    if row.format not in release.formats or release.engine not in row.engines:
        yield _foreign(pinned.want, model, release, row)


def _knows(
    pinned: Pinned, _matrix: Matrix, _model: ModelRow, release: ReleaseRow, row: CheckpointRow
) -> Iterator[str]:
    want = pinned.want
    if want.release is not None or want.checkpoint is not None:
        reason = model_rules.served(release, row)
        if reason is not None:
            yield _said("release" if want.release is not None else "checkpoint", reason)


def _device(
    pinned: Pinned, matrix: Matrix, _model: ModelRow, release: ReleaseRow, _row: CheckpointRow
) -> Iterator[str]:
    """Builds and attention backends are for cards, or for the CPU."""
    want = pinned.want
    tags = [tag for tag in release.build_tags if want.build_tag in (None, tag.tag)]
    if want.cpu_only and all(tag.device is Device.CUDA for tag in tags):
        builds = ", ".join(tag.tag for tag in tags)
        yield (
            f"gpus: none needs a build for the CPU, {release.engine} {release.release} has "
            f"{builds} [{release.id}]"
        )
    if want.gpus and all(tag.device is Device.CPU for tag in tags):
        builds = ", ".join(tag.tag for tag in tags)
        yield (
            f"gpus: needs a build for cards, {release.engine} {release.release} has {builds} "
            f"[{release.id}]"
        )
    name = pinned.attention_backend
    if name is None:
        return
    device = Device.CPU if want.cpu_only else Device.CUDA
    known = [
        row
        for row in matrix.backends(release.engine)
        if within(release.release, row.releases) and device in row.devices
    ]
    if all(row.backend != name for row in known):
        where = f"{release.engine} {release.release}" + (" on the CPU" if want.cpu_only else "")
        yield (
            f"attention_backend: {where} has no {name}; "
            f"legal: {', '.join(row.backend for row in known) or 'none'} [{release.id}]"
        )


def _sizes(
    pinned: Pinned, _matrix: Matrix, model: ModelRow, release: ReleaseRow, _row: CheckpointRow
) -> Iterator[str]:
    want = pinned.want
    for reason in (
        model_rules.context(want.max_model_len, model),
        want_rules.guarded(want, release),
        want_rules.batching(want, release),
        want_rules.experts(want, release, model),
        model_rules.takes_images(model) if want.vision else None,
    ):
        if reason is not None:
            yield _said("", reason)
    size = want.tensor_parallel_size or 1
    if size > 1 and release.memory_model is MemoryModel.LLAMA_CPP:
        yield (
            f"tensor_parallel_size: {release.engine} splits layers over cards, needs 1, "
            f"found {size} [{release.id}]"
        )


def _words(
    pinned: Pinned, matrix: Matrix, model: ModelRow, release: ReleaseRow, _row: CheckpointRow
) -> Iterator[str]:
    """Cache types and grammars that the release calls nothing."""
    where = f"{release.engine} {release.release}"
    dtype, grammar = pinned.kv_cache_dtype, pinned.want.structured_output
    if dtype is not None and dtype not in release.kv_cache_dtypes:
        legal = ", ".join(release.kv_cache_dtypes)
        yield f"kv_cache_dtype: {where} has no {dtype}; legal: {legal} [{release.id}]"
    if grammar is not None:
        support = support_of(matrix.feature(_STRUCTURED_OUTPUT), release, model, None)
        words = support.words if isinstance(support, FeatureSupport) else ()
        if grammar not in words:
            legal = f"legal: {', '.join(words)}" if words else "it names none"
            yield f"structured_output: {where} has no {grammar}; {legal} [{_STRUCTURED_OUTPUT}]"


def _drafts(
    pinned: Pinned, _matrix: Matrix, model: ModelRow, release: ReleaseRow, row: CheckpointRow
) -> Iterator[str]:
    """What speaks against the pinned way of drafting, whatever the card."""
    if pinned.speculation is not None:
        yield from drafting_faults("speculative", pinned.speculation, model, release, row)


_RULES = (_loads, _knows, _device, _sizes, _words, _drafts)
"""In the order in which a way to serve fails."""


def _foreign(want: Want, model: ModelRow, release: ReleaseRow, checkpoint: CheckpointRow) -> str:
    """The engine does not load the checkpoint: whose it is, and what the engine has."""
    ours = [row.id for row in model.weights if release.engine in row.engines]
    legal = f"; legal: {', '.join(ours)}" if ours else f"; it has none of {model.id}"
    if want.checkpoint is not None:
        owners = " and ".join(checkpoint.engines) or "no engine of ours"
        return (
            f"checkpoint: {checkpoint.id} ({checkpoint.format}) is for {owners}, "
            f"not {release.engine}{legal} [{checkpoint.id}]"
        )
    engines = dict.fromkeys(engine for row in model.weights for engine in row.engines)
    return (
        f"engine: {release.engine} loads {', '.join(release.formats)}, and no checkpoint of "
        f"{model.id} is for it; legal: {', '.join(engines)} [{model.id}]"
    )


def drafting_faults(
    key: str,
    row: FeatureRow,
    model: ModelRow,
    release: ReleaseRow,
    checkpoint: CheckpointRow,
) -> Iterator[str]:
    """What speaks against drafting by `row`, whatever the card; sentences behind `key`."""
    support = support_of(row, release, model, None)
    if not isinstance(support, FeatureSupport):
        yield _said(key, support)
        return
    if (support.draft or row.draft) is Draft.HEAD and not (model.mtp and checkpoint.mtp):
        where = checkpoint.id if model.mtp else model.id
        yield f"{key}: {row.id} needs layers in the weights that draft, {where} has none [{where}]"
    if (support.draft or row.draft) is Draft.DRAFTER:
        usable = [
            each
            for each in model.drafters
            if each.drafts is not None
            and each.drafts.method in row.drafters
            and release.engine in each.engines
            and within(release.release, each.engines[release.engine])
        ]
        if not usable:
            yield (
                f"{key}: {row.id} needs a drafter of {model.id} for {release.engine}, the "
                f"catalogue has none [{model.id}]"
            )


def _said(key: str, reason: Reason) -> str:
    """A reason as bad input: behind the key of the pin, with its row."""
    text = reason.sentence()
    row = getattr(reason, "row", None)
    text = text if not key or text.startswith(key) else f"{key}: {text}"
    return f"{text} [{row}]" if row else text
