"""From the chosen candidate to the plan: its settings, and what is said about the choice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from itertools import takewhile
from typing import Any

from gpuwright import compat
from gpuwright.adapters import of_other_models
from gpuwright.card_rules import sound, whole
from gpuwright.drafting import left_out
from gpuwright.engine_rows import MemoryModel
from gpuwright.feature_arguments import feature_arguments
from gpuwright.fitting import Candidate
from gpuwright.hazard_rows import Compiler
from gpuwright.hazard_settings import is_applied
from gpuwright.host import OWN_KERNEL
from gpuwright.interpreters import interpreter
from gpuwright.kernel_compilers import compiler_of, toolchain_on
from gpuwright.memory.request import Details, Figures
from gpuwright.memory_request import SHARE_CAP
from gpuwright.model_rows import CheckpointRow
from gpuwright.named_files import unseen
from gpuwright.pace import RAM_BYTES_PER_SECOND, pace_sentences, tokens_per_second
from gpuwright.plan import (
    ModelFile,
    Plan,
    PlannedCheckpoint,
    PlannedGpu,
    PlanWarning,
    Rejection,
    Speculation,
)
from gpuwright.quoting import counted
from gpuwright.refusals import gib
from gpuwright.routing import route
from gpuwright.site import Combination, Site
from gpuwright.toolchains import Toolchain, places
from gpuwright.ways import taken_by_itself

FEW_THREADS = 8
_FIGURES = tuple(each.name for each in fields(Figures))


def plan_of(site: Site, best: Candidate, others: Callable[[], tuple[Rejection, ...]]) -> Plan:
    """The Plan of `best`; `others` says why the others are not it."""
    want, chosen, details = site.want, best.combination, best.fit.details()
    return Plan(
        service=want.service,
        bind=want.bind,
        port=want.port,
        model=chosen.model.id,
        checkpoint=chosen.checkpoint.id,
        served_model_name=want.served_model_name or chosen.model.name,
        quantization=chosen.checkpoint.quantization,
        engine=chosen.release.engine,
        release=chosen.release.release,
        build_tag=chosen.tag.tag,
        attention_backend=best.backend.backend,
        kv_cache_dtype=best.kv.id,
        gpus=tuple(
            PlannedGpu(
                uuid=gpu.uuid,
                index=gpu.index,
                name=gpu.name,
                compute_capability=gpu.compute_capability or "unknown",
            )
            for gpu in chosen.gpus
        ),
        tensor_parallel_size=chosen.tensor_parallel_size,
        max_model_len=best.fit.max_model_len,
        max_num_seqs=best.fit.max_num_seqs,
        memory=details.memory,
        devices=details.devices,
        ram_beside_bytes=details.ram_bytes,
        files=_files(chosen.checkpoint),
        reasons=tuple(_reasons(site, best)),
        warnings=tuple(dict.fromkeys(_warnings(site, best, details))),
        others=others,
        not_applicable=best.not_applicable,
        parameters=_parameters(site, best, details),
        figures={name: getattr(details.figures, name) for name in _FIGURES},
        speculation=_speculation(chosen),
        projector=best.projector.id if best.projector is not None else None,
        beside=tuple(PlannedCheckpoint(id=row.id, files=_files(row)) for row in best.beside),
        features=tuple(row.id for row in site.matrix.features if row.id in chosen.features),
        feature_arguments=tuple(feature_arguments(site, best)),
        assumed=tuple(dict.fromkeys(_assumed(site, best))),
    )


_ELSEWHERE = frozenset(
    {"max_num_seqs", "max_num_batched_tokens", "max_model_len", "draft_tokens", SHARE_CAP}
)
"""Settings that the plan says in fields of its own, or in its memory plan."""


def _parameters(site: Site, best: Candidate, details: Details) -> dict[str, Any]:
    """Engine settings in neutral words: the memory plan's, the hazards', the model's."""
    chosen, host = best.combination, site.host
    found: dict[str, Any] = dict(details.parameters)
    found |= {key: value for key, value in best.settings.items() if key not in _ELSEWHERE}
    if chosen.release.memory_model is MemoryModel.LLAMA_CPP:
        threads = host.cpu_threads or 1
        # Threads beyond the cores only wait for one another; of many threads half are cores.
        found["threads"] = threads if threads <= FEW_THREADS else threads // 2
    return found


