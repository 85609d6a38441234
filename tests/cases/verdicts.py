"""What must hold of our answer for each report, read from verdicts.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).parent / "verdicts.yaml"
_KEYS = {"case", "host", "node", "want", "asks", "pool", "uncovered", "differs", "note"}
_ASK_KEYS = {"open", "with", "host", "must"}
_MUST_KEYS = {"plan", "warns", "refused"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Must:
    """One answer that agrees: a plan with these fields and warnings, or a refusal that says so."""

    plan: Mapping[str, Any] | None = None
    warns: tuple[str, ...] = ()
    """Hazards of which the plan names one."""
    refused: str | None = None
    """A pattern that one of the reasons holds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """A question to the decision: the report's want with some pins opened or changed.

    `musts` are answers any of which agrees.
    """

    open: tuple[str, ...]
    changes: Mapping[str, Any]
    host: Mapping[str, Any]
    musts: tuple[Must, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """A report as a node and a want, and what our answers must be."""

    case: str
    host: Mapping[str, Any]
    node: Mapping[str, Any]
    """What a sketch cannot say, put over the node document."""
    want: Mapping[str, Any]
    asks: tuple[Ask, ...]
    pool: tuple[Mapping[str, Any], ...] | str
    uncovered: str | None
    differs: str | None
    """Why our answer is another one, where it is."""


@cache
def verdicts() -> dict[str, Verdict]:
    """All of them by case, in the file's order; ValueError where the file is not as it must be."""
    data = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    found: dict[str, Verdict] = {}
    for entry in data:
        verdict = _verdict(entry)
        if verdict.case in found:
            raise ValueError(f"{verdict.case}: stands twice")
        found[verdict.case] = verdict
    return found


def _verdict(entry: dict[str, Any]) -> Verdict:
    name = entry["case"]
    if unknown := set(entry) - _KEYS:
        raise ValueError(f"{name}: unknown keys {sorted(unknown)}")
    if ("uncovered" in entry) == ("want" in entry):
        raise ValueError(f"{name}: needs exactly one of want and uncovered")
    pool = entry["pool"]
    return Verdict(
        case=name,
        host=entry.get("host", {}),
        node=entry.get("node", {}),
        want=entry.get("want", {}),
        asks=tuple(_ask(name, each) for each in entry.get("asks", [{"must": {"plan": {}}}])),
        pool=pool if isinstance(pool, str) else tuple(pool),
        uncovered=entry.get("uncovered"),
        differs=entry.get("differs"),
    )


def _ask(name: str, entry: dict[str, Any]) -> Ask:
    if unknown := set(entry) - _ASK_KEYS:
        raise ValueError(f"{name}: unknown keys {sorted(unknown)} in a question")
    musts = entry["must"] if isinstance(entry["must"], list) else [entry["must"]]
    for must in musts:
        if unknown := set(must) - _MUST_KEYS:
            raise ValueError(f"{name}: unknown keys {sorted(unknown)} in an answer")
        if ("refused" in must) == ("plan" in must or "warns" in must):
            raise ValueError(f"{name}: an answer is a plan or a refusal")
    return Ask(
        open=tuple(entry.get("open", ())),
        changes=entry.get("with", {}),
        host=entry.get("host", {}),
        musts=tuple(
            Must(
                plan=must.get("plan", {}) if "refused" not in must else None,
                warns=tuple(must.get("warns", ())),
                refused=must.get("refused"),
            )
            for must in musts
        ),
    )
