"""The rules: each is one small function that answers None, or the reason why not."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from gpuwright.catalogue import Matrix
from gpuwright.engine_rows import (
    BuildTagRow,
    MemoryModel,
    ReleaseRow,
)
from gpuwright.host import Gpu, Host
from gpuwright.interpreters import interpreter, pythons, served_pythons
from gpuwright.launch_words import named_by_directory
from gpuwright.model_rows import CheckpointRow, ModelRow
from gpuwright.plan import is_loopback
from gpuwright.refusals import DriverTooOld, Needs, NoKernels, Reason, Unlisted
from gpuwright.remedies import Remedy
from gpuwright.rows import KernelModule, QuantizationRow, QuantizationSupport, WorkloadRow
from gpuwright.versions import at_least, parse_version, within
from gpuwright.want import Want

UNKNOWN = "unknown"
LLAMA_CPP_SEQUENCES = 256


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
    if release.glibc is None or (host.glibc and at_least(host.glibc, release.glibc)):
        return None
    return Needs(
        subject="glibc",
        needed=f">= {release.glibc}",
        found=host.glibc or UNKNOWN,
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


def served(release: ReleaseRow, checkpoint: CheckpointRow) -> Reason | None:
    """This release knows the checkpoint's model and layout."""
    releases = checkpoint.engines[release.engine]
    if within(release.release, releases):
        return None
    return Needs(
        subject=checkpoint.id,
        needed=f"{release.engine} {releases}",
        found=release.release,
        row=checkpoint.id,
    )


def cache(kv_cache_dtype: str | None, release: ReleaseRow) -> Reason | None:
    """A pinned type of the cache must be one of the release's."""
    if kv_cache_dtype is None or kv_cache_dtype in release.kv_cache_dtypes:
        return None
    return Needs(
        subject=f"cache of {release.engine} {release.release}",
        needed=" or ".join(release.kv_cache_dtypes),
        found=kv_cache_dtype,
        row=release.id,
    )


def published_size(checkpoint: CheckpointRow) -> Reason | None:
    """What was never printed and never pinned cannot be fitted."""
    if checkpoint.max_bytes is not None:
        return None
    return Needs(
        subject=f"size of {checkpoint.id}",
        needed="a published figure, or its files pinned",
        found="none",
        row=checkpoint.id,
    )


@lru_cache(maxsize=1 << 12)
def projectors(model: ModelRow, release: ReleaseRow) -> tuple[CheckpointRow, ...]:
    """The model's projectors of known size that `release` loads."""
    return tuple(
        row
        for row in model.projectors
        if release.engine in row.engines and row.max_bytes is not None
    )


def images(model: ModelRow, release: ReleaseRow) -> Reason | None:
    """Images need a model that takes them and, in llama.cpp, a projector file."""
    if not model.architecture.vision:
        return Needs(
            subject="vision", needed="a model that takes images", found=model.id, row=model.id
        )
    if "gguf" in release.formats and not projectors(model, release):
        return Needs(
            subject=f"vision of {model.id} under {release.engine}",
            needed="a projector in the catalogue",
            found="none",
            row=model.id,
        )
    return None


def context(max_model_len: int | None, model: ModelRow) -> Reason | None:
    """A pinned context must be one that the model was made for."""
    if max_model_len is None or max_model_len <= model.max_context_tokens:
        return None
    return Needs(
        subject="max_model_len",
        needed=f"at most {model.max_context_tokens:,}",
        found=f"{max_model_len:,}",
        row=model.id,
    )


def sequences(want: Want, release: ReleaseRow, workload: WorkloadRow) -> Reason | None:
    """vLLM does not start where one step cannot hold a token of each request, llama.cpp where
    there are more than its LLAMA_MAX_SEQ (src/llama-cparams.h at b11434)."""
    max_num_seqs = want.max_num_seqs
    step = want.max_num_batched_tokens or workload.max_num_batched_tokens
    limits = {
        MemoryModel.VLLM: (step, f", the tokens of one step for {workload.id}", workload.id),
        MemoryModel.LLAMA_CPP: (LLAMA_CPP_SEQUENCES, "", release.id),
    }
    most, because, row = limits.get(release.memory_model, (None, "", None))
    if most is None or max_num_seqs is None or max_num_seqs <= most:
        return None
    return Needs(
        subject="max_num_seqs",
        needed=f"at most {most:,}{because}",
        found=f"{max_num_seqs:,}",
        row=row,
    )


