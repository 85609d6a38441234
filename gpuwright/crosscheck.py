"""Faults that show only between rows: ids that dangle or stand twice, ranges that do not parse."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from gpuwright.cards import VGPU_MODES
from gpuwright.catalogue import Matrix, Named
from gpuwright.engine_rows import MemoryModel
from gpuwright.feature_rows import FeatureKind
from gpuwright.gpu_names import normalized
from gpuwright.hazard_rows import RANGES, HazardRow
from gpuwright.host import OWN_KERNEL
from gpuwright.model_rows import Role
from gpuwright.onnode.machine import CONTAINERS
from gpuwright.rows import STANDING, VENDOR, WHEELS, GpuRow, Scalar
from gpuwright.versions import at_least, check_range, parse_version, within

MEASURED = frozenset(MemoryModel) - {MemoryModel.LLAMA_CPP, MemoryModel.UNKNOWN}
"""Models that need measured terms."""


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
        yield from _twice("id", [row.id for row in rows])
    yield from _twice("release", [f"{row.engine} {row.release}" for row in matrix.releases])
    yield from _twice("id", [row.id for row in matrix.memory_terms])
    for terms in matrix.memory_terms:
        yield from _range(f"{labels[id(terms)]}.releases", terms.releases)
    yield from _release_faults(matrix, labels)
    yield from _backend_faults(matrix, labels)
    yield from _model_faults(matrix, labels)
    yield from _feature_faults(matrix, labels)
    yield from _hazard_faults(matrix, labels)
    yield from _gpu_faults(matrix, labels)
    yield from _lock_faults(matrix, labels)
    for cuda in matrix.cuda:
        path = labels[id(cuda)]
        for key in ("id", "min_driver", "native_driver"):
            if (version := getattr(cuda, key)) is not None:
                yield from _version(f"{path}.{key}", version)
        for compiler, version in cuda.host_compilers.items():
            yield from _version(f"{path}.host_compilers.{compiler}", version)
        yield from _range(f"{path}.capabilities", cuda.capabilities)
        for index, bad in enumerate(cuda.known_bad):
            yield from _range(f"{path}.known_bad[{index}].capabilities", bad.capabilities)
        places = [WHEELS, VENDOR, *(row.id for row in matrix.distros)]
        yield from _dangling(f"{path}.nvcc_from", cuda.nvcc_from, places)
    for toolkit in matrix.toolkits:
        path = labels[id(toolkit)]
        known = {row.id: row.nvcc_from for row in matrix.cuda}
        yield from _dangling(f"{path}.cuda", [toolkit.cuda], known)
        origins = (*known.get(toolkit.cuda, ()), STANDING)
        yield from _dangling(f"{path}.origin", [toolkit.origin], origins)
    for generation in matrix.generations:
        path = labels[id(generation)]
        yield from _range(f"{path}.capabilities", generation.capabilities)
        for key in ("first_driver", "last_driver"):
            if (version := getattr(generation, key)) is not None:
                yield from _version(f"{path}.{key}", version)
    for quantization in matrix.quantizations:
        for index, spec in enumerate(quantization.preferred):
            yield from _range(f"{labels[id(quantization)]}.preferred[{index}]", spec)
        path = f"{labels[id(quantization)]}.engines"
        yield from _dangling(path, quantization.engines, matrix.engines)
        for engine, support in quantization.engines.items():
            for key in ("releases", "capabilities", "native"):
                yield from _range(f"{path}.{engine}.{key}", getattr(support, key))
    drafts = [row.id for row in matrix.features if row.kind is FeatureKind.SPECULATION]
    for workload in matrix.workloads:
        yield from _dangling(f"{labels[id(workload)]}.speculation", workload.speculation, drafts)
        features = [row.id for row in matrix.features]
        yield from _dangling(f"{labels[id(workload)]}.asks", workload.asks, features)
        for index, route in enumerate(workload.routes):
            path = f"{labels[id(workload)]}.routes[{index}]"
            yield from _dangling(f"{path}.order", route.order, matrix.engines)
            yield from _range(f"{path}.capabilities", route.capabilities)


def _lock_faults(matrix: Matrix, labels: dict[int, str]) -> Iterator[str]:
    yield from _twice("lock", [row.id for row in matrix.locks])
    for lock in matrix.locks:
        path = labels[id(lock)]
        yield from _dangling(f"{path}.engine", [lock.engine], matrix.engines)
        for release in matrix.releases:
            if (release.engine, release.release) == (lock.engine, lock.release):
                tags = [tag.tag for tag in release.build_tags]
                yield from _dangling(f"{path}.build_tag", [lock.build_tag], tags)
                said = release.oldest_glibc(lock.architecture)
                if lock.glibc and not (said and at_least(said, lock.glibc)):
                    yield f"{path}.glibc: {lock.glibc}, and the release's row says {said}"
                for python in release.python:
                    if (python in lock.python) == (python in lock.not_for):
                        yield f"{path}.python: {python} needs to stand in one of python, not_for"
    for row in matrix.constraints:
        path = labels[id(row)]
        yield from _dangling(f"{path}.engine", [row.engine], matrix.engines)
        yield from _range(f"{path}.releases", row.releases)


def _gpu_faults(matrix: Matrix, labels: dict[int, str]) -> Iterator[str]:
    """Names are compared as people's are: an alias means one card, whatever else is called so."""
    yield from _twice(
        "gpu",
        [name for gpu in matrix.gpus for name in {normalized(word) for word in _called(gpu)}],
    )
    for gpu in matrix.gpus:
        path = labels[id(gpu)]
        yield from _version(f"{path}.compute_capability", gpu.compute_capability)
        for pci_id in gpu.pci_ids or ():
            same = matrix.gpu_index.by_pci_id[pci_id]
            if any(each is not gpu and _alike(each, gpu) for each in same):
                yield f"{path}.pci_ids: {pci_id} is another row's too, with its name and memory"


