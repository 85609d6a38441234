"""Which CUDA toolkit and which host compiler a node builds with, or why it has none."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass

from gpuwright.catalogue import Matrix
from gpuwright.engine_rows import BuildTagRow
from gpuwright.host import Host
from gpuwright.layout import Layout
from gpuwright.refusals import Needs, Reason, Unlisted
from gpuwright.remedies import Remedy
from gpuwright.rows import VENDOR, WHEELS, CudaRow, DistroRow
from gpuwright.toolkit_rows import ToolkitRow
from gpuwright.want import Want


@dataclass(frozen=True, kw_only=True, slots=True)
class Toolchain:
    """A toolkit that the node can have, and the C++ compiler that it takes."""

    toolkit: ToolkitRow
    compiler: str

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
    rows = [row for row in matrix.toolkits_of(cuda.id) if host.architecture in row.architectures]
    for row in rows:
        if _can_be_had(row, distro, want):
            if row.packaged_driver and host.driver.packaged is False:
                return _own_driver(row, cuda, distro)
            compiler = host_compiler(cuda, distro)
            if compiler is None:
                return Needs(
                    subject=f"C++ compiler for CUDA {cuda.id}",
                    needed=f"gcc <= {cuda.host_compilers['gcc']}",
                    found=f"{distro.compiler} of {distro.id}",
                    help=f"an older C++ compiler that {distro.id} has, in `older_compilers` of its "
                    "row in distros.yaml",
                    row=f"cuda {cuda.id}",
                )
            return Toolchain(toolkit=row, compiler=compiler)
    return _nowhere(cuda, rows, distro, host)


def _can_be_had(row: ToolkitRow, distro: DistroRow, want: Want) -> bool:
    if row.origin == VENDOR:
        return want.cuda_repository
    return row.origin in (WHEELS, distro.id)


def _own_driver(row: ToolkitRow, cuda: CudaRow, distro: DistroRow) -> Reason:
    return Needs(
        subject=f"CUDA {cuda.id} of {distro.id}",
        needed=f"a driver out of packages, since {row.build_packages[0]} installs libraries of one",
        found="a driver that came another way, which they would break",
        row=row.id,
    )


def _nowhere(cuda: CudaRow, rows: list[ToolkitRow], distro: DistroRow, host: Host) -> Reason:
    places = {WHEELS: "NVIDIA's wheels", VENDOR: "NVIDIA's package repository"}
    needed = " or ".join(places.get(row.origin, row.origin) for row in rows)
    vendor = any(row.origin == VENDOR for row in rows)
    words = "NVIDIA's package repository on the node, and `cuda_repository: true`"
    return Needs(
        subject=f"compiler of CUDA {cuda.id}",
        needed=needed or f"a row in toolkits.yaml for {host.architecture}",
        found=distro.id,
        help=Remedy(words=words, want=(("cuda_repository", True),)) if vendor else None,
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
