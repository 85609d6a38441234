"""What each engine has of each feature, with its exact arguments, and what excludes what."""

from __future__ import annotations

from collections.abc import Iterator

from gpuwright.catalogue import Matrix
from gpuwright.feature_rows import Exclusion, FeatureRow, FeatureSupport, Grade
from tools.pages.markdown import code, page, sources, span, table

_GRADES = {Grade.FULL: "yes", Grade.LIMITED: "partly", Grade.NONE: "no"}


def render(matrix: Matrix) -> str:
    engines = matrix.engines
    return page(
        "Features of engines",
        "What each engine has, whatever the card; which arguments say so, and beside what it "
        "cannot stand. Where grades differ by release, card or model, the first is the newest's.",
        table(
            ("feature", "what it does", *engines),
            (
                (row.name, row.says, *(_grades(row, engine) for engine in engines))
                for row in matrix.features
            ),
        ),
        *(_feature(row) for row in matrix.features),
    )


def _grades(row: FeatureRow, engine: str) -> str:
    entries = row.engines.get(engine, ())
    return " / ".join(dict.fromkeys(_GRADES[entry.grade] for entry in entries)) or "no row"


def _feature(row: FeatureRow) -> str:
    parts = [
        f"## {row.name}",
        f"`{row.id}`" + (f", also {code(row.aliases)}" if row.aliases else "") + f": {row.says}.",
        table(
            ("engine", "where", "", "arguments, or why not"),
            (
                (engine, _where(entry), _GRADES[entry.grade], _how(entry))
                for engine, entries in row.engines.items()
                for entry in entries
            ),
        ),
        "\n".join(f"- {each}" for each in _exclusions(row)),
        f"Sources: {sources(row.sources)}",
    ]
    return "\n\n".join(part for part in parts if part)


def _where(entry: FeatureSupport) -> str:
    found = []
    if entry.releases:
        found.append(f"releases {span(entry.releases)}")
    if entry.capabilities:
        found.append(f"compute capability {span(entry.capabilities)}")
    if entry.models:
        found.append(", ".join(entry.models))
    if entry.not_models:
        found.append(f"not {', '.join(entry.not_models)}")
    return "; ".join(found) or "everywhere"


def _how(entry: FeatureSupport) -> str:
    found = []
    if entry.arguments:
        found.append(f"`{' '.join(entry.arguments)}`")
    if entry.off_arguments:
        found.append(f"off: `{' '.join(entry.off_arguments)}`")
    if entry.words:
        found.append(f"one of {', '.join(entry.words)}")
    if entry.tokens:
        found.append(f"{entry.tokens} tokens at a time")
    if entry.because:
        found.append(entry.because)
    return "; ".join(found) or "without being told"


def _exclusions(row: FeatureRow) -> Iterator[str]:
    for rule in row.excludes:
        yield f"Not beside {_beside(rule)}: {rule.because}."


def _beside(rule: Exclusion) -> str:
    found = [*rule.features]
    if rule.kv_cache_dtypes:
        found.append(f"a cache in {' or '.join(rule.kv_cache_dtypes)}")
    if rule.backends:
        found.append(f"attention backend {' or '.join(rule.backends)}")
    text = " or ".join(found)
    if rule.engines:
        text += f" under {' or '.join(rule.engines)}"
    if rule.releases:
        text += f" {span(rule.releases)}"
    return text + (f" for {', '.join(rule.families)}" if rule.families else "")
