"""Faults that show only between rows: ids that dangle or stand twice, ranges that do not parse."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpuwright.cards import VGPU_MODES
from gpuwright.catalogue import Matrix, Named
from gpuwright.faults import dangling_faults, range_faults, twice_faults, version_faults
from gpuwright.feature_rows import FeatureKind
from gpuwright.gpu_names import normalized
from gpuwright.hazard_rows import RANGES, HazardRow
from gpuwright.host import OWN_KERNEL
from gpuwright.model_rows import Role
from gpuwright.onnode.machine import CONTAINERS
from gpuwright.release_faults import lock_faults, release_faults, toolkit_faults
from gpuwright.rows import VENDOR, WHEELS, GpuRow, Scalar


def cross_faults(matrix: Matrix, labels: dict[int, str]) -> Iterator[str]:
    """Every such fault of `matrix`, each with the path that `labels` has for its row."""
    for named in (
        matrix.gpus,
        matrix.kv_cache_dtypes,
        matrix.quantizations,
        matrix.features,
        matrix.models,
        matrix.workloads,
        [checkpoint for model in matrix.models for checkpoint in model.checkpoints],
    ):
        yield from _names_twice(named)
    for rows in (
        matrix.cuda,
        matrix.generations,
        matrix.attention_backends,
        matrix.hazards,
        matrix.distros,
        matrix.uv,
        matrix.pythons,
        matrix.toolkits,
    ):
        yield from twice_faults("id", [row.id for row in rows])
    yield from twice_faults("release", [f"{row.engine} {row.release}" for row in matrix.releases])
    yield from twice_faults("id", [row.id for row in matrix.memory_terms])
    for terms in matrix.memory_terms:
        yield from range_faults(f"{labels[id(terms)]}.releases", terms.releases)
    yield from release_faults(matrix, labels)
    yield from _backend_faults(matrix, labels)
    yield from _model_faults(matrix, labels)
    yield from _feature_faults(matrix, labels)
    yield from _hazard_faults(matrix, labels)
    yield from _gpu_faults(matrix, labels)
    yield from lock_faults(matrix, labels)
    yield from toolkit_faults(matrix, labels)
    for cuda in matrix.cuda:
        path = labels[id(cuda)]
        for key in ("id", "min_driver", "native_driver"):
            if (version := getattr(cuda, key)) is not None:
                yield from version_faults(f"{path}.{key}", version)
        for compiler, version in cuda.host_compilers.items():
            yield from version_faults(f"{path}.host_compilers.{compiler}", version)
        yield from range_faults(f"{path}.capabilities", cuda.capabilities)
        for index, bad in enumerate(cuda.known_bad):
            yield from range_faults(f"{path}.known_bad[{index}].capabilities", bad.capabilities)
        places = [WHEELS, VENDOR, *(row.id for row in matrix.distros)]
        yield from dangling_faults(f"{path}.nvcc_from", cuda.nvcc_from, places)
    for generation in matrix.generations:
        path = labels[id(generation)]
        yield from range_faults(f"{path}.capabilities", generation.capabilities)
        for key in ("first_driver", "last_driver"):
            if (version := getattr(generation, key)) is not None:
                yield from version_faults(f"{path}.{key}", version)
    for quantization in matrix.quantizations:
        for index, spec in enumerate(quantization.preferred):
            yield from range_faults(f"{labels[id(quantization)]}.preferred[{index}]", spec)
        path = f"{labels[id(quantization)]}.engines"
        yield from dangling_faults(path, quantization.engines, matrix.engines)
        for engine, support in quantization.engines.items():
            for key in ("releases", "capabilities", "native"):
                yield from range_faults(f"{path}.{engine}.{key}", getattr(support, key))
    drafts = [row.id for row in matrix.features if row.kind is FeatureKind.SPECULATION]
    for workload in matrix.workloads:
        yield from dangling_faults(
            f"{labels[id(workload)]}.speculation", workload.speculation, drafts
        )
        features = [row.id for row in matrix.features]
        yield from dangling_faults(f"{labels[id(workload)]}.asks", workload.asks, features)
        for index, route in enumerate(workload.routes):
            path = f"{labels[id(workload)]}.routes[{index}]"
            yield from dangling_faults(f"{path}.order", route.order, matrix.engines)
            yield from range_faults(f"{path}.capabilities", route.capabilities)


def _gpu_faults(matrix: Matrix, labels: dict[int, str]) -> Iterator[str]:
    """Names are compared as people's are: an alias means one card, whatever else is called so."""
    yield from twice_faults(
        "gpu",
        [name for gpu in matrix.gpus for name in {normalized(word) for word in _called(gpu)}],
    )
    for gpu in matrix.gpus:
        path = labels[id(gpu)]
        yield from version_faults(f"{path}.compute_capability", gpu.compute_capability)
        for pci_id in gpu.pci_ids or ():
            same = matrix.gpu_index.by_pci_id[pci_id]
            if any(each is not gpu and _alike(each, gpu) for each in same):
                yield f"{path}.pci_ids: {pci_id} is another row's too, with its name and memory"


