"""An operator's want with its names resolved: what each pin means in the matrix."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from gpuwright.catalogue import LISTED_BY, Matrix, find, resolve
from gpuwright.contradictions import Pinned, contradictions
from gpuwright.engine_rows import BuildTagRow, ReleaseRow
from gpuwright.feature_rows import FeatureKind, FeatureRow
from gpuwright.host import Gpu, Host
from gpuwright.load import load_matrix
from gpuwright.model_rows import CheckpointRow, ModelRow
from gpuwright.quoting import nearest, quoted
from gpuwright.refusals import WantError
from gpuwright.rows import WorkloadRow
from gpuwright.want import Want

AUTO = "auto"


@dataclass(frozen=True, kw_only=True, slots=True)
class Pins:
    """None, or an empty tuple of models' checkpoints, leaves the choice open."""

    models: tuple[ModelRow, ...]
    auto_model: bool
    workload: WorkloadRow
    engine: str | None
    release: str | None
    build_tag: str | None
    checkpoint: CheckpointRow | None
    attention_backend: str | None
    kv_cache_dtype: str | None
    speculation: FeatureRow | None
    """The pinned way of drafting; with none pinned, `want.speculative` says whether any may be."""
    drafter: CheckpointRow | None
    openings: dict[Hashable, tuple[Any, ...]] = field(default_factory=dict, compare=False)
    """What `candidates.openings` has found out whatever the node: nodes are many, wants few."""

    def admits_release(self, release: ReleaseRow, tag: BuildTagRow) -> bool:
        return (
            self.engine in (None, release.engine)
            and self.release in (None, release.release)
            and self.build_tag in (None, tag.tag)
            and (not tag.only_pinned or self.engine is not None)
        )

    def checkpoints(self, model: ModelRow) -> tuple[CheckpointRow, ...]:
        return (self.checkpoint,) if self.checkpoint is not None else model.weights


@lru_cache(maxsize=256)
def resolve_pins(want: Want, matrix: Matrix) -> Pins:
    """What the names in `want` mean; WantError with every unknown name and its nearest one."""
    faults: list[str] = []

    def known(key: str, name: str | None, words: dict[str, str]) -> str | None:
        if name is None or name.casefold() == AUTO:
            return None
        if name.casefold() in words:
            return words[name.casefold()]
        end = _with_tokens(name, words) if key == "speculative" else ""
        end = end or nearest(name, sorted(set(words.values())), words)
        owners = _owners(matrix, key, name)
        if owners:
            faults.append(f"{key}: {quoted(name)} is of {' and '.join(owners)}, not {engine}{end}")
        else:
            faults.append(f"{key}: {quoted(name)} is unknown{end}")
        return None

    auto_model = want.model.casefold() == AUTO
    models = matrix.models
    if not auto_model:
        try:
            models = (resolve("model", matrix.models, want.model),)
        except WantError as error:
            faults.extend(error.faults)
    engine = known("engine", want.engine, {name: name for name in matrix.engines})
    releases = [row for row in matrix.releases if engine in (None, row.engine)]
    release = known("release", want.release, {row.release: row.release for row in releases})
    tags = {tag.tag: tag.tag for row in releases for tag in row.build_tags}
    build_tag = known("build_tag", want.build_tag, tags)
    backends: dict[str, str] = {}
    for row in matrix.attention_backends:
        if engine in (None, row.engine):
            backends |= {word.casefold(): row.backend for word in (row.backend, *row.aliases)}
    attention_backend = known("attention_backend", want.attention_backend, backends)
    dtypes = {
        word.casefold(): row.id for row in matrix.kv_cache_dtypes for word in (row.id, *row.aliases)
    }
    kv_cache_dtype = known("kv_cache_dtype", want.kv_cache_dtype, dtypes)
    grammars = [
        word
        for entries in matrix.feature("structured-output").engines.values()
        for entry in entries
        for word in entry.words
    ]
    known("structured_output", want.structured_output, {word: word for word in grammars})
    speculation, drafter = None, None
    if want.speculative is not None:
        words = {
            word.casefold(): row.id
            for row in matrix.features
            if row.kind is FeatureKind.SPECULATION
            for word in (row.id, *row.aliases)
        }
        method = known("speculative", want.speculative.method, words)
        speculation = matrix.feature(method) if method is not None else None
        if want.speculative.drafter is not None:
            drafters = [row for model in models for row in model.drafters]
            name = known(
                "speculative: drafter",
                want.speculative.drafter,
                {word.casefold(): row.id for row in drafters for word in (row.id, *row.aliases)},
            )
            drafter = next((row for row in drafters if row.id == name), None)
            if drafter is not None and speculation is not None:
                faults.extend(_foreign_drafter(speculation, drafter))
    checkpoint = None
    if want.checkpoint is not None:
        candidates = [row for model in models for row in model.weights]
        checkpoint = find(candidates, want.checkpoint)
        if checkpoint is None:
            end = nearest(want.checkpoint, [row.id for row in candidates], command=LISTED_BY)
            owners = [each.id for each in matrix.models if find(each.weights, want.checkpoint)]
            what = f"of {' and '.join(owners)}, not {want.model}" if owners else "unknown"
            beside = find((row for each in models for row in each.checkpoints), want.checkpoint)
            if beside is not None:
                what = f"a {beside.role} and holds no model's weights"
            faults.append(f"checkpoint: {quoted(want.checkpoint)} is {what}{end}")
        else:
            models = tuple(model for model in models if checkpoint in model.checkpoints)
    workload = None
    try:
        workload = resolve("workload", matrix.workloads, want.workload)
    except WantError as error:
        faults.extend(error.faults)
    if want.cpu_only and (want.tensor_parallel_size or 1) > 1:
        faults.append("tensor_parallel_size: needs cards, and gpus says none")
    # Size 1 over several cards is what an engine does that splits layers.
    if want.gpus and want.tensor_parallel_size not in (None, 1, len(want.gpus)):
        faults.append(
            f"tensor_parallel_size: {want.tensor_parallel_size} over {len(want.gpus)} pinned cards"
            f"; legal: {' or '.join(dict.fromkeys(('1', str(len(want.gpus)))))}"
        )
    if want.cpu_only and want.share_gpus:
        faults.append("share_gpus: needs cards, and gpus says none")
    if faults:
        raise WantError(*faults)
    assert workload is not None
    return Pins(
        models=models,
        auto_model=auto_model and checkpoint is None,
        workload=workload,
        engine=engine,
        release=release,
        build_tag=build_tag,
        checkpoint=checkpoint,
        attention_backend=attention_backend,
        kv_cache_dtype=kv_cache_dtype,
        speculation=speculation,
        drafter=drafter,
    )


