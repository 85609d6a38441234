"""What identifies a build of llama.cpp, everything that changes the binary and nothing else, and
what the node is told to make it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuwright.catalogue import Matrix
from gpuwright.disk_rules import ENGINE_BYTES
from gpuwright.engine_rows import BuildRow, ReleaseRow
from gpuwright.expected import Expected
from gpuwright.host import Host
from gpuwright.layout import DRIVER_LIBRARIES, RUNTIME, USER, Layout
from gpuwright.plan import ModelFile, Plan
from gpuwright.refusals import MatrixError
from gpuwright.retiring import retire_spec
from gpuwright.rows import DistroRow
from gpuwright.toolchains import Toolchain, cuda_options, toolchain
from gpuwright.want import Want

BUILD_SCHEMA = 1
MOST_CARDS_OF_VMM = 8
"""Every card of such a pool is mapped into every other, which CUDA does for eight at most."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Build:
    """One build: its content key, and the row and values that it is made from."""

    key: str
    recipe: BuildRow
    cmake_args: tuple[str, ...]
    compiler: str
    jobs: int
    packages: tuple[str, ...]
    """Needed while it is built."""
    toolchain: Toolchain | None = None
    vmm: bool = False
    """Whether it is linked with the driver's own library."""
    cards: int = 0
    """How many it must see."""

    @property
    def files(self) -> tuple[ModelFile, ...]:
        """All that is fetched for it."""
        wheels = self.toolchain.toolkit.wheels if self.toolchain else ()
        return (self.archive, *(wheel.file for wheel in wheels))

    @property
    def programs(self) -> tuple[str, ...]:
        """What the service runs of it, below the engine's directory."""
        names = (self.recipe.target, *(path.rpartition("/")[2] for path in self.libraries))
        return tuple(f"bin/{name}" for name in names)

    @property
    def runtime_packages(self) -> tuple[str, ...]:
        return self.toolchain.toolkit.runtime_packages if self.toolchain else ()

    @property
    def repository(self) -> str | None:
        return self.toolchain.repository if self.toolchain else None

    @property
    def libraries(self) -> tuple[str, ...]:
        """Those of the toolkit that lie beside the binary; below the toolkit's directory."""
        return self.toolchain.toolkit.libraries if self.toolchain else ()

    @property
    def archive(self) -> ModelFile:
        """The source as a file to fetch, from every place that has these very bytes."""
        pinned = self.recipe.archive
        return ModelFile(
            path=pinned.filename,
            bytes=pinned.bytes or 0,
            sha256=self.recipe.archive_sha256,
            sources=tuple(
                row.source() for row in self.recipe.sources if row.sha256 == pinned.sha256
            ),
        )


def content_key(
    *,
    archive_sha256: str,
    cmake_args: tuple[str, ...],
    compiler: str,
    platform: str,
    target: str,
    toolkit: str | None = None,
    additions: Mapping[str, tuple[str, ...]] | None = None,
) -> str:
    """Twelve hex digits over the source's hash, the flags, the compiler and the platform.

    `platform` is distribution, its release and the architecture: the C library and the C++ runtime
    that the binary is linked with come from there.
    """
    content: dict[str, object] = {
        "schema": BUILD_SCHEMA,
        "archive_sha256": archive_sha256,
        "cmake_args": sorted(cmake_args),
        "compiler": compiler,
        "platform": platform,
        "target": target,
    }
    if toolkit is not None:
        content["toolkit"] = toolkit
    if additions:
        content["additions"] = dict(additions)
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def cpu_args(options: Mapping[str, str], flags: frozenset[str]) -> tuple[str, ...]:
    """CMake arguments that switch each instruction set on or off by the node's CPU flags.

    `options` maps a /proc/cpuinfo flag to the CMake option it allows. Every option is named, since
    llama.cpp's own defaults assume AVX2 where the build is not native.
    """
    return tuple(
        f"-D{option}={'ON' if flag in flags else 'OFF'}" for flag, option in sorted(options.items())
    )