def _called(gpu: GpuRow) -> tuple[str, ...]:
    return (gpu.id, *gpu.aliases)


def _alike(one: GpuRow, other: GpuRow) -> bool:
    return (one.name, one.memory_mib) == (other.name, other.memory_mib)


def _release_faults(matrix: Matrix, labels: dict[int, str]) -> Iterator[str]:
    dtypes = [row.id for row in matrix.kv_cache_dtypes]
    for release in matrix.releases:
        path = labels[id(release)]
        backends = [row.backend for row in matrix.backends(release.engine)]
        yield from _version(f"{path}.release", release.release)
        yield from _dangling(f"{path}.kv_cache_dtypes", release.kv_cache_dtypes, dtypes)
        yield from _dangling(f"{path}.glibc_on", release.glibc_on, release.architectures)
        for glibc in release.glibc_on.values():
            yield from _version(f"{path}.glibc_on", glibc)
        if release.memory_model in MEASURED and matrix.terms(release) is None:
            yield f"{path}.memory_model: no row of memory_terms.yaml covers this release"
        for index, rule in enumerate(release.auto_order):
            yield from _dangling(f"{path}.auto_order[{index}].order", rule.order, backends)
            yield from _range(f"{path}.auto_order[{index}].capabilities", rule.capabilities)
        if release.environment is not None:
            for distro in matrix.distros:
                named = f"{path}.environment.libraries ({distro.id})"
                yield from _dangling(named, release.environment.libraries, distro.libraries)
            if (of_node := release.environment.node_toolkit) is not None:
                at = f"{path}.environment.node_toolkit.cuda"
                faults = list(_range(at, of_node.cuda))
                yield from faults
                if not faults and not any(
                    within(row.cuda, of_node.cuda) for row in matrix.toolkits
                ):
                    yield f"{at}: no row of toolkits.yaml is in {of_node.cuda}"
            if (toolkit := release.environment.toolkit) is not None:
                known = [row.id for row in matrix.cuda]
                yield from _dangling(f"{path}.environment.toolkit.cuda", [toolkit.cuda], known)
        for index, tag in enumerate(release.build_tags):
            if tag.cuda is not None:
                known = [row.id for row in matrix.cuda]
                yield from _dangling(f"{path}.build_tags[{index}].cuda", [tag.cuda], known)
            for capability in chain(tag.capabilities, *tag.capabilities_on.values()):
                yield from _version(f"{path}.build_tags[{index}].capabilities", capability)
            known = list(tag.architectures or release.architectures)
            at = f"{path}.build_tags[{index}].capabilities_on"
            yield from _dangling(at, tag.capabilities_on, known)
            if not tag.applicable or release.build is not None:
                continue
            locked = any(
                row.sha256
                for row in matrix.locks
                if (row.engine, row.release, row.build_tag)
                == (release.engine, release.release, tag.tag)
            )
            if not locked or release.environment is None:
                needed = "build, or environment and a lock"
                yield f"{path}: no {needed}, and build tag {tag.tag} says it is applicable"


def _backend_faults(matrix: Matrix, labels: dict[int, str]) -> Iterator[str]:
    dtypes = [row.id for row in matrix.kv_cache_dtypes]
    for row in matrix.attention_backends:
        path = labels[id(row)]
        yield from _dangling(f"{path}.engine", [row.engine], matrix.engines)
        yield from _range(f"{path}.releases", row.releases)
        yield from _range(f"{path}.capabilities", row.capabilities)
        yield from _range(f"{path}.latent_capabilities", row.latent_capabilities)
        families = {model.family for model in matrix.models}
        yield from _dangling(f"{path}.families", row.families, families)
        for index, rule in enumerate(row.kv):
            yield from _dangling(f"{path}.kv[{index}].dtypes", rule.dtypes, dtypes)
            yield from _range(f"{path}.kv[{index}].capabilities", rule.capabilities)
        for index, head in enumerate(row.heads):
            yield from _range(f"{path}.heads[{index}].capabilities", head.capabilities)
            named = head.kv_cache_dtypes
            yield from _dangling(f"{path}.heads[{index}].kv_cache_dtypes", named, dtypes)
        for index, sink in enumerate(row.sinks):
            yield from _range(f"{path}.sinks[{index}].capabilities", sink.capabilities)
        for index, version in enumerate(row.versions):
            yield from _range(f"{path}.versions[{index}].capabilities", version.capabilities)


