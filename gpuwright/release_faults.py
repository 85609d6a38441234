"""Faults between an engine's releases and what they are installed from: environments, toolkits and
locks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from gpuwright.catalogue import Matrix
from gpuwright.engine_rows import MemoryModel
from gpuwright.faults import dangling_faults, range_faults, twice_faults, version_faults
from gpuwright.rows import STANDING
from gpuwright.versions import at_least, within

MEASURED = frozenset(MemoryModel) - {MemoryModel.LLAMA_CPP, MemoryModel.UNKNOWN}
"""Models that need measured terms."""


def release_faults(matrix: Matrix, labels: dict[int, str]) -> Iterator[str]:
    dtypes = [row.id for row in matrix.kv_cache_dtypes]
    for release in matrix.releases:
        path = labels[id(release)]
        backends = [row.backend for row in matrix.backends(release.engine)]
        yield from version_faults(f"{path}.release", release.release)
        yield from dangling_faults(f"{path}.kv_cache_dtypes", release.kv_cache_dtypes, dtypes)
        yield from dangling_faults(f"{path}.glibc_on", release.glibc_on, release.architectures)
        for glibc in release.glibc_on.values():
            yield from version_faults(f"{path}.glibc_on", glibc)
        if release.memory_model in MEASURED and matrix.terms(release) is None:
            yield f"{path}.memory_model: no row of memory_terms.yaml covers this release"
        for index, rule in enumerate(release.auto_order):
            yield from dangling_faults(f"{path}.auto_order[{index}].order", rule.order, backends)
            yield from range_faults(f"{path}.auto_order[{index}].capabilities", rule.capabilities)
        if release.environment is not None:
            for distro in matrix.distros:
                named = f"{path}.environment.libraries ({distro.id})"
                yield from dangling_faults(named, release.environment.libraries, distro.libraries)
            if (of_node := release.environment.node_toolkit) is not None:
                at = f"{path}.environment.node_toolkit.cuda"
                faults = list(range_faults(at, of_node.cuda))
                yield from faults
                if not faults and not any(
                    within(row.cuda, of_node.cuda) for row in matrix.toolkits
                ):
                    yield f"{at}: no row of toolkits.yaml is in {of_node.cuda}"
            if (toolkit := release.environment.toolkit) is not None:
                known = [row.id for row in matrix.cuda]
                yield from dangling_faults(
                    f"{path}.environment.toolkit.cuda", [toolkit.cuda], known
                )
        for index, tag in enumerate(release.build_tags):
            if tag.cuda is not None:
                known = [row.id for row in matrix.cuda]
                yield from dangling_faults(f"{path}.build_tags[{index}].cuda", [tag.cuda], known)
            for capability in chain(tag.capabilities, *tag.capabilities_on.values()):
                yield from version_faults(f"{path}.build_tags[{index}].capabilities", capability)
            known = list(tag.architectures or release.architectures)
            at = f"{path}.build_tags[{index}].capabilities_on"
            yield from dangling_faults(at, tag.capabilities_on, known)
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


def toolkit_faults(matrix: Matrix, labels: dict[int, str]) -> Iterator[str]:
    known = {row.id: row.nvcc_from for row in matrix.cuda}
    for toolkit in matrix.toolkits:
        path = labels[id(toolkit)]
        yield from dangling_faults(f"{path}.cuda", [toolkit.cuda], known)
        origins = (*known.get(toolkit.cuda, ()), STANDING)
        yield from dangling_faults(f"{path}.origin", [toolkit.origin], origins)


def lock_faults(matrix: Matrix, labels: dict[int, str]) -> Iterator[str]:
    yield from twice_faults("lock", [row.id for row in matrix.locks])
    for lock in matrix.locks:
        path = labels[id(lock)]
        yield from dangling_faults(f"{path}.engine", [lock.engine], matrix.engines)
        for release in matrix.releases:
            if (release.engine, release.release) == (lock.engine, lock.release):
                tags = [tag.tag for tag in release.build_tags]
                yield from dangling_faults(f"{path}.build_tag", [lock.build_tag], tags)
                said = release.oldest_glibc(lock.architecture)
                if lock.glibc and not (said and at_least(said, lock.glibc)):
                    yield f"{path}.glibc: {lock.glibc}, and the release's row says {said}"
                for python in release.python:
                    if (python in lock.python) == (python in lock.not_for):
                        yield f"{path}.python: {python} needs to stand in one of python, not_for"
    for row in matrix.constraints:
        path = labels[id(row)]
        yield from dangling_faults(f"{path}.engine", [row.engine], matrix.engines)
        yield from range_faults(f"{path}.releases", row.releases)
