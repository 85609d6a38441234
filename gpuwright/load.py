"""The one door to matrix/: every row is read strictly and cross-checked, or MatrixError."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from gpuwright.attention_rows import AttentionBackendRow
from gpuwright.catalogue import Matrix
from gpuwright.crosscheck import cross_faults
from gpuwright.engine_rows import ReleaseRow
from gpuwright.feature_rows import FeatureRow
from gpuwright.finding_rows import FindingRow
from gpuwright.hazard_rows import HazardRow
from gpuwright.lock_rows import CompanionRow, ConstraintRow, LockRow
from gpuwright.memory.terms import TermsRow
from gpuwright.model_rows import ModelRow
from gpuwright.python_rows import PythonRow, UvRow
from gpuwright.refusals import MatrixError, WantError
from gpuwright.rows import (
    CudaRow,
    DistroRow,
    GenerationRow,
    GpuRow,
    KvCacheDtypeRow,
    QuantizationRow,
    WorkloadRow,
)
from gpuwright.strict import read_row, read_yaml
from gpuwright.toolkit_rows import ToolkitRow

MATRIX = Path(__file__).parent / "matrix"

FILES: dict[str, type] = {
    "gpus": GpuRow,
    "generations": GenerationRow,
    "cuda": CudaRow,
    "toolkits": ToolkitRow,
    "kv_cache_dtypes": KvCacheDtypeRow,
    "quantizations": QuantizationRow,
    "memory_terms": TermsRow,
    "attention_backends": AttentionBackendRow,
    "features": FeatureRow,
    "models": ModelRow,
    "hazards": HazardRow,
    "workloads": WorkloadRow,
    "distros": DistroRow,
    "locks": LockRow,
    "constraints": ConstraintRow,
    "companions": CompanionRow,
    "uv": UvRow,
    "pythons": PythonRow,
}
"""Field of Matrix and name of its file or directory of files -> what its rows are. Releases stand
in engines/."""


ENGINES = ("engines", ReleaseRow)


FINDINGS = ("findings", FindingRow)
"""No decision reads these: they are loaded by those who ask for them."""


def load_matrix(extra_models: Path | None = None, *, directory: Path = MATRIX) -> Matrix:
    """Every row of the matrix in `directory`, with an operator's further model rows after ours.

    Raises MatrixError with all faults at once, each with its path
    (`engines/vllm.yaml[3].build_tags[0].cuda: missing`), and WantError for those of the operator's
    file: ours are sound without it, so whatever is wrong with it there is its own.
    """
    ours = _load(directory, None, 0)
    if extra_models is None:
        return ours
    faults: list[str] = []
    try:
        # Before ours are read again beside it: most that is wrong with it shows by itself.
        _read_file(extra_models, str(extra_models), ModelRow, faults, {})
        if faults:
            raise MatrixError(*faults)
        return _load(directory, extra_models, extra_models.stat().st_mtime_ns)
    except OSError as error:
        raise WantError(f"extra_models: {extra_models}: {error.strerror}") from error
    except MatrixError as error:
        label = str(extra_models)
        named = [fault if label in fault else f"{label}: {fault}" for fault in error.faults]
        raise WantError(*(f"extra_models: {fault}" for fault in named)) from error


@lru_cache(maxsize=8)
def load_findings(directory: Path = MATRIX) -> tuple[FindingRow, ...]:
    """What can be wrong with a box, in the order of files and rows; MatrixError as above."""
    name, kind = FINDINGS
    faults: list[str] = []
    labels: dict[int, str] = {}
    rows: list[FindingRow] = [
        row
        for path, label in _files(directory, name)
        for row in _read_file(path, label, kind, faults, labels)
    ]
    faults.extend(_claim_faults({name: rows}, labels))
    faults.extend(_finding_faults(rows, labels))
    if faults:
        raise MatrixError(*faults)
    return tuple(rows)


def _finding_faults(rows: list[FindingRow], labels: dict[int, str]) -> Iterator[str]:
    """Ids that stand twice, and findings that are named and not there."""
    ids = [row.id for row in rows]
    for index, row in enumerate(rows):
        if row.id in ids[:index]:
            yield f"{labels[id(row)]}.id: {row.id} stands twice"
        for other in row.instead_of:
            if other not in ids:
                yield f"{labels[id(row)]}.instead_of: {other} is no finding"


@lru_cache(maxsize=8)
def _load(directory: Path, extra_models: Path | None, _changed: int) -> Matrix:
    faults: list[str] = []
    labels: dict[int, str] = {}
    kinds = {**{name: (name, kind) for name, kind in FILES.items()}, "releases": ENGINES}
    rows: dict[str, list[Any]] = {
        field: [
            row
            for path, label in _files(directory, name)
            for row in _read_file(path, label, kind, faults, labels)
        ]
        for field, (name, kind) in kinds.items()
    }
    if extra_models is not None:
        rows["models"] += _read_file(extra_models, str(extra_models), ModelRow, faults, labels)
    if faults:
        # A row that could not be read would only make others look dangling.
        raise MatrixError(*faults)
    matrix = Matrix(**{name: tuple(values) for name, values in rows.items()})
    faults.extend(_claim_faults(rows, labels))
    faults.extend(cross_faults(matrix, labels))
    if faults:
        raise MatrixError(*faults)
    return matrix


def _files(directory: Path, name: str) -> list[tuple[Path, str]]:
    """The file `name`.yaml, those of the directory `name` instead, or both, each with its label."""
    parts = sorted((directory / name).glob("*.yaml"))
    whole = directory / f"{name}.yaml"
    found = [(path, f"{name}/{path.name}") for path in parts]
    return [(whole, whole.name), *found] if whole.exists() or not parts else found


def _read_file(
    path: Path, label: str, kind: type, faults: list[str], labels: dict[int, str]
) -> list[Any]:
    before = len(faults)
    data = read_yaml(path, label, faults, foreign=MATRIX not in path.parents)
    if len(faults) > before:
        return []
    if not isinstance(data, list):
        faults.append(f"{label}: needs a list of rows")
        return []
    rows = []
    for index, entry in enumerate(data):
        row = read_row(kind, entry, f"{label}[{index}]", faults)
        if row is not None:
            labels[id(row)] = f"{label}[{index}]"
            rows.append(row)
    return rows


def _claim_faults(rows: dict[str, list[Any]], labels: dict[int, str]) -> Iterator[str]:
    """Rows without a source, and sources that cover a key which their row does not have."""
    for row in (row for entries in rows.values() for row in entries):
        yield from _claims_of(row, labels[id(row)])
        for index, checkpoint in enumerate(getattr(row, "checkpoints", ())):
            yield from _claims_of(checkpoint, f"{labels[id(row)]}.checkpoints[{index}]")


def _claims_of(row: Any, path: str) -> Iterator[str]:
    names = {field.name for field in dataclasses.fields(row)}
    if not row.sources:
        yield f"{path}.sources: empty"
    for index, claim in enumerate(row.sources):
        for key in claim.covers:
            if key.split(".")[0].split("[")[0] not in names:
                yield f"{path}.sources[{index}].covers: the row has no key {key!r}"
