"""What each workload asks for and prefers."""

from __future__ import annotations

from gpuwright.catalogue import Matrix
from gpuwright.rows import Preference, Route, WorkloadRow
from tools.pages.markdown import code, page, sources, span, table, tokens


def render(matrix: Matrix) -> str:
    return page(
        "Workloads",
        "What a service is for decides how much context is enough, how many requests it serves at "
        "once, whether tokens are drafted, and which engine comes first among those that fit.",
        table(
            (
                "workload",
                "for",
                "context",
                "at once",
                "tokens a step",
                "drafts, best first",
                "prefix cache",
                "schema",
                "asks for",
                "prefers, after the engine",
            ),
            (_cells(row) for row in matrix.workloads),
        ),
        *(_workload(row) for row in matrix.workloads),
    )


def _cells(row: WorkloadRow) -> tuple[str, ...]:
    return (
        row.id,
        row.says,
        tokens(row.context_tokens),
        str(row.max_num_seqs),
        str(row.max_num_batched_tokens),
        ", ".join(row.speculation) or "none",
        "on" if row.prefix_caching else "off",
        "held to one" if row.structured_output else "",
        _asked(row),
        ", ".join(_preferred(row, each) for each in row.prefer),
    )


def _preferred(row: WorkloadRow, preference: Preference) -> str:
    paced = preference is Preference.PACE
    return f"{preference} ({row.wished_tokens_per_second} tokens a second)" if paced else preference


def _asked(row: WorkloadRow) -> str:
    """What a plan had better have, whatever the model."""
    floor, requests = row.least_tokens_per_second, row.least_num_seqs
    words = [*row.asks]
    words += [f"{floor} tokens a second for one request"] if floor else []
    words += [f"{requests} requests at once"] if requests > 1 else []
    return ", ".join(words)


def _workload(row: WorkloadRow) -> str:
    return "\n\n".join(
        (
            f"## {row.id}",
            f"Also {code(row.aliases)}." if row.aliases else "",
            table(
                ("where", "engines in this order", "because"),
                ((_where(route), ", ".join(route.order), route.because) for route in row.routes),
            ),
            f"Sources: {sources(row.sources)}",
        )
    ).replace("\n\n\n\n", "\n\n")


def _where(route: Route) -> str:
    found = ["on the CPU"] if route.device == "cpu" else []
    if route.capabilities:
        found.append(f"compute capability {span(route.capabilities)}")
    if route.hybrid is not None:
        found.append("models " + ("with" if route.hybrid else "without") + " linear attention")
    return ", ".join(found) or "everywhere else"
