"""docs/evidence.md: what people reported of real rigs, and what we decide there.

`python -m tools.evidence` writes it from the handed reports; a test holds page and decisions equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tests.cases import evidence
from tests.cases.judge import Answer, answers
from tests.cases.verdicts import Ask, Must, Verdict, verdicts
from tools.pages.markdown import table

PAGE = Path(__file__).parent.parent / "docs" / "evidence.md"
_TITLE = "# What people reported, and what we decide"
_SAYS = """\
`tests/cases/` puts public reports of real rigs to the decision and compares its answer with what
the report calls for. How each is put as a question, and which fields of the plan its verdict fixes,
stands in `tests/cases/verdicts.yaml`. Written by `python -m tools.evidence`; each report links to
where it stands."""
_POOLS = """\
A printed GiB is rounded and stands for every pool within 0.005 of it: a figure is reproduced where
one of these gives it to the token. A report without a printed pool proves nothing of the
arithmetic."""
_WORDS = {
    "fit": "fits",
    "fit_with_changes": "fits with a change",
    "no_fit": "does not fit",
    "refuse": "refuse",
    "choose_other_engine": "another engine",
    "choose_other_quant": "another checkpoint",
}
_ENDS = {"least": "at least", "most": "at most"}


def render() -> str:
    """The page, from the reports, their questions and the decision."""
    everything = list(verdicts().values())
    asked = [each for each in everything if each.uncovered is None]
    rows = [_row(each, answers(each)) for each in asked]
    agreed = sum(row[-1] == "agrees" for row in rows)
    count = (
        f"Of {len(everything)} reports {len(asked)} are covered, as their model and engine have "
        f"rows. We agree with {agreed} of these: {agreed / len(asked):.1%}."
    )
    parts = (
        _TITLE,
        _SAYS,
        count,
        "## Covered",
        table(("report", "calls for", "so it must be", "our answer", ""), rows),
        "## Not covered",
        table(
            ("report", "calls for", "why it is no question to our rows"),
            [
                (_linked(each.case), _called_for(each), each.uncovered)
                for each in everything
                if each.uncovered is not None
            ],
        ),
        "## Printed pools",
        _POOLS,
        table(("report", "printed, and reproduced"), _printed(everything)),
        table(
            ("report", "why it has none"),
            [(each.case, each.pool) for each in everything if isinstance(each.pool, str)],
        ),
    )
    return "\n\n".join(parts) + "\n"


def _row(verdict: Verdict, replies: Sequence[Answer]) -> tuple[str, ...]:
    texts = "<br>".join(dict.fromkeys(reply.text for reply in replies))
    agrees = all(reply.miss is None for reply in replies)
    end = "agrees" if agrees else f"differs: {verdict.differs}"
    return _linked(verdict.case), _called_for(verdict), _fixed(verdict), texts, end


def _linked(case: str) -> str:
    source = evidence.cases()[case].source
    return f"[{case}]({source})" if source.startswith("https://") else case


def _called_for(verdict: Verdict) -> str:
    return _WORDS[evidence.cases()[verdict.case].verdict]


def _fixed(verdict: Verdict) -> str:
    """What must hold of our answers, one line for each question."""
    return "<br>".join(
        " or ".join(_must(must) for must in ask.musts) + _asked(ask) for ask in verdict.asks
    )


def _asked(ask: Ask) -> str:
    """How a question differs from what was run."""
    changes = [f"{key} open" for key in ask.open if key not in ask.changes]
    changes += [f"{key} {value}" for key, value in {**ask.changes, **ask.host}.items()]
    return f" ({', '.join(changes)})" if changes else ""


def _must(must: Must) -> str:
    if must.refused is not None:
        return "refused"
    fields = [f"{key} {_range(value)}" for key, value in (must.plan or {}).items()]
    fields += [f"warned of {' or '.join(must.warns)}"] if must.warns else []
    return ", ".join(fields) or "planned"


def _range(value: object) -> str:
    if isinstance(value, Mapping):
        ends = [f"{word} {_shown(value[key])}" for key, word in _ENDS.items() if key in value]
        return " and ".join(ends)
    if isinstance(value, list):
        return " or ".join(str(each) for each in value)
    return "not set" if value is None else _shown(value)


def _printed(everything: Iterable[Verdict]) -> list[tuple[str, str]]:
    return [
        (each.case, ", ".join(f"{key} {_shown(value)}" for key, value in printed.items()))
        for each in everything
        if not isinstance(each.pool, str)
        for printed in each.pool
    ]


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
