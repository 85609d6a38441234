"""Puts the questions of a report to the decision and compares the answers."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpuwright.host import Host
from gpuwright.load import load_matrix
from gpuwright.plan import Plan
from gpuwright.refusals import HostError, Refusal, WantError
from gpuwright.selection import decide
from gpuwright.sketch import read_sketch
from gpuwright.versions import at_least
from gpuwright.want import Want
from tests.cases.verdicts import Ask, Must, Verdict

_OF_PARAMETERS = {"max_num_batched_tokens": ("max_num_batched_tokens", "chunked_prefill_tokens")}
"""Pins that a plan keeps among its parameters, by the names that they have there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What we say to one question, and how it misses what it must be; None: it agrees."""

    text: str
    miss: str | None


def answers(verdict: Verdict) -> list[Answer]:
    """Our answer to each question of a report, in order."""
    return [_answer(verdict, ask) for ask in verdict.asks]


def agrees(verdict: Verdict) -> bool:
    return all(answer.miss is None for answer in answers(verdict))


def question(verdict: Verdict, ask: Ask) -> tuple[Host, Want]:
    """The node and the want that a question is about."""
    document, _ = read_sketch({**verdict.host, **ask.host}, load_matrix())
    data = {key: value for key, value in verdict.want.items() if key not in ask.open}
    return Host.from_document(_over(document, verdict.node)), Want.from_data(data | ask.changes)


def _over(document: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(copy.deepcopy(document))
    for key, value in more.items():
        merged[key] = _over(merged[key], value) if isinstance(value, Mapping) else value
    return merged


def _answer(verdict: Verdict, ask: Ask) -> Answer:
    try:
        host, want = question(verdict, ask)
        decision = decide(host, want, load_matrix())
    except (WantError, HostError) as error:
        text = f"not understood: {error}"
        return Answer(text=text, miss=text)
    misses = [next(_misses(decision, must, want), None) for must in ask.musts]
    miss = None if None in misses else "; or ".join(str(each) for each in misses)
    return Answer(text=_text(decision), miss=miss)


def _text(decision: Plan | Refusal) -> str:
    if isinstance(decision, Refusal):
        return f"refused: {decision.reasons[0] if decision.reasons else decision.summary}"
    cards = f"{len(decision.gpus)} x {decision.gpus[0].name}" if decision.gpus else "the CPU"
    text = (
        f"{decision.engine} {decision.release} {decision.build_tag}, {decision.checkpoint} on "
        f"{cards}, {decision.kv_cache_dtype} cache, {decision.max_model_len:,} tokens, "
        f"{decision.max_num_seqs} at once"
    )
    if decision.speculation is not None:
        text += f", {decision.speculation.method}:{decision.speculation.tokens}"
    return text


def _misses(decision: Plan | Refusal, must: Must, want: Want) -> Iterator[str]:
    """Ways in which a decision is not what it must be."""
    if must.refused is not None:
        if isinstance(decision, Plan):
            yield f"planned: {_text(decision)}"
        else:
            said = [*decision.reasons, *decision.remedies]
            said += [each.row for each in decision.why_not if each.row is not None]
            if not any(re.search(must.refused, text, re.IGNORECASE) for text in said):
                yield f"refused for another reason: {'; '.join(decision.reasons[:3])}"
        return
    if isinstance(decision, Refusal):
        yield f"refused: {'; '.join(decision.reasons[:3])}"
        return
    yield from _broken_pins(decision, want)
    for name, condition in (must.plan or {}).items():
        found = _field(decision, name)
        if not _holds(name, found, condition):
            yield f"{name} is {found}, where {condition} is called for"
    named = {warning.hazard for warning in decision.warnings} - {None}
    if must.warns and not named & set(must.warns):
        said = ", ".join(sorted(str(each) for each in named)) or "nothing"
        yield f"warns of {said}, where {' or '.join(must.warns)} is called for"


def _broken_pins(plan: Plan, want: Want) -> Iterator[str]:
    """Pins that a plan does not keep: it has to keep them, or there is no plan."""
    dtypes = load_matrix().kv_cache_dtypes
    for name in (
        *("engine", "release", "build_tag", "checkpoint", "attention_backend", "kv_cache_dtype"),
        *("max_model_len", "max_num_seqs", "max_num_batched_tokens", "tensor_parallel_size"),
        "prefix_caching",
    ):
        wanted, found = getattr(want, name), _field(plan, name)
        if name == "kv_cache_dtype" and wanted is not None:
            wanted = next(row.id for row in dtypes if wanted in (row.id, *row.aliases))
        elif name == "attention_backend" and wanted is not None:
            rows = load_matrix().backends(plan.engine)
            wanted = next(row.backend for row in rows if wanted in (row.backend, *row.aliases))
        if wanted is not None and found != wanted:
            yield f"{name} is {found}, where {wanted} was pinned"
    if want.gpus and len(plan.gpus) != len(want.gpus):
        yield f"{len(plan.gpus)} cards, where {len(want.gpus)} were pinned"
    if want.speculative is not None and want.speculative.method is not None:
        pinned, found = want.speculative, plan.speculation
        if found is None:
            yield f"no draft, where {pinned.method} was pinned"
        elif pinned.tokens is not None and found.tokens != pinned.tokens:
            yield f"{found.tokens} draft tokens, where {pinned.tokens} were pinned"


def _field(plan: Plan, name: str) -> Any:
    if name == "cards":
        return len(plan.gpus)
    if name == "expert_offload":
        return "expert-offload" in plan.features
    if name == "own_compiler":
        row = load_matrix().engine_release(plan.engine, plan.release).environment
        return row is not None and row.toolkit is not None
    if name == "speculative":
        return None if plan.speculation is None else plan.speculation.method
    if name in plan.__slots__:
        return getattr(plan, name)
    for key in _OF_PARAMETERS.get(name, (name,)):
        if key in plan.parameters:
            return plan.parameters[key]
    return None


def _holds(name: str, found: Any, condition: Any) -> bool:
    if isinstance(condition, list):
        return found in condition
    if not isinstance(condition, Mapping):
        return bool(found == condition)
    assert set(condition) <= {"least", "most"}, condition
    if found is None:
        return False
    if name == "release":
        return at_least(found, condition["least"])
    least, most = condition.get("least", 0), condition.get("most", float("inf"))
    return bool(least <= float(found) <= most)
