"""Arguments that switch the features of a candidate on or off, with their places filled."""

from __future__ import annotations

from collections.abc import Iterator

from gpuwright.adapters import lora_rank
from gpuwright.feature_choice import VISION
from gpuwright.feature_rows import FeatureSupport
from gpuwright.features import filled, support_of
from gpuwright.fitting import Candidate
from gpuwright.site import Site
from gpuwright.want import Want


def feature_arguments(site: Site, best: Candidate) -> Iterator[str]:
    """Arguments that switch features on or off, in the rows' order."""
    chosen = best.combination
    for row in site.matrix.features:
        support = support_of(row, chosen.release, chosen.model, chosen.capability)
        if not isinstance(support, FeatureSupport):
            continue
        if row.id in chosen.features:
            yield from filled(
                _with_adapters(support.arguments, site.want), _words(site, best, support)
            )
        elif row.id != VISION or chosen.model.architecture.vision:
            yield from support.off_arguments
    yield from chosen.model.arguments.get(chosen.release.engine, ())


def _with_adapters(arguments: tuple[str, ...], want: Want) -> Iterator[str]:
    """`{lora_pairs}` is one word for each adapter."""
    for word in arguments:
        if word == "{lora_pairs}":
            yield from (f"{name}={path}" for name, path in (want.lora or {}).items())
        else:
            yield word


def _words(site: Site, best: Candidate, support: FeatureSupport) -> dict[str, str]:
    """What stands for the placeholders; paths of drafters and projectors are launch's to know."""
    chosen = best.combination
    parsers = chosen.model.parsers.get(chosen.release.engine, {})
    words = {f"{kind}_parser": parser for kind, parser in parsers.items()}
    if chosen.drafting is not None:
        words["tokens"] = str(chosen.drafting.tokens)
        words["draft_tokens"] = str(chosen.drafting.tokens + 1)
    if support.words:
        words["grammar"] = site.want.structured_output or support.words[0]
    words |= _brought(site)
    if best.layers_in_ram:
        words["layers"] = str(best.layers_in_ram)
    return words


def _brought(site: Site) -> dict[str, str]:
    """Placeholders of what the operator brings."""
    want = site.want
    adapters = want.lora or {}
    return {
        "images": str(want.images_per_prompt or 1),
        "chat_template": want.chat_template or "",
        "adapters": str(len(adapters)),
        # Requests without an adapter take a place of the batch, too.
        "adapters_and_none": str(len(adapters) + 1),
        "lora_rank": str(lora_rank(want, site.host.named)),
        "lora_files": ",".join(adapters.values()),
    }
