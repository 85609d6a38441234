"""What `gpuwright kv` may be asked: the rules of the decision, put to a cache without a node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from gpuwright import compat, want_rules
from gpuwright.card_sets import card_set
from gpuwright.catalogue import Matrix
from gpuwright.contradictions import Pinned, contradictions, drafting_faults
from gpuwright.engine_rows import MemoryModel, ReleaseRow
from gpuwright.feature_rows import Draft, FeatureKind, FeatureRow
from gpuwright.host import Gpu, Host
from gpuwright.model_rows import CheckpointRow, ModelRow
from gpuwright.pins import resolve_pins
from gpuwright.refusals import Reason, Unlisted, WantError
from gpuwright.rows import GpuRow
from gpuwright.site import Combination, Site
from gpuwright.sketch import read_sketch
from gpuwright.values import SpeculativeWant
from gpuwright.want import Want
from gpuwright.ways import Way, ways_of

_MOST_GIB = 1024
_OF_ONE_ENGINE = {
    "mem_fraction_static": (MemoryModel.SGLANG,),
    "block_multiple": (MemoryModel.VLLM,),
}
"""Options that only engines of these memory models have."""


def foreign_options(said: Sequence[str], release: ReleaseRow, matrix: Matrix) -> Iterator[str]:
    """Options among `said` that the engine does not have, with the one that does."""
    for key in said:
        option = f"--{key.replace('_', '-')}"
        models = _OF_ONE_ENGINE.get(key)
        if models is not None and release.memory_model not in models:
            owners = dict.fromkeys(
                row.engine for row in matrix.releases if row.memory_model in models
            )
            yield f"{option}: is of {' and '.join(owners)}, {release.engine} has none"
        if key == "gpu_memory_utilization" and release.memory_model is MemoryModel.SGLANG:
            yield f"{option}: is of vllm, sglang has --mem-fraction-static"
        if key == "max_num_batched_tokens" and release.memory_model is MemoryModel.LLAMA_CPP:
            yield f"{option}: needs an engine that batches prompts, found {release.engine}"


def check(
    matrix: Matrix,
    *,
    model: ModelRow,
    releases: tuple[ReleaseRow, ...],
    checkpoint: CheckpointRow | None,
    kv_cache_dtype: str,
    draft_tokens: int,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    card: GpuRow | None,
) -> Reason | None:
    """Why the card cannot keep such a cache. WantError where no card could, or where names do not
    belong together; `releases` are those that may be meant."""
    row = _drafting(matrix, model, releases, checkpoint) if draft_tokens else None
    want = Want(
        model=model.id,
        engine=releases[0].engine,
        checkpoint=checkpoint.id if checkpoint is not None else None,
        kv_cache_dtype=kv_cache_dtype,
        speculative=SpeculativeWant(method=row.id if row is not None else None),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
    )
    if checkpoint is not None:
        pinned = Pinned(
            want=Want(model=model.id, engine=want.engine, checkpoint=want.checkpoint),
            models=(model,),
            releases=releases,
            checkpoint=checkpoint,
            attention_backend=None,
            kv_cache_dtype=None,
            speculation=None,
        )
        faults = contradictions(pinned, matrix)
        if faults:
            raise WantError(*(f"--{fault}" for fault in faults))
    workload = resolve_pins(want, matrix).workload
    crowded = [want_rules.sequences(want, release, workload) for release in releases]
    if all(crowded) and crowded[0] is not None:
        raise WantError(f"--{_with_row(crowded[0]).replace('_', '-', 2)}")
    if model.architecture.measured_caches:
        # A cache that was seen is possible, and of others nothing is known.
        return None
    return _attention(matrix, want, model, releases, checkpoint, card)


def _drafting(
    matrix: Matrix,
    model: ModelRow,
    releases: tuple[ReleaseRow, ...],
    checkpoint: CheckpointRow | None,
) -> FeatureRow:
    """The first way of drafting that the model has here; what stands in the prompt needs no row."""
    faults: dict[str, None] = {}
    for row in matrix.features:
        if row.kind is not FeatureKind.SPECULATION or row.draft is Draft.PROMPT:
            continue
        for release in releases:
            for weights in (checkpoint,) if checkpoint is not None else model.weights:
                found = list(drafting_faults("", row, model, release, weights))
                if not found:
                    return row
                faults[found[0]] = None
    where = checkpoint.id if checkpoint is not None else model.id
    raise WantError(
        f"--speculative-tokens: needs layers in the weights that draft, or a drafter that "
        f"{releases[0].engine} loads; {where} has neither, legal: 0 [{where}]"
    )


def _attention(
    matrix: Matrix,
    want: Want,
    model: ModelRow,
    releases: tuple[ReleaseRow, ...],
    checkpoint: CheckpointRow | None,
    card: GpuRow | None,
) -> Reason | None:
    """The first reason why no backend keeps the cache beside what drafts; None where one does."""
    if checkpoint is not None:
        rows = [checkpoint]
    else:
        engine = releases[0].engine
        rows = [row for row in model.weights if engine in row.engines] or [*model.weights]
    reasons = _reasons(matrix, want, releases, rows, card)
    if not reasons:
        return None
    if card is not None:
        return reasons[0]
    legal = [
        dtype
        for dtype in dict.fromkeys(each for row in releases for each in row.kv_cache_dtypes)
        if not _reasons(matrix, replace(want, kv_cache_dtype=dtype), releases, rows, None)
    ]
    raise WantError(f"--kv-cache-dtype: {_with_row(reasons[-1])}; legal: {', '.join(legal)}")


def _reasons(
    matrix: Matrix,
    want: Want,
    releases: tuple[ReleaseRow, ...],
    rows: Sequence[CheckpointRow],
    card: GpuRow | None,
) -> list[Reason]:
    """Why each way to keep the cache fails; none where one does not."""
    reasons: list[Reason] = []
    pins = resolve_pins(want, matrix)
    for host in _hosts(matrix, card):
        gpu = host.gpus[0]
        site = Site(host=host, want=want, pins=pins, matrix=matrix)
        for release in releases:
            if all(
                compat.kernels(gpu, release, tag, host.architecture) is not None
                for tag in release.build_tags
            ):
                continue
            for row in rows:
                answer = _why_not(site, release, row, gpu)
                if answer is None:
                    return []
                reasons.append(answer)
    return reasons


def _why_not(site: Site, release: ReleaseRow, row: CheckpointRow, gpu: Gpu) -> Reason | None:
    tag = release.build_tags[0]
    combination = Combination(release=release, tag=tag, model=site.pins.models[0], checkpoint=row)
    found = ways_of(site, combination, card_set(site, release, tag, (gpu,)))
    if not isinstance(found, tuple):
        return found
    answers = [answer for answers in found for answer in answers]
    reasons = [each for each in answers if not isinstance(each, Way)]
    # What the matrix does not know is no "no".
    if len(reasons) < len(answers) or any(isinstance(each, Unlisted) for each in reasons):
        return None
    return reasons[0]


@lru_cache(maxsize=64)
def _hosts(matrix: Matrix, card: GpuRow | None) -> tuple[Host, ...]:
    """A node with the card, or one of each compute capability that a listed card has."""
    if card is not None:
        cards: list[object] = [card.id]
    else:
        capabilities = dict.fromkeys(row.compute_capability for row in matrix.gpus)
        cards = [
            {"name": "a card", "compute_capability": each, "memory_gib": _MOST_GIB}
            for each in sorted(capabilities, key=lambda text: [int(n) for n in text.split(".")])
        ]
    return tuple(Host.from_document(read_sketch({"gpus": [each]}, matrix)[0]) for each in cards)


def _with_row(reason: Reason) -> str:
    row = getattr(reason, "row", None)
    return f"{reason.sentence()} [{row}]" if row else reason.sentence()