def _called(gpu: GpuRow) -> tuple[str, ...]:
    return (gpu.id, *gpu.aliases)


def _alike(one: GpuRow, other: GpuRow) -> bool:
    return (one.name, one.memory_mib) == (other.name, other.memory_mib)


def _backend_faults(matrix: Matrix, labels: dict[int, str]) -> Iterator[str]:
    dtypes = [row.id for row in matrix.kv_cache_dtypes]
    for row in matrix.attention_backends:
        path = labels[id(row)]
        yield from dangling_faults(f"{path}.engine", [row.engine], matrix.engines)
        yield from range_faults(f"{path}.releases", row.releases)
        yield from range_faults(f"{path}.capabilities", row.capabilities)
        yield from range_faults(f"{path}.latent_capabilities", row.latent_capabilities)
        families = {model.family for model in matrix.models}
        yield from dangling_faults(f"{path}.families", row.families, families)
        for index, rule in enumerate(row.kv):
            yield from dangling_faults(f"{path}.kv[{index}].dtypes", rule.dtypes, dtypes)
            yield from range_faults(f"{path}.kv[{index}].capabilities", rule.capabilities)
        for index, head in enumerate(row.heads):
            yield from range_faults(f"{path}.heads[{index}].capabilities", head.capabilities)
            named = head.kv_cache_dtypes
            yield from dangling_faults(f"{path}.heads[{index}].kv_cache_dtypes", named, dtypes)
        for index, sink in enumerate(row.sinks):
            yield from range_faults(f"{path}.sinks[{index}].capabilities", sink.capabilities)
        for index, version in enumerate(row.versions):
            yield from range_faults(f"{path}.versions[{index}].capabilities", version.capabilities)


def _model_faults(matrix: Matrix, labels: dict[int, str]) -> Iterator[str]:
    quantizations = [row.id for row in matrix.quantizations]
    known = {row.id: set(row.engines) for row in matrix.quantizations}
    dtypes = [row.id for row in matrix.kv_cache_dtypes]
    for model in matrix.models:
        for index, cache in enumerate(model.architecture.measured_caches):
            path = f"{labels[id(model)]}.architecture.measured_caches[{index}]"
            yield from dangling_faults(f"{path}.engine", [cache.engine], matrix.engines)
            yield from dangling_faults(f"{path}.kv_cache_dtypes", cache.kv_cache_dtypes, dtypes)
        yield from dangling_faults(f"{labels[id(model)]}.parsers", model.parsers, matrix.engines)
        yield from dangling_faults(
            f"{labels[id(model)]}.arguments", model.arguments, matrix.engines
        )
        for index, row in enumerate(model.checkpoints):
            path = f"{labels[id(model)]}.checkpoints[{index}]"
            yield from dangling_faults(f"{path}.quantization", [row.quantization], quantizations)
            yield from dangling_faults(f"{path}.engines", row.engines, matrix.engines)
            if row.role is Role.WEIGHTS and row.quantization in known:
                for engine in sorted(set(row.engines) - known[row.quantization]):
                    yield f"{path}.engines.{engine}: {row.quantization} has no such engine"
            for engine, releases in row.engines.items():
                yield from range_faults(f"{path}.engines.{engine}", releases)


