"""Reports of real rigs, read from the file that is handed beside the repository."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT.parent / "shared" / "evidence" / "cases.yaml"
VERDICTS = (
    "fit",
    "fit_with_changes",
    "no_fit",
    "refuse",
    "choose_other_engine",
    "choose_other_quant",
)
MISSING = f"needs the handed reports, found no {FILE.parent.name}/{FILE.name} beside the repository"


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One report: what it is called, where it stands, and the decision that it calls for."""

    id: str
    source: str
    engine: str
    model: str
    verdict: str


def there() -> bool:
    """Whether the reports are here. Where everything must be tested they have to be."""
    if FILE.exists():
        return True
    if os.environ.get("CI", "").casefold() in ("1", "true"):
        raise FileNotFoundError(MISSING)
    return False


@cache
def cases() -> dict[str, Case]:
    """All reports by id, in the file's order."""
    data = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    found = [
        Case(
            id=entry["id"],
            source=entry["source"],
            engine=entry["engine"]["name"],
            model=entry["model"]["name"],
            verdict=entry["decision"]["verdict"],
        )
        for entry in data["cases"]
    ]
    return {case.id: case for case in found}
