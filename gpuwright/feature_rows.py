"""Rows about features: what each engine's release offers, with which arguments, beside what."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from gpuwright.rows import Claim


class FeatureKind(StrEnum):
    SPECULATION = "speculation"
    CACHE = "cache"
    OUTPUT = "output"
    INPUT = "input"
    OFFLOAD = "offload"


class Grade(StrEnum):
    """How far an engine carries a feature; `none` says why in `because`."""

    FULL = "full"
    LIMITED = "limited"
    NONE = "none"


class Draft(StrEnum):
    """Where a speculation's draft comes from."""

    HEAD = "head"
    """Layers inside the model's own weights."""
    DRAFTER = "drafter"
    """A checkpoint of its own, made for the model."""
    PROMPT = "prompt"
    """What stands in the context already."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FeatureSupport:
    """What one engine has of a feature, in a range of its releases.

    `arguments` switch it on and `off_arguments` off; an engine that has it without being told needs
    none. Placeholders: `{tokens}`, `{draft_tokens}` (one more), `{drafter}`, `{projector}`,
    `{tool_parser}`, `{reasoning_parser}`, `{grammar}`, `{layers}`, and what an operator brings:
    `{images}`, `{chat_template}`, `{adapters}`, `{adapters_and_none}`, `{lora_rank}`,
    `{lora_files}`; `{lora_pairs}` becomes several words.
    """

    grade: Grade
    releases: str = ""
    capabilities: str = ""
    models: tuple[str, ...] = ()
    """Where named, it is there for these models or families alone."""
    not_models: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    off_arguments: tuple[str, ...] = ()
    draft: Draft | None = None
    """Where the draft comes from, if not from where the row says."""
    words: tuple[str, ...] = ()
    """What `{grammar}` may be, the first where nobody says which."""
    suffix: str = ""
    """How the operator's file must be called at its end."""
    tokens: int = 0
    """Draft tokens at a time, where nobody says how many."""
    because: str = ""

    def says(self, *placeholders: str) -> bool:
        """Whether the engine is told one of them."""
        return any(f"{{{each}}}" in word for word in self.arguments for each in placeholders)

    def faults(self) -> Iterator[str]:
        if self.grade is not Grade.FULL and not self.because:
            yield ".because: a grade below full needs it"


@dataclass(frozen=True, kw_only=True, slots=True)
class Exclusion:
    """A feature, cache dtype or attention backend that cannot stand beside the row's feature."""

    because: str
    engines: tuple[str, ...] = ()
    releases: str = ""
    features: tuple[str, ...] = ()
    kv_cache_dtypes: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    families: tuple[str, ...] = ()

    def faults(self) -> Iterator[str]:
        if not (self.features or self.kv_cache_dtypes or self.backends):
            yield ": names neither features nor kv_cache_dtypes nor backends"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FeatureRow:
    id: str
    name: str
    kind: FeatureKind
    aliases: tuple[str, ...]
    says: str
    engines: dict[str, tuple[FeatureSupport, ...]]
    """Engine -> what it has; the first entry whose releases, capabilities and models fit counts."""
    sources: tuple[Claim, ...]
    draft: Draft | None = None
    drafters: tuple[str, ...] = ()
    """Methods of drafters that serve it."""
    excludes: tuple[Exclusion, ...] = ()
    unknown: dict[str, str] = field(default_factory=dict)

    def faults(self) -> Iterator[str]:
        if (self.kind is FeatureKind.SPECULATION) != (self.draft is not None):
            yield ".draft: stands exactly where kind is speculation"
