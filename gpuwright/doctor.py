"""What keeps a box from serving, or from serving well: the rows of findings, and a distribution
that the matrix does not list."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpuwright.catalogue import Matrix
from gpuwright.finding_rows import FindingRow, Severity
from gpuwright.findings import Finding, findings
from gpuwright.host import Host

_WIDTH = 100
_VERDICTS = {Severity.BLOCKS: "blocked", Severity.WARNS: "warnings"}


def diagnose(
    document: Mapping[str, Any], rows: Sequence[FindingRow], matrix: Matrix
) -> tuple[Finding, ...]:
    """All findings, worst first; HostError where it is no node's document."""
    host = Host.from_document(document)
    found = findings(document, rows)
    if matrix.find_distro(host) is not None:
        return found
    unlisted = Finding(
        id="distribution-is-not-listed",
        severity=Severity.BLOCKS,
        says=(
            f"{host.os_name or host.os_id or 'the distribution'} is none that is served on: nobody "
            "has written down what its packages are called",
        ),
        remedy="a distribution of gpuwright/matrix/distros.yaml, or a row for it there",
        sources=(),
    )
    blocking = [each for each in found if each.severity is Severity.BLOCKS]
    return (*blocking, unlisted, *found[len(blocking) :])


def verdict(found: Iterable[Finding]) -> str:
    """`blocked`, `warnings` or `healthy`, by the worst of them: notes need nothing done."""
    worst = next(iter(found), None)
    return _VERDICTS.get(worst.severity, "healthy") if worst else "healthy"


def as_data(found: tuple[Finding, ...], dark: tuple[str, ...]) -> dict[str, Any]:
    return {
        "verdict": verdict(found),
        "findings": [
            {
                "id": each.id,
                "severity": each.severity.value,
                "says": list(each.says),
                "remedy": each.remedy,
                "sources": [claim.url for claim in each.sources],
            }
            for each in found
        ],
        "unseen": list(dark),
    }


def as_text(found: tuple[Finding, ...], dark: tuple[str, ...]) -> str:
    lines = []
    for each in found:
        for index, sentence in enumerate(each.says):
            lines += _wrapped(f"{each.severity:<8}" if index == 0 else " " * 8, sentence)
        lines += _wrapped("   mend ", each.remedy)
        if each.sources:
            lines += _wrapped("   see  ", ", ".join(claim.url for claim in each.sources))
        lines.append("")
    if verdict(found) == "healthy":
        lines.append("nothing that keeps this node from serving was found")
    if dark:
        lines += _wrapped("not known: ", ", ".join(dark))
    return "\n".join(lines).rstrip("\n")


def _wrapped(first: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_long_words=False,
        break_on_hyphens=False,
    )
