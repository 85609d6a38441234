"""Which features a combination uses: what its workload and pins ask for, and what excludes what."""

from __future__ import annotations

from gpuwright import model_rules
from gpuwright.attention_rows import AttentionBackendRow
from gpuwright.feature_rows import FeatureSupport
from gpuwright.features import excluded, support_of
from gpuwright.refusals import Needs, Reason
from gpuwright.remedies import Remedy
from gpuwright.rows import KvCacheDtypeRow
from gpuwright.site import Combination, Site

PREFIX_CACHING, VISION, OFFLOAD = "prefix-caching", "vision", "expert-offload"
CHAT_TEMPLATE, LORA = "chat-template", "lora"
STRUCTURED_OUTPUT, TOOLS, REASONING = "structured-output", "tool-calls", "reasoning"
_PARSERS = (("{tool_parser}", "tool"), ("{reasoning_parser}", "reasoning"))


def features_of(site: Site, combination: Combination) -> frozenset[str] | Reason:
    """Ids of the features that the combination would use, or why a pinned one cannot be."""
    want, workload = site.want, site.pins.workload
    parsers = combination.model.parsers.get(combination.release.engine, {})
    wanted = {
        PREFIX_CACHING: workload.prefix_caching
        if want.prefix_caching is None
        else want.prefix_caching,
        VISION: want.vision,
        CHAT_TEMPLATE: want.chat_template is not None,
        LORA: want.lora is not None,
        STRUCTURED_OUTPUT: workload.structured_output or want.structured_output is not None,
        TOOLS: True,
        REASONING: True,
    }
    pinned = {
        PREFIX_CACHING: want.prefix_caching is True,
        VISION: want.vision,
        CHAT_TEMPLATE: want.chat_template is not None,
        LORA: want.lora is not None,
        STRUCTURED_OUTPUT: want.structured_output is not None,
    }
    found = {combination.drafting.row.id} if combination.drafting is not None else set()
    for name, asked in wanted.items():
        if not asked:
            continue
        row = site.matrix.feature(name)
        answer = support_of(row, combination.release, combination.model, combination.capability)
        if isinstance(answer, FeatureSupport):
            if not (want.chat_template or "").endswith(answer.suffix):
                return _misnamed(site, combination, answer)
            # A parser that nobody has named for the model is not asked for.
            if all(word not in answer.arguments or kind in parsers for word, kind in _PARSERS):
                found.add(name)
        elif pinned.get(name):
            return answer
    if want.vision:
        reason = model_rules.images(combination.model, combination.release, site.matrix)
        reason = reason or _uncounted_images(site, combination)
        if reason is not None:
            return reason
    if want.structured_output is not None:
        return _grammar(site, combination, found)
    return frozenset(found)


def _uncounted_images(site: Site, combination: Combination) -> Reason | None:
    """A limit is kept by an engine that is told of it."""
    release, row = combination.release, site.matrix.feature(VISION)
    support = support_of(row, release, combination.model, combination.capability)
    if site.want.images_per_prompt is None or not isinstance(support, FeatureSupport):
        return None
    if support.says("images"):
        return None
    return Needs(
        subject="images_per_prompt",
        needed="an engine that limits the images of a prompt",
        found=f"{release.engine} {release.release}, which takes as many as the context holds",
        help=Remedy(
            words="`images_per_prompt` left out: the context is the limit",
            want=(("images_per_prompt", None),),
        ),
        row=row.id,
    )


def _misnamed(site: Site, combination: Combination, support: FeatureSupport) -> Reason:
    release = combination.release
    return Needs(
        subject=f"{CHAT_TEMPLATE} under {release.engine} {release.release}",
        needed=f"a file whose name ends with {support.suffix}",
        found=str(site.want.chat_template),
        row=CHAT_TEMPLATE,
    )


def _grammar(site: Site, combination: Combination, found: set[str]) -> frozenset[str] | Reason:
    row = site.matrix.feature(STRUCTURED_OUTPUT)
    support = support_of(row, combination.release, combination.model, combination.capability)
    if not isinstance(support, FeatureSupport):
        return support
    if support.words and site.want.structured_output in support.words:
        return frozenset(found)
    return Needs(
        subject=f"structured output of {combination.release.engine}",
        needed=" or ".join(support.words) or "its own grammars, without a name",
        found=str(site.want.structured_output),
        row=row.id,
    )


def exclusion(
    site: Site, combination: Combination, kv: KvCacheDtypeRow, backend: AttentionBackendRow
) -> Reason | None:
    """Why the features in use cannot stand beside one another, the cache or the backend."""
    for row in site.matrix.features:
        if row.id in combination.features and row.excludes:
            reason = excluded(
                row,
                release=combination.release,
                family=combination.model.family,
                features=combination.features - {row.id},
                kv_cache_dtype=kv.id,
                backend=backend.backend,
            )
            if reason is not None:
                return reason
    return None
