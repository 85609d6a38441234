"""Whether a build runs on a node and its cards: each rule is one small function that answers None,
or the reason why not."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from gpuwright.catalogue import Matrix
from gpuwright.engine_rows import BuildTagRow, ReleaseRow
from gpuwright.host import Gpu, Host
from gpuwright.interpreters import interpreter, pythons, served_pythons
from gpuwright.refusals import DriverTooOld, Needs, NoKernels, Reason
from gpuwright.remedies import Remedy
from gpuwright.rows import KernelModule
from gpuwright.versions import at_least, parse_version, within

UNKNOWN = "unknown"


def architecture(host: Host, release: ReleaseRow, tag: BuildTagRow) -> Reason | None:
    known = tag.architectures or release.architectures
    if host.architecture in known:
        return None
    return Needs(
        subject="architecture",
        needed=" or ".join(known),
        found=host.architecture or UNKNOWN,
        row=release.id,
    )


def c_library(host: Host, release: ReleaseRow) -> Reason | None:
    oldest = release.oldest_glibc(host.architecture)
    if oldest is None or (host.glibc and at_least(host.glibc, oldest)):
        return None
    return Needs(
        subject="glibc",
        needed=f">= {oldest}",
        found=host.glibc or UNKNOWN,
        help=f"a release of the node's distribution with glibc {oldest} or newer",
        row=release.id,
    )


def python(host: Host, release: ReleaseRow, tag: BuildTagRow, matrix: Matrix) -> Reason | None:
    """A Python that the release serves is there, or a row of pythons.yaml brings it."""
    if not release.python or interpreter(host, release, tag, matrix) is not None:
        return None
    return Needs(
        subject="Python",
        needed=" or ".join(served_pythons(host, release, tag, matrix)),
        found=", ".join(dict.fromkeys(each.version for each in pythons(host))) or UNKNOWN,
        help=f"a row in pythons.yaml that brings one to {host.architecture}",
        row=release.id,
    )


def driver(host: Host, tag: BuildTagRow, matrix: Matrix) -> Reason | None:
    """The driver must be at least what the CUDA runtime in the binaries needs."""
    if tag.cuda is None:
        return None
    cuda = matrix.cuda_runtime(tag.cuda)
    if host.driver_version is None:
        return Needs(
            subject="driver version",
            needed=f">= {cuda.min_driver}",
            found=UNKNOWN,
            row=f"cuda {cuda.id}",
        )
    if at_least(host.driver_version, cuda.min_driver):
        return None
    return DriverTooOld(
        cuda=cuda.id, needed=cuda.min_driver, found=host.driver_version, row=f"cuda {cuda.id}"
    )


def driven(gpu: Gpu, host: Host, matrix: Matrix) -> Reason | None:
    """The driver knows the card's generation, and is of the flavour that the card takes."""
    reason = _generation(gpu, host.driver_version, matrix)
    row = matrix.gpu(gpu)
    if reason is not None or row is None or host.driver.flavour is None:
        return reason
    if row.kernel_module in (None, KernelModule.EITHER, host.driver.flavour):
        return None
    return Needs(
        subject=f"kernel module for {gpu.name}",
        needed=f"NVIDIA's {row.kernel_module} one",
        found=f"the {host.driver.flavour} one",
        help=f"the driver with its {row.kernel_module} kernel module",
        row=row.id,
    )


def _generation(gpu: Gpu, version: str | None, matrix: Matrix) -> Reason | None:
    row = matrix.generation(gpu.compute_capability) if gpu.compute_capability else None
    if row is None or version is None:
        return None
    late = row.last_driver is not None and not at_least(row.last_driver, version.split(".")[0])
    if not late and at_least(version, row.first_driver):
        return None
    needed = f"of branch {row.last_driver} or older" if late else f">= {row.first_driver}"
    return Needs(
        subject=f"driver for {gpu.name}",
        needed=needed,
        found=version,
        help=Remedy(
            words=f"a driver {needed}", driver=row.last_driver if late else row.first_driver
        ),
        row=f"generations {row.id}",
    )


def kernels(
    gpu: Gpu, release: ReleaseRow, tag: BuildTagRow, architecture: str | None
) -> Reason | None:
    """Code for a capability runs on the same major with an equal or higher minor, no other."""
    if gpu.compute_capability is None:
        return Needs(subject=gpu.name, needed="a compute capability", found=UNKNOWN, row=release.id)
    carried = tag.carried(architecture)
    if _has_code(carried, gpu.compute_capability):
        return None
    return NoKernels(
        gpu=gpu.name,
        capability=gpu.compute_capability,
        carried=carried,
        row=release.id,
    )


@lru_cache(maxsize=1 << 12)
def _has_code(carried: tuple[str, ...], capability: str) -> bool:
    return any(runs(each, capability) for each in carried)


def runs(carried: str, capability: str) -> bool:
    (carried_numbers, *_), (numbers, *_) = parse_version(carried), parse_version(capability)
    return carried_numbers[0] == numbers[0] and carried_numbers <= numbers


def toolkit(gpu: Gpu, tag: BuildTagRow, matrix: Matrix) -> Reason | None:
    """The CUDA compiler must know the card."""
    if tag.cuda is None or gpu.compute_capability is None:
        return None
    cuda = matrix.cuda_runtime(tag.cuda)
    if within(gpu.compute_capability, cuda.capabilities):
        return None
    return Needs(
        subject=f"CUDA {cuda.id}",
        needed=f"compute capability {cuda.capabilities}",
        found=f"{gpu.compute_capability} ({gpu.name})",
        row=f"cuda {cuda.id}",
    )


def kind(gpu: Gpu) -> tuple[str | None, int]:
    """Cards of one kind have one compute capability and, to the nearest GiB, one size."""
    return gpu.compute_capability, round((gpu.total_bytes or 0) / 2**30)


def equal_cards(gpus: tuple[Gpu, ...], row: str | None = None) -> Reason | None:
    """Tensor parallelism runs at the pace of the slowest card and the size of the smallest."""
    if len({kind(gpu) for gpu in gpus}) == 1:
        return None
    return Needs(
        subject="tensor parallelism",
        needed="cards of one kind",
        found=", ".join(gpu.name for gpu in gpus),
        row=row,
    )


def first(reasons: Iterable[Reason | None]) -> Reason | None:
    """The first reason there is; later rules are not asked."""
    for reason in reasons:
        if reason is not None:
            return reason
    return None