def build_of(
    *, want: Want, plan: Plan, release: ReleaseRow, distro: DistroRow, node: Host, matrix: Matrix
) -> Build:
    """The build of a plan that can be applied. MatrixError: a row of it is missing."""
    recipe = release.build
    if recipe is None:
        raise MatrixError(f"{release.id}: nothing says how it is built")
    tag = release.build_tag(plan.build_tag)
    arguments = (*recipe.cmake_args, *tag.cmake_args, *cpu_args(recipe.cpu_options, node.cpu_flags))
    found = toolchain(node, tag, want, matrix)
    vmm = len(plan.gpus) <= MOST_CARDS_OF_VMM
    packages, compiler = distro.build_packages, distro.compiler
    if found is not None and not isinstance(found, Toolchain):
        raise MatrixError(f"{release.id}: {found.sentence()}")
    if found is not None:
        compiler = found.compiler
        packages = tuple(compiler if name == distro.compiler else name for name in packages)
        packages += found.build_packages
        capabilities = tuple(gpu.compute_capability for gpu in plan.gpus)
        arguments += recipe.cuda_args
        arguments += cuda_options(found, want.layout, capabilities, vmm=vmm)
        if recipe.cache_kernels is not None:
            arguments += (recipe.cache_kernels.argument(plan.kv_cache_dtype),)
    return Build(
        key=content_key(
            archive_sha256=recipe.archive_sha256,
            cmake_args=arguments,
            compiler=compiler,
            platform=f"{distro.id}-{node.architecture}",
            target=recipe.target,
            toolkit=f"{found.toolkit.id}-{found.key}" if found else None,
            additions=recipe.additions,
        ),
        recipe=recipe,
        cmake_args=arguments,
        compiler=compiler,
        jobs=_jobs(recipe, node),
        packages=packages,
        toolchain=found,
        vmm=found is not None and vmm,
        cards=len(plan.gpus),
    )


def _jobs(recipe: BuildRow, node: Host) -> int:
    """As many compilers as there are threads, and memory for."""
    by_memory = (node.memory_total_bytes or 0) // recipe.memory_bytes_per_job
    return max(1, min(node.cpu_threads or 1, by_memory))


def build_spec(expected: Expected, build: Build, want: Want, *, verify: str) -> dict[str, Any]:
    """The carried build program's spec."""
    layout, recipe = expected.layout, build.recipe
    cache = layout.cache
    return {
        "key": build.key,
        "engine_dir": expected.engine_dir,
        "archive": f"{cache}/sources/{build.archive.path}",
        "sha256": build.archive.sha256,
        "source_subdir": recipe.source_subdir,
        "additions": recipe.additions,
        "lock": f"{RUNTIME}/{expected.engine_dir.rsplit('/', 1)[-1]}.lock",
        "work_dir": f"{cache}/build",
        "ccache_dir": f"{cache}/ccache",
        "compiler": build.compiler,
        "cmake_args": list(build.cmake_args),
        "target": recipe.target,
        "jobs": build.jobs,
        "env": {},
        "user": USER,
        "need_bytes": recipe.work_bytes,
        "engine_bytes": ENGINE_BYTES,
        "verify": verify,
        "retire": retire_spec(want),
        "proof_args": list(recipe.proof_args),
        "proof_expect": recipe.proof_expect,
        **_cuda_spec(build, expected.layout),
    }


def _cuda_spec(build: Build, layout: Layout) -> dict[str, Any]:
    """What a build for cards takes beside the rest."""
    found = build.toolchain
    if found is None:
        return {}
    row, directory = found.toolkit, found.directory(layout)
    return {
        "toolkit": {
            "directory": directory,
            "key": found.key,
            "wheels": [
                {"path": f"{layout.cache}/sources/{wheel.filename}", "sha256": wheel.sha256}
                for wheel in row.wheels
            ],
            "root": row.root,
            "links": row.links,
            "lock": f"{RUNTIME}/{directory.rsplit('/', 1)[-1]}.lock",
            "need_bytes": row.room_bytes,
        }
        if row.wheels
        else None,
        "libraries": [f"{directory}/{library}" for library in row.libraries],
        "driver_library": list(DRIVER_LIBRARIES) if build.vmm else [],
        "devices_args": list(build.recipe.devices_args),
        "devices": build.cards,
    }