def _model_faults(matrix: Matrix, labels: dict[int, str]) -> Iterator[str]:
    quantizations = [row.id for row in matrix.quantizations]
    known = {row.id: set(row.engines) for row in matrix.quantizations}
    dtypes = [row.id for row in matrix.kv_cache_dtypes]
    for model in matrix.models:
        for index, cache in enumerate(model.architecture.measured_caches):
            path = f"{labels[id(model)]}.architecture.measured_caches[{index}]"
            yield from _dangling(f"{path}.engine", [cache.engine], matrix.engines)
            yield from _dangling(f"{path}.kv_cache_dtypes", cache.kv_cache_dtypes, dtypes)
        yield from _dangling(f"{labels[id(model)]}.parsers", model.parsers, matrix.engines)
        yield from _dangling(f"{labels[id(model)]}.arguments", model.arguments, matrix.engines)
        for index, row in enumerate(model.checkpoints):
            path = f"{labels[id(model)]}.checkpoints[{index}]"
            yield from _dangling(f"{path}.quantization", [row.quantization], quantizations)
            yield from _dangling(f"{path}.engines", row.engines, matrix.engines)
            if row.role is Role.WEIGHTS and row.quantization in known:
                for engine in sorted(set(row.engines) - known[row.quantization]):
                    yield f"{path}.engines.{engine}: {row.quantization} has no such engine"
            for engine, releases in row.engines.items():
                yield from _range(f"{path}.engines.{engine}", releases)


def _feature_faults(matrix: Matrix, labels: dict[int, str]) -> Iterator[str]:
    models = {row.id for row in matrix.models} | {row.family for row in matrix.models}
    for row in matrix.features:
        path = labels[id(row)]
        yield from _dangling(f"{path}.engines", row.engines, matrix.engines)
        for engine, entries in row.engines.items():
            for index, entry in enumerate(entries):
                at = f"{path}.engines.{engine}[{index}]"
                yield from _range(f"{at}.releases", entry.releases)
                yield from _range(f"{at}.capabilities", entry.capabilities)
                yield from _dangling(f"{at}.models", entry.models, models)
                yield from _dangling(f"{at}.not_models", entry.not_models, models)
        for index, rule in enumerate(row.excludes):
            at = f"{path}.excludes[{index}]"
            yield from _range(f"{at}.releases", rule.releases)
            for key, known in (
                ("engines", matrix.engines),
                ("features", [each.id for each in matrix.features]),
                ("kv_cache_dtypes", [each.id for each in matrix.kv_cache_dtypes]),
                ("backends", [each.backend for each in matrix.attention_backends]),
                ("families", [each.family for each in matrix.models]),
            ):
                yield from _dangling(f"{at}.{key}", getattr(rule, key), known)


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
            yield from _dangling(f"{path}.when.{key}", getattr(row.when, key), words)
        for key in RANGES:
            yield from _range(f"{path}.when.{key}", getattr(row.when, key))
        for key, value in row.sets.items():
            if type(value) is bool and switches.setdefault(key, value) is not value:
                yield f"{path}.sets.{key}: {value}, and another row says {not value}"
        yield from _bounds(path, row)


def _bounds(path: str, row: HazardRow) -> Iterator[str]:
    for key in ("introduced", "fixed"):
        version = getattr(row, key)
        if version is not None:
            yield from _version(f"{path}.{key}", version)
    if (row.introduced or row.fixed) and len(row.when.engines) != 1:
        yield f"{path}.when.engines: releases are named, so exactly one engine must be"


def _dangling(path: str, words: Iterable[str], known: Iterable[str]) -> Iterator[str]:
    known = set(known)
    for word in words:
        if word not in known:
            yield f"{path}: no row has the id {word!r}"


def _range(path: str, spec: str) -> Iterator[str]:
    try:
        check_range(spec)
    except ValueError as error:
        yield f"{path}: {error}"


def _version(path: str, version: str) -> Iterator[str]:
    try:
        parse_version(version)
    except ValueError as error:
        yield f"{path}: {error}"


def _twice(what: str, words: Iterable[str]) -> Iterator[str]:
    seen = set()
    for word in words:
        if word in seen:
            yield f"{what} {word!r}: two rows have it"
        seen.add(word)


def _names_twice(rows: Iterable[Named]) -> Iterator[str]:
    """Ids and aliases together: a name must mean one row."""
    names: list[str] = []
    for row in rows:
        names += {name.casefold() for name in (row.id, *row.aliases)}
    yield from _twice("name", names)
