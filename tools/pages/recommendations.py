"""What became of each claim of a published matrix of kernels and engines."""

from __future__ import annotations

from collections import Counter

from gpuwright.catalogue import Matrix
from gpuwright.recommendation_rows import RecommendationRow, Table, load_recommendations
from tools.pages.markdown import page, sources, table


def render(_matrix: Matrix) -> str:
    rows = load_recommendations()
    counts = Counter(row.verdict for row in rows)
    said = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    return page(
        "Recommendations, then and now",
        f"{len(rows)} claims of a matrix that was published in May 2026: {said}. Each is put to "
        "the decision or to the rows by `tests/unit/test_recommendations.py`, so that what stands "
        "here is what is decided.",
        *(_part(part, [row for row in rows if row.table is part]) for part in Table),
    )


def _part(part: Table, rows: list[RecommendationRow]) -> str:
    if not rows:
        return ""
    return f"## {part.capitalize()}\n\n" + table(
        ("claim", "verdict", "because", "sources"),
        ((row.claim, f"**{row.verdict}**", row.because, sources(row.sources)) for row in rows),
    )
