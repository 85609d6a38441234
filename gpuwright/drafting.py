"""Which ways of drafting tokens a combination may try, in order, and why not the one asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpuwright.feature_rows import Draft, FeatureRow, FeatureSupport
from gpuwright.features import support_of
from gpuwright.model_rows import CheckpointRow
from gpuwright.model_rules import first_pinned
from gpuwright.refusals import Needs, Reason
from gpuwright.remedies import Remedy
from gpuwright.site import Combination, Drafting, Site
from gpuwright.versions import within


def draftings(site: Site, combination: Combination) -> list[Drafting | None] | Reason:
    """What to try, best first; None is to draft nothing. The reason where the pinned way cannot
    be: a workload's preference only falls away, also where nothing but its drafter keeps the plan
    from being applied."""
    wanted = site.want.speculative
    if wanted is not None and wanted.method is None:
        return [None]
    if site.pins.speculation is not None:
        answer = _drafting(site, combination, site.pins.speculation)
        return [answer] if isinstance(answer, Drafting) else answer
    ways = _preferred(site, combination)
    return [*(each for each in ways if not _keeps_back(combination, each)), None]


def left_out(site: Site, combination: Combination) -> Iterator[CheckpointRow]:
    """Drafters that the workload prefers to how `combination` drafts, and that nobody pinned."""
    if site.want.speculative is not None:
        return
    for way in _preferred(site, combination):
        if combination.drafting is not None and way.row is combination.drafting.row:
            return
        if _keeps_back(combination, way) and way.drafter is not None:
            yield way.drafter


def _preferred(site: Site, combination: Combination) -> Iterator[Drafting]:
    for name in site.pins.workload.speculation:
        answer = _drafting(site, combination, site.matrix.feature(name))
        if isinstance(answer, Drafting):
            yield answer


def _keeps_back(combination: Combination, way: Drafting) -> bool:
    """Whether nothing but its drafter keeps the plan from being applied."""
    may_apply = combination.tag.applicable and combination.checkpoint.files is not None
    return may_apply and way.drafter is not None and way.drafter.files is None


def _drafting(site: Site, combination: Combination, row: FeatureRow) -> Drafting | Reason:
    release, model = combination.release, combination.model
    support = support_of(row, release, model, combination.capability)
    if not isinstance(support, FeatureSupport):
        return support
    wanted = site.want.speculative
    if wanted is not None and wanted.tokens and not support.says("tokens", "draft_tokens"):
        return Needs(
            subject=f"tokens of {row.id} under {release.engine} {release.release}",
            needed="an argument that says how many",
            found=f"none, and {wanted.tokens} pinned",
            help=Remedy(
                words=f"`speculative: {row.id}`, without their number",
                want=(("speculative", replace(wanted, tokens=None)),),
            ),
            row=row.id,
        )
    drafter = None
    source = support.draft or row.draft
    if source is Draft.HEAD and not (model.mtp and combination.checkpoint.mtp):
        return Needs(
            subject=f"{row.id} with {combination.checkpoint.id}",
            needed="layers in its weights that draft",
            found="none",
            row=model.id,
        )
    if source is Draft.DRAFTER:
        drafter = first_pinned(_drafters(site, combination, row))
        if drafter is None:
            return Needs(
                subject=f"{row.id} for {model.id} under {release.engine}",
                needed="a drafter of it in the catalogue",
                found="none",
                row=model.id,
            )
    tokens = (wanted.tokens if wanted is not None else None) or _tokens(combination, row, drafter)
    return Drafting(row=row, support=support, drafter=drafter, tokens=tokens or support.tokens)


def _tokens(combination: Combination, row: FeatureRow, drafter: CheckpointRow | None) -> int:
    """Draft tokens that the makers of the head or the drafter use; 0 where they do not say."""
    if drafter is not None:
        return (drafter.drafts.tokens if drafter.drafts is not None else None) or 0
    return combination.model.mtp_tokens if row.draft is Draft.HEAD else 0


def _drafters(site: Site, combination: Combination, row: FeatureRow) -> Iterator[CheckpointRow]:
    release = combination.release
    for drafter in combination.model.drafters:
        assert drafter.drafts is not None
        if site.pins.drafter is not None and drafter is not site.pins.drafter:
            continue
        if (
            drafter.drafts.method in row.drafters
            and drafter.format in release.formats
            and release.engine in drafter.engines
            and within(release.release, drafter.engines[release.engine])
            and drafter.max_bytes is not None
        ):
            yield drafter
