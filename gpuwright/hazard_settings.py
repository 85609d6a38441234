"""What hazards and pins set of a plan, and whether a plan is another for it."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace

from gpuwright.feature_choice import PREFIX_CACHING
from gpuwright.hazard_rows import PARAMETERS, HazardRow
from gpuwright.rows import Scalar
from gpuwright.site import Combination, Drafting, Site


def settings_of(hazards: Iterable[HazardRow], pinned: Container[str] = ()) -> dict[str, Scalar]:
    """What `hazards` change of a plan's defaults; nothing that is `pinned`. Of several ceilings
    the least counts."""
    found: dict[str, Scalar] = {}
    for row in hazards:
        for key, value in row.sets.items():
            if key in pinned:
                continue
            ceiling = PARAMETERS[key] is int
            found[key] = min(int(value), int(found.get(key, value))) if ceiling else value
    return found


def is_applied(row: HazardRow, settings: dict[str, Scalar]) -> bool:
    """Whether `settings` hold all that `row` would set; a pin may say otherwise."""
    return bool(row.sets) and all(
        key in settings
        and (int(settings[key]) <= int(value) if PARAMETERS[key] is int else settings[key] is value)
        for key, value in row.sets.items()
    )


def is_met(row: HazardRow, settings: dict[str, Scalar], by_itself: Mapping[str, int]) -> bool:
    """Whether a plan under `settings` meets what `row` warns of, or would without what that sets:
    one that stays within all its ceilings `by_itself` does neither. A ceiling that is missing
    there always changes the plan."""
    return (
        not row.sets
        or not is_applied(row, settings)
        or any(
            PARAMETERS[key] is not int or by_itself.get(key, int(value) + 1) > int(value)
            for key, value in row.sets.items()
        )
    )


def plan_settings(site: Site, slots: int, hazards: tuple[HazardRow, ...]) -> dict[str, Scalar]:
    """What hazards to avoid set where nothing is pinned, and the pins."""
    found = settings_of(hazards, site.said)
    for name, asked in (
        ("max_num_batched_tokens", site.pins.workload.max_num_batched_tokens),
        ("max_num_seqs", slots),
    ):
        if name in found:
            found[name] = min(int(found[name]), asked)
    return found | site.said


def under(combination: Combination, settings: dict[str, Scalar]) -> Combination:
    """`combination` with what `settings` say of its features and its draft."""
    if settings.get("prefix_caching") is False:
        combination = replace(combination, features=combination.features - {PREFIX_CACHING})
    drafting = combination.drafting
    if drafting is not None:
        most = int(settings.get("draft_tokens", drafting.tokens))
        if most < drafting.tokens:
            combination = replace(combination, drafting=replace(drafting, tokens=most))
    return combination


def unbound(
    site: Site,
    served: Combination,
    drafting: Drafting | None,
    max_model_len: int,
    settings: dict[str, Scalar],
) -> dict[str, int]:
    """Context and draft of a plan of `max_model_len` as they would be if no hazard bounded them:
    more than a bound that was reached, however much that is."""
    reached = site.want.max_model_len is None and max_model_len == settings.get("max_model_len")
    more = int(reached and max_model_len < served.model.max_context_tokens)
    found = {"max_model_len": max_model_len + more}
    if drafting is not None:
        found["draft_tokens"] = drafting.tokens
    return found