def _feature_faults(matrix: Matrix, labels: dict[int, str]) -> Iterator[str]:
    models = {row.id for row in matrix.models} | {row.family for row in matrix.models}
    for row in matrix.features:
        path = labels[id(row)]
        yield from dangling_faults(f"{path}.engines", row.engines, matrix.engines)
        for engine, entries in row.engines.items():
            for index, entry in enumerate(entries):
                at = f"{path}.engines.{engine}[{index}]"
                yield from range_faults(f"{at}.releases", entry.releases)
                yield from range_faults(f"{at}.capabilities", entry.capabilities)
                yield from dangling_faults(f"{at}.models", entry.models, models)
                yield from dangling_faults(f"{at}.not_models", entry.not_models, models)
        for index, rule in enumerate(row.excludes):
            at = f"{path}.excludes[{index}]"
            yield from range_faults(f"{at}.releases", rule.releases)
            for key, known in (
                ("engines", matrix.engines),
                ("features", [each.id for each in matrix.features]),
                ("kv_cache_dtypes", [each.id for each in matrix.kv_cache_dtypes]),
                ("backends", [each.backend for each in matrix.attention_backends]),
                ("families", [each.family for each in matrix.models]),
            ):
                yield from dangling_faults(f"{at}.{key}", getattr(rule, key), known)


def _hazard_faults(matrix: Matrix, labels: dict[int, str]) -> Iterator[str]:
    known = {
        "engines": matrix.engines,
        "build_tags": {tag.tag for row in matrix.releases for tag in row.build_tags},
        "backends": {row.backend for row in matrix.attention_backends},
        "not_backends": {row.backend for row in matrix.attention_backends},
        "kv_cache_dtypes": {row.id for row in matrix.kv_cache_dtypes},
        "quantizations": {row.id for row in matrix.quantizations},
        "families": {row.family for row in matrix.models},
        "models": {row.id for row in matrix.models},
        "formats": {name for row in matrix.releases for name in row.formats},
        "cuda": {row.id for row in matrix.cuda},
        "gpus": {row.id for row in matrix.gpus},
        "kinds": {row.kind for row in matrix.gpus},
        "features": {row.id for row in matrix.features},
        "not_features": {row.id for row in matrix.features},
        "virtualizations": {*OWN_KERNEL, *CONTAINERS},
        "vgpus": {*VGPU_MODES},
    }
    switches: dict[str, Scalar] = {}
    for row in matrix.hazards:
        path = labels[id(row)]
        for key, words in known.items():
            yield from dangling_faults(f"{path}.when.{key}", getattr(row.when, key), words)
        for key in RANGES:
            yield from range_faults(f"{path}.when.{key}", getattr(row.when, key))
        for key, value in row.sets.items():
            if type(value) is bool and switches.setdefault(key, value) is not value:
                yield f"{path}.sets.{key}: {value}, and another row says {not value}"
        yield from _bounds(path, row)


def _bounds(path: str, row: HazardRow) -> Iterator[str]:
    for key in ("introduced", "fixed"):
        version = getattr(row, key)
        if version is not None:
            yield from version_faults(f"{path}.{key}", version)
    if (row.introduced or row.fixed) and len(row.when.engines) != 1:
        yield f"{path}.when.engines: releases are named, so exactly one engine must be"


def _names_twice(rows: Iterable[Named]) -> Iterator[str]:
    """Ids and aliases together: a name must mean one row."""
    names: list[str] = []
    for row in rows:
        names += {name.casefold() for name in (row.id, *row.aliases)}
    yield from twice_faults("name", names)