def _speculation(chosen: Combination) -> Speculation | None:
    drafting = chosen.drafting
    if drafting is None:
        return None
    drafter = drafting.drafter.id if drafting.drafter is not None else None
    return Speculation(method=drafting.row.id, tokens=drafting.tokens, drafter=drafter)


def _files(row: CheckpointRow) -> tuple[ModelFile, ...]:
    return tuple(
        ModelFile(path=file.path, bytes=file.bytes, sha256=file.sha256, sources=file.sources)
        for file in row.files or ()
    )


def _assumed(site: Site, best: Candidate) -> Iterator[str]:
    chosen = best.combination
    yield from chosen.model.assumptions
    yield from chosen.checkpoint.assumptions
    for row in best.beside:
        yield from row.assumptions
    if not chosen.gpus and site.pins.workload.least_tokens_per_second:
        yield f"RAM: read at {RAM_BYTES_PER_SECOND // 10**9} GB/s, as two channels of DDR5-4800 are"
    yield from unseen(site.want, site.host.named)


def _reasons(site: Site, best: Candidate) -> Iterator[str]:
    chosen, pins, matrix = best.combination, site.pins, site.matrix
    release = chosen.release
    if site.want.model == "auto":
        found = "fits" if best.not_applicable else "fits and can be applied here"
        yield f"{chosen.model.name}: the best model by our order that {found}"
    if pins.engine is None:
        first = route(pins.workload, chosen.model, chosen.capabilities)
        ahead = [*takewhile(lambda engine: engine != release.engine, first.order)]
        because = first.because
        if ahead:
            because = (
                f"{', '.join(ahead)} would come first ({because}); what is against that stands "
                "under `why not`"
            )
        yield f"{release.engine} for {pins.workload.id}: {because}"
    else:
        yield f"{release.engine}: pinned"
    if chosen.tag.cuda is not None:
        cuda = matrix.cuda_runtime(chosen.tag.cuda)
        yield (
            f"{release.release} {chosen.tag.tag}: CUDA {cuda.id} needs driver >= "
            f"{cuda.min_driver}, found {site.host.driver_version}"
        )
    compiler = toolchain_on(site, release)
    if isinstance(compiler, Toolchain):
        place = places([compiler.toolkit])
        yield f"kernels: compiled with CUDA {compiler.toolkit.cuda} of {place}, {compiler.compiler}"
    floor, pace = pins.workload.least_tokens_per_second, tokens_per_second(chosen, matrix)
    slow = pace is not None and pace < floor
    enough = "fast enough" if chosen.gpus else "ones that RAM may be read fast enough for"
    weights = chosen.checkpoint.quantization
    of = f"{weights} weights: "
    if floor and pace is not None:
        of += f"of the {'least slow' if slow else enough}, "
    if pins.checkpoint is not None:
        yield f"{chosen.checkpoint.id}: pinned"
    elif not chosen.gpus:
        yield f"{of}the finest that fit with enough context"
    elif best.formats.preferred:
        yield f"{weights} weights: the format to take on {chosen.gpus[0].name}"
    elif best.formats.native:
        yield f"{of}the finest that this card computes and that fit"
    else:
        yield f"{of}the finest that fit, expanded to 16 bits on this card"
    if floor and pace is not None:
        yield from pace_sentences(chosen, pace, floor, pins.workload.id)
    lossless = release.kv_cache_dtypes[0]
    if pins.kv_cache_dtype is not None:
        yield f"{best.kv.id} cache: pinned"
    elif best.kv.id == lossless:
        yield f"{best.kv.id} cache: nothing is lost, and the context fits"
    else:
        yield f"{best.kv.id} cache: {lossless} holds less context than the workload asks for"
    yield f"attention backend {best.backend.backend}: {_backend_reason(site, best)}"
    if chosen.drafting is not None:
        row, tokens = chosen.drafting.row, chosen.drafting.tokens
        because = "pinned" if pins.speculation is not None else f"what {pins.workload.id} prefers"
        yield f"{row.id}, {tokens} tokens at a time: {because}"
    if best.layers_in_ram:
        layers = counted(best.layers_in_ram, "layer")
        yield f"experts of {layers} stay in RAM, which the cards do not hold"
    length = f"{best.fit.max_model_len:,} tokens"
    if site.want.max_model_len is not None:
        yield f"{length}: pinned"
    elif best.fit.max_model_len == chosen.model.max_context_tokens:
        yield f"{length}: the model's own context"
    elif best.fit.max_model_len == best.settings.get("max_model_len"):
        yield f"{length}: as much as is known to hold"
    else:
        yield f"{length}: the most that fits in coarse steps"


