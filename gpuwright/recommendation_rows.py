"""Rows about a published matrix of kernels and engines: what became of each of its claims."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from gpuwright.feature_rows import Grade
from gpuwright.load import MATRIX
from gpuwright.refusals import MatrixError
from gpuwright.rows import Claim, Scalar
from gpuwright.strict import read_row, read_yaml


class Table(StrEnum):
    """Where in the page a claim stands."""

    PHILOSOPHY = "kernel selection philosophy"
    KERNELS = "core modern kernels"
    KV_CACHE = "kv cache impact"
    ENGINES = "engine support matrix"
    ROUTING = "primary routing guidance"
    TIPS = "3090-specific tips"


class Verdict(StrEnum):
    KEPT = "kept"
    NARROWED = "narrowed"
    REPLACED = "replaced"


@dataclass(frozen=True, kw_only=True, slots=True)
class Expect:
    """What a decision answers; of a list, any one word. What is not said may be anything."""

    engine: tuple[str, ...] = ()
    attention_backend: tuple[str, ...] = ()
    kv_cache_dtype: tuple[str, ...] = ()
    quantization: tuple[str, ...] = ()
    speculation: tuple[str, ...] = ()
    warns: tuple[str, ...] = ()
    """Hazards, each of which is warned about."""
    parameters: dict[str, Scalar] = field(default_factory=dict)
    refused: str | None = None
    """Part of a reason: there is no plan."""
    unknown: str | None = None
    """Part of what is said of a word that the engine does not have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One question to the decision, or to the rows of features or attention backends."""

    gpus: tuple[str, ...] = ()
    node: dict[str, str] = field(default_factory=dict)
    """What else a sketch says of the node."""
    want: dict[str, Scalar] = field(default_factory=dict)
    expect: Expect = field(default_factory=Expect)
    beside: dict[str, Scalar] = field(default_factory=dict)
    """A second want, whose plan is compared with that of the first."""
    equal: tuple[str, ...] = ()
    """Figures of memory that are the same in both plans."""
    fewer: tuple[str, ...] = ()
    """Those of which the first plan has fewer."""
    feature: str | None = None
    engine: str | None = None
    model: str | None = None
    grade: Grade | None = None
    backend: str | None = None
    capability: str | None = None
    version: int | None = None
    """Of the kernels that the backend runs with head size 128."""

    def faults(self) -> Iterator[str]:
        asks = [bool(self.gpus), self.feature is not None, self.backend is not None]
        if sum(asks) != 1:
            yield ": asks one of gpus, feature and backend"
        if (self.feature is not None) != (self.grade is not None and self.engine is not None):
            yield ".grade: stands with engine exactly where feature does"
        if (self.backend is not None) != (self.version is not None and self.capability is not None):
            yield ".version: stands with capability exactly where backend does"
        if bool(self.beside) != bool(self.equal or self.fewer):
            yield ".beside: stands exactly where equal or fewer does"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RecommendationRow:
    id: str
    table: Table
    claim: str
    verdict: Verdict
    because: str
    sources: tuple[Claim, ...]
    checks: tuple[Check, ...]

    def faults(self) -> Iterator[str]:
        if not self.checks:
            yield ".checks: empty"
        if not self.sources:
            yield ".sources: empty"
        for index, claim in enumerate(self.sources):
            for key in claim.covers:
                if key not in ("claim", "because", "checks"):
                    yield f".sources[{index}].covers: the row has no key {key!r}"


FILE = MATRIX / "recommendations.yaml"


def load_recommendations(path: Path = FILE) -> tuple[RecommendationRow, ...]:
    """Every row, read as strictly as the matrix; apart from it, since no decision needs them."""
    faults: list[str] = []
    data = read_yaml(path, path.name, faults)
    rows = [
        read_row(RecommendationRow, entry, f"{path.name}[{index}]", faults)
        for index, entry in enumerate(data if isinstance(data, list) else ())
    ]
    named = [row.id for row in rows if row is not None]
    faults += [
        f"{path.name}: id {name!r} stands twice" for name in {*named} if named.count(name) > 1
    ]
    if faults or not rows:
        raise MatrixError(*(faults or [f"{path.name}: needs a list of rows"]))
    return tuple(rows)