def batching(want: Want, release: ReleaseRow) -> Reason | None:
    """llama.cpp reads prompts in steps of its own."""
    if want.max_num_batched_tokens is None or release.memory_model is not MemoryModel.LLAMA_CPP:
        return None
    return Needs(
        subject="max_num_batched_tokens",
        needed="an engine that batches prompts",
        found=release.engine,
        row=release.id,
    )


def experts(want: Want, release: ReleaseRow, model: ModelRow) -> Reason | None:
    """Pinned experts on the CPU need a model of experts, and an engine that computes them there."""
    if not want.expert_offload:
        return None
    if not model.architecture.experts:
        return Needs(
            subject="expert_offload",
            needed="a model of experts",
            found=model.id,
            help=Remedy(words="`expert_offload` left out", want=(("expert_offload", None),)),
            row=model.id,
        )
    if release.memory_model in (MemoryModel.LLAMA_CPP, MemoryModel.COARSE_EXPERTS_IN_RAM):
        return None
    return Needs(
        subject="expert_offload",
        needed="an engine that computes experts on the CPU",
        found=release.engine,
        row=release.id,
    )


def quantization(
    gpu: Gpu, release: ReleaseRow, checkpoint: CheckpointRow, matrix: Matrix
) -> Reason | None:
    """The engine has kernels for the weights' format on this card."""
    if _is_computed(matrix, release, checkpoint, gpu.compute_capability):
        return None
    row = matrix.quantization(checkpoint.quantization)
    support = _support(row, release)
    if not isinstance(support, QuantizationSupport):
        return support
    if gpu.compute_capability and within(gpu.compute_capability, support.capabilities):
        return None
    return Needs(
        subject=f"{row.id} weights under {release.engine}",
        needed=f"compute capability {support.capabilities}",
        found=f"{gpu.compute_capability or UNKNOWN} ({gpu.name})",
        row=row.id,
    )


def quantization_on_cpu(
    release: ReleaseRow, checkpoint: CheckpointRow, matrix: Matrix
) -> Reason | None:
    """The engine's build for the CPU has kernels for the weights' format."""
    row = matrix.quantization(checkpoint.quantization)
    support = _support(row, release)
    if not isinstance(support, QuantizationSupport):
        return support
    if support.cpu:
        return None
    return Needs(
        subject=f"{row.id} weights under {release.engine}", needed="a card", found="cpu", row=row.id
    )


def _support(row: QuantizationRow, release: ReleaseRow) -> QuantizationSupport | Reason:
    support = row.engines.get(release.engine)
    if support is None:
        return Unlisted(
            subject=f"{row.id} weights under {release.engine}", file="quantizations.yaml"
        )
    if not within(release.release, support.releases):
        return Needs(
            subject=f"{row.id} weights",
            needed=f"{release.engine} {support.releases}",
            found=release.release,
            row=row.id,
        )
    return support


@lru_cache(maxsize=1 << 14)
def _is_computed(
    matrix: Matrix, release: ReleaseRow, checkpoint: CheckpointRow, capability: str | None
) -> bool:
    support = matrix.quantization(checkpoint.quantization).engines.get(release.engine)
    return (
        support is not None
        and within(release.release, support.releases)
        and capability is not None
        and within(capability, support.capabilities)
    )


def tensor_parallel(model: ModelRow, size: int) -> Reason | None:
    """Heads, experts and inner sizes split evenly over `size` cards."""
    misfit = model.architecture.misfit(size)
    if misfit is None:
        return None
    return Needs(
        subject=f"{model.id} over cards",
        needed=f"a tensor parallel size that divides {misfit}",
        found=str(size),
        row=model.id,
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


def guarded(want: Want, release: ReleaseRow) -> Reason | None:
    """A server that asks nobody for a key serves the node itself alone."""
    if release.guarded or is_loopback(want.bind):
        return None
    return Needs(
        subject=f"{release.engine} {release.release} at {want.bind}",
        needed="a server that asks for a key",
        found="none: it answers whoever reaches it",
        help=Remedy(words="`bind: 127.0.0.1`, for this node alone", want=(("bind", "127.0.0.1"),)),
        row=release.id,
    )


def nameable(want: Want, release: ReleaseRow) -> Reason | None:
    """A model that is called as its directory is has no `/` in its name."""
    name = want.served_model_name or ""
    if "/" not in name or not named_by_directory(release.engine, release.release):
        return None
    return Needs(
        subject=f"served_model_name {name} under {release.engine} {release.release}",
        needed="a name without /, since a model is called as its directory is",
        found=name,
        row=release.id,
    )


def first(reasons: Iterable[Reason | None]) -> Reason | None:
    """The first reason there is; later rules are not asked."""
    for reason in reasons:
        if reason is not None:
            return reason
    return None
