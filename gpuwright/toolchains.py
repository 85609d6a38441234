"""Which CUDA toolkit and which host compiler a node builds with, or why it has none."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpuwright.catalogue import Matrix
from gpuwright.engine_rows import BuildTagRow
from gpuwright.host import Host
from gpuwright.layout import Layout
from gpuwright.refusals import Needs, Reason, Unlisted
from gpuwright.remedies import Remedy
from gpuwright.rows import STANDING, VENDOR, WHEELS, CudaRow, DistroRow
from gpuwright.toolkit_rows import ToolkitRow
from gpuwright.want import Want


@dataclass(frozen=True, kw_only=True, slots=True)
class Toolchain:
    """A toolkit that the node can have, and the C++ compiler that it takes."""

    toolkit: ToolkitRow
    compiler: str
    stands: bool = False
    """Whether it is there already, and nothing of it is to be installed."""

    @property
    def repository(self) -> str | None:
        """What the node's package sources must have for it."""
        return None if self.stands else self.toolkit.repository

    @property
    def build_packages(self) -> tuple[str, ...]:
        """What is installed for a build with it."""
        return () if self.stands else self.toolkit.build_packages

    @property
    def kernel_packages(self) -> tuple[str, ...]:
        """What is installed for an engine that compiles kernels with it."""
        return () if self.stands else self.toolkit.kernel_packages

    @property
    def key(self) -> str:
        """Twelve hex digits over what is unpacked, and the links that are made."""
        row = self.toolkit
        content = [sorted(wheel.sha256 for wheel in row.wheels), row.root, row.links]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]

    def directory(self, layout: Layout) -> str:
        """Where it stands on the node."""
        row = self.toolkit
        return layout.toolkit_dir(row.id, self.key) if row.wheels else row.root


def toolchain(
    host: Host, tag: BuildTagRow, want: Want, matrix: Matrix
) -> Toolchain | Reason | None:
    """What `tag` is built with on this node; None for a build without CUDA."""
    if tag.cuda is None:
        return None
    cuda, distro = matrix.cuda_runtime(tag.cuda), matrix.find_distro(host)
    if distro is None:
        return Unlisted(subject=f"{host.os_id} {host.os_version}", file="distros.yaml")
    rows = [
        row
        for row in matrix.toolkits_of(cuda.id)
        if host.architecture in row.architectures and row.origin != STANDING
    ]
    refused: Reason | None = None
    for row in rows:
        if can_be_had(row, distro, want):
            found = toolchain_of(row, host, distro, matrix)
            if isinstance(found, Toolchain):
                return found
            refused = refused or found
    return refused or _nowhere(cuda, rows, distro, host)


def toolchain_of(
    row: ToolkitRow, host: Host, distro: DistroRow, matrix: Matrix, *, installed: bool = True
) -> Toolchain | Reason:
    """The toolkit with a host compiler. `installed`: its packages may be, so that what lacks of one
    that stands is brought; else, and where they would break a driver, it is taken as it stands."""
    cuda = matrix.cuda_runtime(row.cuda)
    own_driver = row.packaged_driver and host.driver.packaged is False
    stands = stands_on(row, host) and (own_driver or not installed)
    if own_driver and not stands:
        return _own_driver(row, cuda, distro)
    compiler = host_compiler(cuda, distro)
    if compiler is None:
        return Needs(
            subject=f"C++ compiler for CUDA {cuda.id}",
            needed=f"gcc <= {cuda.host_compilers['gcc']}",
            found=f"{distro.compiler} of {distro.id}",
            help=f"an older C++ compiler that {distro.id} has, in `older_compilers` of its row in "
            "distros.yaml",
            row=f"cuda {cuda.id}",
        )
    return Toolchain(toolkit=row, compiler=compiler, stands=stands)


def can_be_had(row: ToolkitRow, distro: DistroRow, want: Want) -> bool:
    """Whether a node of this distribution may get the toolkit."""
    if row.origin == VENDOR:
        return want.cuda_repository
    return row.origin in (WHEELS, distro.id)


def stands_on(row: ToolkitRow, host: Host) -> bool:
    """Whether its compiler is there, in the version of the row."""
    version = (host.outfit.nvccs or {}).get(f"{row.root}/{row.nvcc}") or ""
    return version == row.cuda or version.startswith(f"{row.cuda}.")


def _own_driver(row: ToolkitRow, cuda: CudaRow, distro: DistroRow) -> Reason:
    return Needs(
        subject=f"CUDA {cuda.id} of {distro.id}",
        needed=f"a driver out of packages, since {row.build_packages[0]} installs libraries of one",
        found="a driver that came another way, which they would break",
        row=row.id,
    )


REPOSITORY = Remedy(
    words="NVIDIA's package repository on the node, and `cuda_repository: true`",
    want=(("cuda_repository", True),),
)


def places(rows: Sequence[ToolkitRow]) -> str:
    """Where these toolkits come from, for people."""
    named = {WHEELS: "NVIDIA's wheels", VENDOR: "NVIDIA's package repository"}
    named[STANDING] = "the node's own"
    return " or ".join(named.get(row.origin, row.origin) for row in rows)


def _nowhere(cuda: CudaRow, rows: Sequence[ToolkitRow], distro: DistroRow, host: Host) -> Reason:
    vendor = any(row.origin == VENDOR for row in rows)
    return Needs(
        subject=f"compiler of CUDA {cuda.id}",
        needed=places(rows) or f"a row in toolkits.yaml for {host.architecture}",
        found=distro.id,
        help=REPOSITORY if vendor else None,
        row=f"cuda {cuda.id}",
    )


def host_compiler(cuda: CudaRow, distro: DistroRow) -> str | None:
    """The newest C++ compiler of the distribution that this CUDA takes."""
    ceiling = int(cuda.host_compilers["gcc"])
    for command in (distro.compiler, *distro.older_compilers):
        major = re.search(r"-(\d+)\Z", command)
        if major and int(major[1]) <= ceiling:
            return command
    return None


def cuda_options(
    found: Toolchain, layout: Layout, capabilities: tuple[str, ...], *, vmm: bool
) -> tuple[str, ...]:
    """CMake arguments of a build for these cards, with this toolkit.

    Machine code alone: an older driver runs that of a newer toolkit of its major version, but
    does not compile its PTX. `vmm`: memory is reserved by address and grows in place, which takes
    the driver's own library at link time.
    """
    root, row = found.directory(layout), found.toolkit
    sorted_out = sorted({int(each.replace(".", "")) for each in capabilities})
    options = {
        "CMAKE_CUDA_ARCHITECTURES": ";".join(f"{number}-real" for number in sorted_out),
        "CMAKE_CUDA_COMPILER": f"{root}/{row.nvcc}",
        "CMAKE_CUDA_HOST_COMPILER": found.compiler,
        "CUDAToolkit_ROOT": root,
        "GGML_CUDA_NO_VMM": "OFF" if vmm else "ON",
    }
    if row.libraries:
        # What a binary needs of the toolkit lies beside it.
        library = f"{root}/{row.libraries[0].rpartition('/')[0]}"
        options |= {
            "CMAKE_BUILD_WITH_INSTALL_RPATH": "ON",
            "CMAKE_INSTALL_RPATH": "$ORIGIN",
            "CMAKE_EXE_LINKER_FLAGS": f"-Wl,-rpath-link,{library}",
            "CMAKE_SHARED_LINKER_FLAGS": f"-Wl,-rpath-link,{library}",
        }
    return tuple(f"-D{name}={value}" for name, value in options.items())
