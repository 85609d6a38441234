"""What identifies a build of llama.cpp: everything that changes the binary, and nothing else."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from gpuwright.engine_rows import BuildRow
from gpuwright.plan import ModelFile

BUILD_SCHEMA = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Build:
    """One build: its content key, and the row and values that it is made from."""

    key: str
    recipe: BuildRow
    cmake_args: tuple[str, ...]
    compiler: str
    jobs: int

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
) -> str:
    """Twelve hex digits over the source's hash, the flags, the compiler and the platform.

    `platform` is distribution, its release and the architecture: the C library and the C++ runtime
    that the binary is linked with come from there.
    """
    content = {
        "schema": BUILD_SCHEMA,
        "archive_sha256": archive_sha256,
        "cmake_args": sorted(cmake_args),
        "compiler": compiler,
        "platform": platform,
        "target": target,
    }
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
