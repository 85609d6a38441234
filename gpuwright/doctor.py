"""What keeps a box from serving, or from serving well: the rows of findings, and a distribution
that the matrix does not list."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpuwright.catalogue import Matrix
from gpuwright.finding_rows import FindingRow, Severity
from gpuwright.findings import Finding, findings
from gpuwright.host import Host

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
