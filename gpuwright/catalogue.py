"""The matrix as one value: every row, and the look-ups that deciding needs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from gpuwright.attention_rows import AttentionBackendRow
from gpuwright.engine_rows import ReleaseRow
from gpuwright.feature_rows import FeatureRow
from gpuwright.gpu_names import GpuIndex, index_gpus
from gpuwright.hazard_rows import HazardRow
from gpuwright.lock_rows import CompanionRow, ConstraintRow, LockRow
from gpuwright.memory.terms import TermsRow
from gpuwright.model_rows import CheckpointRow, ModelRow
from gpuwright.python_rows import PythonRow, UvRow
from gpuwright.quoting import nearest, quoted
from gpuwright.refusals import WantError
from gpuwright.rows import (
    CudaRow,
    DistroRow,
    GenerationRow,
    GpuRow,
    KvCacheDtypeRow,
    QuantizationRow,
    WorkloadRow,
)
from gpuwright.toolkit_rows import ToolkitRow
from gpuwright.versions import within

if TYPE_CHECKING:
    from gpuwright.host import Gpu, Host


class Named(Protocol):
    """A row that people may call by its id or an alias."""

    @property
    def id(self) -> str: ...

    @property
    def aliases(self) -> tuple[str, ...]: ...


Row = TypeVar("Row", bound=Named)
LISTED_BY = "gpuwright models"
"""The command that lists models with their checkpoints."""


def find(rows: Iterable[Row], name: str) -> Row | None:
    """The row whose id or alias is `name`, whatever its case."""
    wanted = name.casefold()
    for row in rows:
        if wanted == row.id.casefold() or any(wanted == alias.casefold() for alias in row.aliases):
            return row
    return None


def resolve(key: str, rows: Iterable[Row], name: str) -> Row:
    """As `find`; raises WantError for an unknown name, with the nearest one."""
    rows = tuple(rows)
    row = find(rows, name)
    if row is None:
        listed = any(isinstance(row, ModelRow | CheckpointRow) for row in rows)
        end = nearest(name, [row.id for row in rows], command=LISTED_BY if listed else None)
        raise WantError(f"{key}: {quoted(name)} is unknown{end}")
    return row


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Matrix:
    gpus: tuple[GpuRow, ...]
    generations: tuple[GenerationRow, ...]
    cuda: tuple[CudaRow, ...]
    toolkits: tuple[ToolkitRow, ...]
    kv_cache_dtypes: tuple[KvCacheDtypeRow, ...]
    quantizations: tuple[QuantizationRow, ...]
    memory_terms: tuple[TermsRow, ...]
    releases: tuple[ReleaseRow, ...]
    attention_backends: tuple[AttentionBackendRow, ...]
    features: tuple[FeatureRow, ...]
    models: tuple[ModelRow, ...]
    hazards: tuple[HazardRow, ...]
    workloads: tuple[WorkloadRow, ...]
    distros: tuple[DistroRow, ...]
    locks: tuple[LockRow, ...]
    constraints: tuple[ConstraintRow, ...]
    companions: tuple[CompanionRow, ...]
    uv: tuple[UvRow, ...]
    pythons: tuple[PythonRow, ...]
    gpu_index: GpuIndex = field(init=False, repr=False)
    _by_id: dict[str, dict[str, Any]] = field(init=False, repr=False)
    """Rows of the kinds that deciding asks for by id, as it does for every candidate."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "gpu_index", index_gpus(self.gpus))
        kinds = ("cuda", "kv_cache_dtypes", "quantizations", "features")
        by_id = {kind: {row.id: row for row in getattr(self, kind)} for kind in kinds}
        object.__setattr__(self, "_by_id", by_id)

    @property
    def engines(self) -> tuple[str, ...]:
        """Names of the engines, each once, in the files' order."""
        return tuple(dict.fromkeys(row.engine for row in self.releases))

    def engine_release(self, engine: str, release: str) -> ReleaseRow:
        """The row of one release; KeyError where there is none."""
        for row in self.releases:
            if (row.engine, row.release) == (engine, release):
                return row
        raise KeyError(f"{engine} {release}")

    def lock(self, engine: str, release: str, tag: str, architecture: str) -> LockRow | None:
        """What is installed of a build of a release, or None where nothing was locked."""
        wanted = (engine, release, tag, architecture)
        for row in self.locks:
            if (row.engine, row.release, row.build_tag, row.architecture) == wanted:
                return row
        return None

    def distro(self, host: Host) -> DistroRow:
        """As `find_distro`, for a node that has a plan; KeyError for an unlisted one."""
        row = self.find_distro(host)
        if row is None:
            raise KeyError(f"{host.os_id} {host.os_version}")
        return row

    def find_distro(self, host: Host) -> DistroRow | None:
        """The row of the node's distribution and its release, or None for an unlisted one."""
        for row in self.distros:
            if (row.os_id, row.version_id) == (host.os_id, host.os_version):
                return row
        return None

    def gpu(self, gpu: Gpu) -> GpuRow | None:
        """The row of a node's card; None for an unlisted one."""
        return _gpu(self, gpu.pci_id, gpu.name, gpu.total_bytes)

    def generation(self, capability: str) -> GenerationRow | None:
        """The generation of a card; None for one that no row knows."""
        return _generation(self, capability)

    def cuda_runtime(self, version: str) -> CudaRow:
        row: CudaRow = self._by_id["cuda"][version]
        return row

    def toolkits_of(self, cuda: str) -> tuple[ToolkitRow, ...]:
        """The places where a node may have this toolkit from."""
        return tuple(row for row in self.toolkits if row.cuda == cuda)

    def kv_cache_dtype(self, dtype: str) -> KvCacheDtypeRow:
        row: KvCacheDtypeRow = self._by_id["kv_cache_dtypes"][dtype]
        return row

    def terms(self, release: ReleaseRow) -> TermsRow | None:
        """What the release takes beside weights and cache; None where its model needs no row."""
        return _terms(self, release)

    def quantization(self, name: str) -> QuantizationRow:
        row: QuantizationRow = self._by_id["quantizations"][name]
        return row

    def feature(self, feature: str) -> FeatureRow:
        row: FeatureRow = self._by_id["features"][feature]
        return row

    def backends(self, engine: str) -> tuple[AttentionBackendRow, ...]:
        return tuple(row for row in self.attention_backends if row.engine == engine)

    def checkpoint(self, checkpoint: str) -> tuple[ModelRow, CheckpointRow]:
        """A checkpoint by its id, with its model; KeyError where there is none."""
        for model in self.models:
            for row in model.checkpoints:
                if row.id == checkpoint:
                    return model, row
        raise KeyError(checkpoint)


# Asked for every candidate; cards of a node are alike, and so are nodes of an inventory.


@lru_cache(maxsize=1 << 12)
def _gpu(matrix: Matrix, pci_id: str | None, name: str, total_bytes: int | None) -> GpuRow | None:
    return matrix.gpu_index.card(pci_id, name, total_bytes)


@lru_cache(maxsize=256)
def _generation(matrix: Matrix, capability: str) -> GenerationRow | None:
    return next((row for row in matrix.generations if within(capability, row.capabilities)), None)


@lru_cache(maxsize=256)
def _terms(matrix: Matrix, release: ReleaseRow) -> TermsRow | None:
    for row in matrix.memory_terms:
        if row.memory_model is release.memory_model and within(release.release, row.releases):
            return row
    return None
