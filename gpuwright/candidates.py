"""Every way to serve a model on a node, each either a candidate that fits or its first reason.

Candidates are cut as early as a rule allows, so that an engine whose CUDA does not run here is
named once and not once per checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from gpuwright import compat, model_rules, want_rules
from gpuwright.adapters import adapter_reason
from gpuwright.card_sets import card_reason, card_sets
from gpuwright.catalogue import Matrix
from gpuwright.disk_rules import disk_reason, making_of
from gpuwright.engine_rows import BuildTagRow, MemoryModel, ReleaseRow
from gpuwright.feature_choice import OFFLOAD
from gpuwright.feature_rows import Grade
from gpuwright.fitting import Candidate, best_fit, misfit
from gpuwright.kernel_compilers import missing_compiler
from gpuwright.model_rows import CheckpointRow, ModelRow
from gpuwright.pins import pinned_gpus
from gpuwright.plan import Rejection
from gpuwright.refusals import CpuNotAsked, Needs, NoCard, Reason, Superseded, rejection_of
from gpuwright.rows import Device
from gpuwright.shortages import too_large
from gpuwright.site import CardSet, Combination, Site, release_label
from gpuwright.toolchains import Toolchain, toolchain


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """A candidate that cannot be, as a reason; `rejection` is its line for people."""

    label: str
    reason: Reason
    of_model: bool = True
    """Whether it is about one model, and not about the engine's build as such."""

    @property
    def rejection(self) -> Rejection:
        return rejection_of(self.label, self.reason)


Build = tuple[ReleaseRow, BuildTagRow]


def builds(site: Site, *, superseded: bool = False) -> tuple[list[Build], list[Failure]]:
    """Builds that run here, in the matrix's order, and why the others do not: of each engine only
    the newest runs, and an older one where it has code for more of the cards, or is the first that
    can be applied, or `superseded`."""
    current: dict[tuple[str, Device], tuple[str, frozenset[str], bool]] = {}
    running: list[Build] = []
    failures: list[Failure] = []
    for release in site.matrix.releases:
        for row in release.build_tags:
            tag = _on_node(site.matrix, release, row, site.host.architecture or "")
            if not site.pins.admits_release(release, tag):
                continue
            label = release_label(release, tag)
            reason = _release_reason(site, release, tag)
            newer = current.get((release.engine, tag.device))
            covered = _covered(site, release, tag) if reason is None else frozenset()
            if reason is None and newer and not superseded:
                by, had, applicable = newer
                if covered <= had and tag.applicable <= applicable:
                    reason = Superseded(by=by, row=release.id)
            if reason is not None:
                failures.append(Failure(label=label, reason=reason, of_model=False))
                continue
            current[(release.engine, tag.device)] = (label, covered, tag.applicable)
            running.append((release, tag))
    return running, failures


@lru_cache(maxsize=1 << 8)
def _on_node(
    matrix: Matrix, release: ReleaseRow, tag: BuildTagRow, architecture: str
) -> BuildTagRow:
    """The build as a node of `architecture` has it: what is not locked for it is not installed."""
    if not tag.applicable or release.environment is None:
        return tag
    lock = matrix.lock(release.engine, release.release, tag.tag, architecture)
    if lock is not None and lock.sha256 is not None:
        return tag
    others = (
        row.not_for.get(architecture)
        for row in matrix.locks
        if (row.engine, row.release, row.build_tag) == (release.engine, release.release, tag.tag)
    )
    because = next((reason for reason in others if reason), "none was made")
    words = f"{release.id} ({tag.tag}) has no lock for {architecture}: {because}"
    return replace(tag, applicable=False, not_applicable=words)


def may_offload(site: Site, build: Build) -> bool:
    """Whether the build may leave experts in RAM, for some model on some card."""
    release, _ = build
    entries = site.matrix.feature(OFFLOAD).engines.get(release.engine, ())
    return any(entry.grade is Grade.FULL for entry in entries)


def may_apply(site: Site, running: list[Build], model: ModelRow) -> bool:
    """Whether any plan for `model` could be applied, and not only shown."""
    return any(
        tag.applicable and row.files is not None and release.engine in row.engines
        for release, tag in running
        for row in site.pins.checkpoints(model)
    )


