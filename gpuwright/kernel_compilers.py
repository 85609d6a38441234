"""With which CUDA compiler an environment compiles kernels on a node: its own, or the node's where
that is of the CUDA of its torch and knows the card."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpuwright.catalogue import Matrix
from gpuwright.engine_rows import NodeToolkit, ReleaseRow
from gpuwright.hazard_rows import Compiler
from gpuwright.host import Gpu, Host
from gpuwright.refusals import Needs, Reason, Unlisted
from gpuwright.rows import STANDING, VENDOR, WHEELS, DistroRow
from gpuwright.site import Site
from gpuwright.toolchains import (
    REPOSITORY,
    Toolchain,
    can_be_had,
    places,
    stands_on,
    toolchain_of,
)
from gpuwright.toolkit_rows import ToolkitRow
from gpuwright.versions import parse_version, within
from gpuwright.want import Want


def node_toolkit(release: ReleaseRow) -> NodeToolkit | None:
    return release.environment.node_toolkit if release.environment is not None else None


def node_toolchain(
    host: Host, release: ReleaseRow, want: Want, matrix: Matrix
) -> Toolchain | Reason | None:
    """The node's toolkit that kernels of `release` are compiled with: the newest that stands there,
    or that it may get where the release needs one. None: it goes without."""
    asked, distro = node_toolkit(release), matrix.find_distro(host)
    if asked is None:
        return None
    if distro is None:
        unlisted = Unlisted(subject=f"{host.os_id} {host.os_version}", file="distros.yaml")
        return unlisted if asked.needed else None
    rows = list(_rows(asked, host, matrix))
    refused: Reason | None = None
    for row in rows:
        installed = asked.needed and can_be_had(row, distro, want)
        if installed or stands_on(row, host):
            found = toolchain_of(row, host, distro, matrix, installed=installed)
            if isinstance(found, Toolchain):
                return found
            refused = refused or found
    if not asked.needed:
        return None
    return refused or _nowhere(release, asked, rows, distro, host, matrix)


def toolchain_on(site: Site, release: ReleaseRow) -> Toolchain | Reason | None:
    """`node_toolchain` of a site, asked once."""
    known = site.toolchains
    if release not in known:
        known[release] = node_toolchain(site.host, release, site.want, site.matrix)
    return known[release]


def _nowhere(
    release: ReleaseRow,
    asked: NodeToolkit,
    rows: list[ToolkitRow],
    distro: DistroRow,
    host: Host,
    matrix: Matrix,
) -> Reason:
    others = [row.cuda for row in matrix.toolkits if row.origin == distro.id]
    found = [f"CUDA {', '.join(others)} of {distro.id}" if others else distro.id]
    standing = {version: path for path, version in (host.outfit.nvccs or {}).items() if version}
    found += [
        f"CUDA {version} in {path.removesuffix('/bin/nvcc')}, where no row of toolkits.yaml has it"
        for version, path in standing.items()
        if within(version, asked.cuda)
    ]
    return Needs(
        subject=f"compiler that {release.engine} {release.release} calls at every start",
        needed=f"CUDA {asked.cuda} of {places([row for row in rows if row.origin != STANDING])}",
        found=" and ".join(found),
        help=REPOSITORY if any(row.origin == VENDOR for row in rows) else None,
        row=release.id,
    )


def compiler_of(site: Site, release: ReleaseRow, capabilities: Iterable[str | None]) -> Compiler:
    """Whether a unit of `release` compiles for these cards; ninja is a package of each engine's own
    environment."""
    tools, environment = site.host.outfit.tools, release.environment
    if environment is not None and environment.toolkit is not None:
        return Compiler.PRESENT
    if node_toolkit(release) is None:
        present = tools is not None and "nvcc" in tools
    else:
        found = toolchain_on(site, release)
        present = isinstance(found, Toolchain) and knows_all(found, capabilities, site.matrix)
    if present:
        return Compiler.PRESENT
    return Compiler.UNKNOWN if tools is None else Compiler.ABSENT


def knows_all(found: Toolchain, capabilities: Iterable[str | None], matrix: Matrix) -> bool:
    """Whether the toolkit compiles for each of these cards."""
    return all(each is None or _knows(found.toolkit, each, matrix) for each in capabilities)


def missing_compiler(site: Site, release: ReleaseRow) -> Reason | None:
    """Why the node has not the toolkit that the release needs."""
    found = toolchain_on(site, release)
    return None if isinstance(found, Toolchain) else found


def unknown_card(site: Site, release: ReleaseRow, gpu: Gpu) -> Reason | None:
    """Why the toolkit that the release needs does not compile for the card."""
    asked, capability = node_toolkit(release), gpu.compute_capability
    if asked is None or not asked.needed or capability is None:
        return None
    found = toolchain_on(site, release)
    if not isinstance(found, Toolchain) or _knows(found.toolkit, capability, site.matrix):
        return None
    better = any(
        row.origin == VENDOR and _knows(row, capability, site.matrix)
        for row in _rows(asked, site.host, site.matrix)
    )
    cuda = site.matrix.cuda_runtime(found.toolkit.cuda)
    return Needs(
        subject=f"CUDA {cuda.id} of {places([found.toolkit])}",
        needed=f"compute capability {cuda.capabilities}",
        found=f"{capability} ({gpu.name})",
        help=REPOSITORY if better else None,
        row=f"cuda {cuda.id}",
    )


def _rows(asked: NodeToolkit, host: Host, matrix: Matrix) -> Iterator[ToolkitRow]:
    """Newest first: within a major version a newer one knows more cards."""
    for row in sorted(matrix.toolkits, key=lambda row: parse_version(row.cuda), reverse=True):
        on_node = row.origin != WHEELS and host.architecture in row.architectures
        if on_node and within(row.cuda, asked.cuda):
            yield row


def _knows(row: ToolkitRow, capability: str, matrix: Matrix) -> bool:
    return within(capability, matrix.cuda_runtime(row.cuda).capabilities)