def read_checked(data: object) -> tuple[Want, Matrix]:
    """The want in `data` and the matrix that knows its names; WantError with every fault of values
    and of names, or else with what no node could meet."""
    want, said = Want.read(data)
    faults, matrix = [*said], None
    try:
        matrix = load_matrix(want.extra_models)
    except WantError as error:
        faults.extend(error.faults)
    if matrix is not None:
        faults.extend(name_faults(want, matrix))
    if faults or matrix is None:
        raise WantError(*faults)
    check_pins(want, matrix)
    return want, matrix


def name_faults(want: Want, matrix: Matrix) -> tuple[str, ...]:
    """What `resolve_pins` finds wrong."""
    try:
        resolve_pins(want, matrix)
    except WantError as error:
        return error.faults
    return ()


def check_pins(want: Want, matrix: Matrix) -> None:
    """WantError where no node could meet the pins of `want` together."""
    pins = resolve_pins(want, matrix)
    releases = tuple(
        row
        for row in matrix.releases
        if any(pins.admits_release(row, tag) for tag in row.build_tags)
    )
    if pins.auto_model and releases:
        return
    faults = contradictions(
        Pinned(
            want=want,
            models=pins.models,
            releases=releases,
            checkpoint=pins.checkpoint,
            attention_backend=pins.attention_backend,
            kv_cache_dtype=pins.kv_cache_dtype,
            speculation=pins.speculation,
        ),
        matrix,
    )
    if faults:
        raise WantError(*faults)


def _foreign_drafter(speculation: FeatureRow, drafter: CheckpointRow) -> Iterator[str]:
    method = drafter.drafts.method if drafter.drafts is not None else None
    if method not in speculation.drafters:
        yield (
            f"speculative: drafter {drafter.id} drafts by {method}, not {speculation.id} "
            f"[{drafter.id}]"
        )


def _with_tokens(name: str, words: Mapping[str, str]) -> str:
    """The end of a sentence on a method with its tokens behind it and nothing between."""
    method = name.rstrip("0123456789")
    tokens = name[len(method) :]
    known = words.get(method.rstrip("-_ ").casefold())
    return f"; nearest: {known}:{tokens}" if known is not None and tokens else ""


def _owners(matrix: Matrix, key: str, name: str) -> tuple[str, ...]:
    """Engines that know `name` as what `key` pins."""
    found: dict[str, None] = {}
    wanted = name.casefold()
    if key == "attention_backend":
        for row in matrix.attention_backends:
            if wanted in (word.casefold() for word in (row.backend, *row.aliases)):
                found[row.engine] = None
    for release in matrix.releases:
        words = {
            "release": (release.release,),
            "build_tag": tuple(tag.tag for tag in release.build_tags),
        }.get(key, ())
        if wanted in words:
            found[release.engine] = None
    return tuple(found)


def pinned_gpus(host: Host, want: Want) -> tuple[Gpu, ...]:
    """The cards that `want` names, in its order; all of the node's where it names none."""
    if want.gpus is None:
        return host.gpus
    faults, found = [], []
    by_name = {str(gpu.index): gpu for gpu in host.gpus} | {gpu.uuid: gpu for gpu in host.gpus}
    for name in want.gpus:
        if name in by_name:
            found.append(by_name[name])
        else:
            names = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in host.gpus) or "no card"
            faults.append(f"gpus: {quoted(name)} is not on this node, which has {names}")
    if len({gpu.uuid for gpu in found}) < len(found):
        faults.append("gpus: names a card twice")
    if faults:
        raise WantError(*faults)
    return tuple(found)