def _release_reason(site: Site, release: ReleaseRow, tag: BuildTagRow) -> Reason | None:
    host, want = site.host, site.want
    if tag.device is Device.CPU and host.has_card and not want.cpu_only:
        return CpuNotAsked(row=release.id)
    if tag.device is Device.CUDA and want.cpu_only:
        return NoCard(found="`gpus: none`", row=release.id)
    if tag.device is Device.CUDA and not host.gpus:
        return NoCard(row=release.id)
    reason = (
        compat.architecture(host, release, tag)
        or compat.c_library(host, release)
        or compat.python(host, release, tag, site.matrix)
        or want_rules.guarded(want, release)
        or want_rules.nameable(want, release)
        or adapter_reason(want, host.named, release)
    )
    if reason is None and release.memory_model is MemoryModel.UNKNOWN:
        reason = Needs(
            subject=f"{release.engine} {release.release}",
            needed="memory arithmetic that is known to be right",
            found="none yet",
            row=release.id,
        )
    if reason is None:
        reason = compat.driver(host, tag, site.matrix)
    if reason is None and tag.device is Device.CUDA:
        reason = missing_compiler(site, release)
    if reason is None and host.gpus and tag.device is Device.CUDA:
        found = [card_reason(site, release, tag, gpu) for gpu in pinned_gpus(host, want)]
        # Pinned cards are all to be used; of others one that the build has code for will do.
        short = all(found) if want.gpus is None else any(found)
        reason = compat.first(found) if short else None
    # No compiler helps where it has no code for the card.
    if reason is None and release.memory_model is MemoryModel.LLAMA_CPP:
        compiler = toolchain(host, tag, want, site.matrix)
        reason = None if isinstance(compiler, Toolchain) else compiler
    return reason


def _covered(site: Site, release: ReleaseRow, tag: BuildTagRow) -> frozenset[str]:
    """UUIDs of the cards that the build has code for."""
    cards = pinned_gpus(site.host, site.want)
    return frozenset(gpu.uuid for gpu in cards if card_reason(site, release, tag, gpu) is None)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Opening:
    """A build with a checkpoint on cards that no rule is against; whether it fits is to be seen."""

    combination: Combination
    cards: CardSet

    @property
    def label(self) -> str:
        return self.combination.label + self.cards.label

    def answer(self, site: Site) -> Candidate | Reason:
        too_much = too_large(site, self.combination, self.cards)
        return too_much or best_fit(site, self.combination, self.cards)


def openings(
    site: Site, build: Build, model: ModelRow, *, offload: bool
) -> Iterator[Opening | Failure]:
    """Every way in which `build` may serve `model`, with experts in RAM only where `offload`."""
    release, tag = build
    key = (release, tag, model)
    if key not in site.pins.openings:
        site.pins.openings[key] = tuple(_anywhere(site, build, model))
    making = making_of(site, release, tag)
    for each in site.pins.openings[key]:
        if isinstance(each, Failure):
            yield each
            continue
        combination = Combination(
            release=release, tag=tag, model=model, checkpoint=each, offload=offload
        )
        reason = disk_reason(site.host, site.want, (each,), making)
        if reason is not None:
            yield Failure(label=combination.label, reason=reason)
            continue
        for cards in card_sets(site, release, tag, model):
            reason = misfit(site, combination, cards)
            if reason is None:
                yield Opening(combination=combination, cards=cards)
            else:
                yield Failure(label=combination.label + cards.label, reason=reason)


def _others_load(release: ReleaseRow, rows: Iterable[CheckpointRow]) -> str:
    """Whose the checkpoints are, and their formats where the engine reads none of them."""
    rows = tuple(rows)
    engines = sorted({engine for row in rows for engine in row.engines})
    formats = dict.fromkeys(row.format for row in rows)
    found = f"those of {', '.join(engines)}"
    if not formats.keys() & {*release.formats}:
        found += f" ({', '.join(formats)}, not {' or '.join(release.formats)})"
    return found


def _anywhere(site: Site, build: Build, model: ModelRow) -> Iterator[CheckpointRow | Failure]:
    """The checkpoints of `model` that `build` may serve on some node as it is wanted, and why it
    may not serve the others."""
    release, tag = build
    meant = [row for row in site.pins.checkpoints(model) if _meant_for(release, row)]
    if not meant and not site.pins.auto_model:
        needs = Needs(
            subject=site.pins.checkpoint.id if site.pins.checkpoint else model.id,
            needed=f"a checkpoint that {release.engine} is known to load",
            found=_others_load(release, site.pins.checkpoints(model)),
            row=model.id,
        )
        yield Failure(label=release_label(release, tag), reason=needs)
    for checkpoint in meant:
        reason = (
            model_rules.served(release, checkpoint)
            or want_rules.cache(site.pins.kv_cache_dtype, release)
            or model_rules.published_size(checkpoint)
            or model_rules.context(site.want.max_model_len, model)
            or want_rules.sequences(site.want, release, site.pins.workload)
            or want_rules.batching(site.want, release)
            or want_rules.experts(site.want, release, model)
        )
        if reason is None:
            yield checkpoint
        else:
            label = f"{release_label(release, tag)}, {checkpoint.id}"
            yield Failure(label=label, reason=reason)


def _meant_for(release: ReleaseRow, checkpoint: CheckpointRow) -> bool:
    return checkpoint.format in release.formats and release.engine in checkpoint.engines