def _backend_reason(site: Site, best: Candidate) -> str:
    engine, backend = best.combination.release.engine, best.backend.backend
    if site.pins.attention_backend is not None:
        return "pinned"
    if taken_by_itself(site, best.combination, best.kv, backend):
        return f"what {engine} takes here by itself"
    return f"holds the pinned {best.kv.id} cache, and {engine} takes it only if told to"


def _warnings(site: Site, best: Candidate, details: Details) -> Iterator[PlanWarning]:
    for text in details.warnings:
        yield PlanWarning(because=text)
    for row in best.hazards:
        yield PlanWarning(
            because=row.because,
            instead=row.instead,
            hazard=row.id,
            applied=is_applied(row, best.settings),
        )
    for text in _remarks(site, best, details):
        yield PlanWarning(because=text)


def _remarks(site: Site, best: Candidate, details: Details) -> Iterator[str]:
    chosen, host, want = best.combination, site.host, site.want
    for gpu in chosen.gpus:
        if site.matrix.gpu(gpu) is None:
            yield (
                f"GPU {gpu.index} ({gpu.name}) has no row in gpus/: planned from its compute "
                f"capability {gpu.compute_capability} and its memory"
            )
    for gpu in host.gpus:
        reason = whole(gpu) or sound(gpu)
        if reason is None or not chosen.gpus:
            continue
        used = "pinned all the same" if gpu in chosen.gpus else "left out"
        yield f"{reason.sentence()}: {used}"
    for gpu in chosen.gpus:
        if gpu.display:
            yield f"{gpu.label} draws a desktop: what its windows take comes and goes"
    for row in left_out(site, chosen):
        yield (
            f"{row.id} would draft, as {site.pins.workload.id} prefers, and is not pinned: "
            f"`python -m tools.pin {row.id}` records it"
        )
    for reason in best.unstored:
        yield (
            f"{reason.row} would draft, as {site.pins.workload.id} prefers, and has no room: "
            f"{reason.sentence()}"
        )
    if chosen.tensor_parallel_size > 1 and compat.equal_cards(chosen.gpus) is not None:
        yield "tensors are split over unequal cards: the smaller sets the size of each share"
    compiler = compiler_of(site, chosen.release, chosen.capabilities)
    if best.backend.needs and compiler is not Compiler.PRESENT:
        yield f"attention backend {best.backend.backend} needs {best.backend.needs}"
    if chosen.gpus:
        yield from host.driver.remarks()
        taken = interpreter(host, chosen.release, chosen.tag, site.matrix)
        # One that is brought to the node has its headers.
        if chosen.release.python and taken is not None and taken.row is None:
            minor = taken.minor
            if host.outfit.lacks_headers(minor):
                yield (
                    f"Python {minor} of this node has no Python.h, which kernels are compiled "
                    f"against at start: the package python{minor}-dev brings it"
                )
    yield from host.outfit.remarks(own_clock=host.virtualization in OWN_KERNEL)
    if want.cpu_only and host.has_card:
        yield "`gpus: none`: the card of this node stays unused"
    if not chosen.gpus and "avx2" not in host.cpu_flags:
        yield "the CPU has no avx2: answers will be slow"
    yield from of_other_models(want, host.named, chosen.model)
    layout = want.layout
    for path in (layout.model_store, layout.cache, layout.engines):
        if host.disks.get(path) is None:
            yield f"free space below {path} is unknown"
    running = host.service is not None and host.service.may_run
    free = host.memory_available_bytes
    if not chosen.gpus and free is not None and not running:
        needed = details.memory.needed_bytes
        if needed > free:
            yield f"RAM: the plan takes {gib(needed)}, {gib(free)} are free at present"
