"""A lock's row, which stands beside its file: what was asked for, resolved, and proven."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from gpuwright.lock_rows import LockRow, Proof
from tools.emulation import HERE, Machine
from tools.lock_resolve import LockInputs, Resolution, digest, download_bytes
from tools.package_index import PackageIndex


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What is to be proven and published."""

    inputs: LockInputs
    resolution: Resolution
    cuda: str | None
    reasons: dict[str, str]
    """What it is not for: why."""
    machine: Machine = HERE
    """Where it is proven."""
    kept: dict[str, Proof] = dataclasses.field(default_factory=dict)
    """Python -> a proof of just these wheels, which need not be made again."""


def row_of(asked: Asked, text: str, proofs: Sequence[Proof], index: PackageIndex) -> LockRow:
    inputs, resolution = asked.inputs, asked.resolution
    local = any(wheel.local for wheels in resolution.values() for wheel in wheels.values())
    return LockRow(
        id=inputs.id,
        engine=inputs.engine,
        release=inputs.release,
        build_tag=inputs.build_tag,
        architecture=inputs.architecture,
        package=inputs.package,
        index="find-links" if local else "vendor" if index.extra else "default",
        glibc=inputs.glibc,
        python=inputs.pythons,
        sha256=digest(text),
        packages=len({name for wheels in resolution.values() for name in wheels}),
        download_bytes=download_bytes(resolution),
        proofs=tuple(proofs),
        sources=(),
        not_for=asked.reasons,
    )


def row_text(row: LockRow) -> str:
    """The row's file; keys: gpuwright/lock_rows.py."""

    def said(value: object) -> str:
        return json.dumps(value, ensure_ascii=False)

    values = dataclasses.asdict(row)
    lines = [f"# Written by `python -m tools.lock {row.engine} {row.release}`; keys: README.md"]
    lead = "- "
    for key in ("id", "engine", "release", "build_tag", "architecture", "package", "index"):
        lines.append(f"{lead}{key}: {said(values[key])}")
        lead = "  "
    for key in ("glibc", "python", "sha256", "packages", "download_bytes"):
        lines.append(f"  {key}: {said(values[key])}")
    lines.append("  proofs:")
    for proof in row.proofs:
        lines.append(f"    - {said(dataclasses.asdict(proof))}")
    if row.not_for:
        lines.append("  not_for:")
        lines += [f"    {said(key)}: {said(why)}" for key, why in row.not_for.items()]
    claim = {
        "url": f"pkg:pypi/{row.package}@{row.release}",
        "says": "resolved, installed by these hashes and asked, as the proofs say",
        "covers": ["package", "index", "glibc", "python", "sha256", "packages", "proofs"],
        "read": row.proofs[0].date,
        "kind": "measured",
    }
    lines += ["  sources:", f"    - {said(claim)}"]
    return "".join(f"{line}\n" for line in lines)
