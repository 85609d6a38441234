"""`gpuwright fits`: everything in the catalogue that a node can serve, best first."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from gpuwright.catalogue import resolve
from gpuwright.cli import EXIT_OK, EXIT_REFUSED
from gpuwright.decision_json import decision_as_data
from gpuwright.plan import Plan, Rejection
from gpuwright.question import (
    Question,
    add_host_options,
    add_want_options,
    explain_node,
    read_question,
)
from gpuwright.ranking import between_models
from gpuwright.refusals import GIB, Refusal
from gpuwright.selection import decide
from gpuwright.want import Want

_OF_ONE_MODEL = dict.fromkeys(("model", "checkpoint"), "not for fits, which asks of every model")
_GIB = " GiB"
_COLUMNS = (
    "model",
    "checkpoint",
    "engine",
    "cards",
    "attention",
    "cache",
    "context",
    "at once",
    "memory of each",
    "notes",
)


def configure(parser: argparse.ArgumentParser) -> None:
    add_host_options(parser)
    add_want_options(parser)
    parser.add_argument("--json", action="store_true", help="all decisions as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print a table of the plans and a line for each refusal; 3 where nothing fits."""
    (want,), question = read_question(arguments, without=_OF_ONE_MODEL)
    plans, refusals = decide_all(question, want)
    if arguments.json:
        sys.stdout.write(json.dumps(_as_data(question, want, plans, refusals), indent=2) + "\n")
    else:
        sys.stdout.write("\n".join(_text(question, plans, refusals)) + "\n")
    return EXIT_OK if plans else EXIT_REFUSED


def decide_all(question: Question, want: Want) -> tuple[list[Plan], list[Refusal]]:
    """A decision for each model of the catalogue: plans in the order that `auto` prefers them in,
    refusals in the catalogue's."""
    plans: list[Plan] = []
    refusals: list[Refusal] = []
    workload = resolve("workload", question.matrix.workloads, want.workload)
    for model in question.matrix.models:
        decision = decide(question.host, replace(want, model=model.id), question.matrix)
        if isinstance(decision, Plan):
            plans.append(decision)
        else:
            refusals.append(decision)
    plans.sort(key=lambda plan: between_models(plan.rank, plan.max_model_len, workload))
    return plans, refusals


def _as_data(
    question: Question, want: Want, plans: Iterable[Plan], refusals: Iterable[Refusal]
) -> dict[str, Any]:
    return {
        "workload": want.workload,
        "assumed": list(question.assumed),
        "plans": [decision_as_data(plan, want, question.assumed) for plan in plans],
        "refusals": [decision_as_data(refusal, want, question.assumed) for refusal in refusals],
    }


def _text(question: Question, plans: Sequence[Plan], refusals: Sequence[Refusal]) -> Iterator[str]:
    yield explain_node(question)
    yield ""
    if plans:
        yield from table([_COLUMNS, *(tuple(_cells(plan)) for plan in plans)])
    else:
        yield "nothing fits"
    notes = dict.fromkeys(plan.not_applicable for plan in plans if plan.not_applicable)
    if refusals:
        yield ""
        yield "refused"
    said: dict[str, list[str]] = {}
    for refusal in refusals:
        said.setdefault(_gist(refusal), []).append(refusal.model)
    for gist, models in said.items():
        yield f"  {', '.join(models)}: {gist}"
    for number, note in enumerate(notes, 1):
        if number == 1:
            yield ""
            yield "not yet"
        yield f"  - {note}"


def _cells(plan: Plan) -> Iterator[str]:
    yield plan.model
    yield plan.checkpoint.removeprefix(f"{plan.model}-")
    yield f"{plan.engine} {plan.release} {plan.build_tag}"
    yield "+".join(str(gpu.index) for gpu in plan.gpus) or "CPU"
    yield plan.attention_backend
    yield plan.kv_cache_dtype
    yield f"{plan.max_model_len:,}"
    yield str(plan.max_num_seqs)
    yield f"{plan.memory.needed_bytes / GIB:.1f} of {plan.memory.available_bytes / GIB:.1f} GiB"
    yield ", ".join(_notes(plan))


def _notes(plan: Plan) -> Iterator[str]:
    if plan.speculation is not None:
        yield f"{plan.speculation.method} {plan.speculation.tokens}"
    if plan.not_applicable is not None:
        yield "not yet"
    if count := len(plan.warnings):
        yield f"{count} warning" + "s" * (count > 1)
    if plan.assumed:
        yield f"{len(plan.assumed)} assumed"


def _gist(refusal: Refusal) -> str:
    """One reason of a refusal: of the node's, or of the candidate that stands nearest."""
    if not refusal.why_not:
        return "; ".join(refusal.reasons)
    short = [each for each in refusal.why_not if (each.needed or "").endswith(_GIB)]
    named = [each for each in refusal.why_not if "," in each.candidate]
    nearest = min(short, key=_needed_gib, default=(named or refusal.why_not)[0])
    return f"{nearest.candidate}: {nearest.reason}"


def _needed_gib(rejection: Rejection) -> float:
    return float((rejection.needed or "").removesuffix(_GIB))


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows as aligned columns, the last as wide as it is."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        yield "  ".join(cells).rstrip()
