"""Engines' releases, and the CUDA toolkits whose runtime their builds bring."""

from __future__ import annotations

from gpuwright.catalogue import Matrix
from gpuwright.engine_rows import BuildTagRow, ReleaseRow
from gpuwright.toolkit_rows import ToolkitRow
from tools.pages.markdown import code, page, sources, span, table


def render(matrix: Matrix) -> str:
    builds = [(release, tag) for release in matrix.releases for tag in release.build_tags]
    return page(
        "Engines",
        "Each build of each release, newest first. A build is planned where the driver, the C "
        "library, Python and the cards are what it needs; of one engine the newest such build.",
        table(
            (
                "engine",
                "release",
                "build",
                "Python",
                "glibc",
                "machine",
                "CUDA",
                "oldest driver",
                "code for compute capabilities",
                "installable",
            ),
            (_build(matrix, release, tag) for release, tag in builds),
        ),
        "Code for a capability runs on cards of the same major number with an equal or higher "
        "minor one.",
        "## Caches, and where it comes from",
        table(
            ("release", "weights", "memory plan", "cache dtypes, first choice first", "sources"),
            (
                (
                    row.id,
                    ", ".join(row.formats),
                    row.memory_model,
                    code(row.kv_cache_dtypes),
                    sources(row.sources),
                )
                for row in matrix.releases
            ),
        ),
        "## CUDA toolkits",
        table(
            (
                "toolkit",
                "oldest driver",
                "released with",
                "compiles for",
                "host compilers up to",
                "forward compatibility",
                "sources",
            ),
            (
                (
                    row.id,
                    row.min_driver,
                    row.native_driver or f"unknown: {row.unknown.get('native_driver', '')}",
                    span(row.capabilities),
                    ", ".join(f"{name} {most}" for name, most in row.host_compilers.items()),
                    ", ".join(row.forward_compatibility),
                    sources(row.sources),
                )
                for row in matrix.cuda
            ),
        ),
        "## Where a node has the compiler from",
        "What is built for cards is built with the first toolkit of its CUDA that the node can "
        "have, and with the newest C++ compiler of the distribution that this CUDA takes.",
        table(
            ("toolkit", "CUDA", "machine", "from", "packed", "unpacked", "sources"),
            (_toolkit(row) for row in matrix.toolkits),
        ),
    )


def _toolkit(row: ToolkitRow) -> list[str]:
    known = row.unpacked_bytes is not None
    return [
        row.id,
        row.cuda,
        ", ".join(row.architectures),
        f"{len(row.wheels)} wheels" if row.wheels else _origin(row),
        f"{row.bytes / 1e6:,.0f} MB" if row.wheels else "",
        f"{(row.unpacked_bytes or 0) / 1e6:,.0f} MB" if known else row.unknown["unpacked_bytes"],
        sources(row.sources),
    ]


def _origin(row: ToolkitRow) -> str:
    packages = [*row.build_packages, *row.runtime_packages]
    return f"{row.origin}: {code(packages)}" if packages else f"{row.origin}: {code([row.root])}"


def _cards(tag: BuildTagRow) -> str:
    cards = ", ".join(tag.capabilities) or "the CPU"
    others = (f"on {name}: {', '.join(other)}" for name, other in tag.capabilities_on.items())
    return "; ".join((cards, *others))


def _c_library(release: ReleaseRow) -> str:
    here = release.glibc or ("unknown" if release.unknown.get("glibc") else "any")
    return "; ".join((here, *(f"on {name}: {other}" for name, other in release.glibc_on.items())))


def _build(matrix: Matrix, release: ReleaseRow, tag: BuildTagRow) -> list[str]:
    cuda = matrix.cuda_runtime(tag.cuda) if tag.cuda is not None else None
    return [
        release.engine,
        release.release,
        tag.tag,
        ", ".join(release.python),
        _c_library(release),
        ", ".join(tag.architectures or release.architectures),
        cuda.id if cuda is not None else "",
        cuda.min_driver if cuda is not None else "",
        _cards(tag),
        "yes" if tag.applicable else f"not yet: {tag.not_applicable}",
    ]
