"""Whether a release serves a checkpoint on a card, and so many cards: rules as in compat.py."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

from gpuwright.catalogue import Matrix
from gpuwright.compat import UNKNOWN
from gpuwright.engine_rows import ReleaseRow
from gpuwright.host import Gpu
from gpuwright.model_rows import CheckpointRow, ModelRow
from gpuwright.refusals import Needs, Reason, Unlisted
from gpuwright.remedies import Remedy
from gpuwright.rows import QuantizationRow, QuantizationSupport
from gpuwright.versions import within


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
def projector(model: ModelRow, release: ReleaseRow) -> CheckpointRow | None:
    """The first of the model's projectors of known size that `release` loads, one that is pinned
    before others; None as well for engines that want none beside the weights."""
    return first_pinned(
        row
        for row in model.projectors
        if row.format in release.formats
        and release.engine in row.engines
        and within(release.release, row.engines[release.engine])
        and row.max_bytes is not None
    )


def first_pinned(rows: Iterable[CheckpointRow]) -> CheckpointRow | None:
    """The first that can be brought to a node, or else the first."""
    return min(rows, key=lambda row: row.files is None, default=None)


def takes_images(model: ModelRow) -> Reason | None:
    if model.architecture.vision:
        return None
    return Needs(subject="vision", needed="a model that takes images", found=model.id, row=model.id)


def images(model: ModelRow, release: ReleaseRow, matrix: Matrix) -> Reason | None:
    """Images need a model that takes them and, in llama.cpp, a projector file."""
    reason = takes_images(model)
    if reason is not None or "gguf" not in release.formats or projector(model, release) is not None:
        return reason
    return Needs(
        subject=f"vision of {model.id} under {release.engine}",
        needed="a projector in the catalogue",
        found="none",
        help=tuple(_ways_to_see(model, release, matrix)),
        row=model.id,
    )


def _ways_to_see(model: ModelRow, release: ReleaseRow, matrix: Matrix) -> Iterator[Remedy]:
    """Another engine, and the nearest model that the engine has a projector for."""
    engine = dict.fromkeys(("engine", "release", "build_tag", "checkpoint"))
    yield Remedy(words="another engine, which needs no projector", want=tuple(engine.items()))
    others = [row for row in matrix.models if projector(row, release) is not None]
    nearest = min(others, key=lambda row: (row.family != model.family, -row.merit), default=None)
    if nearest is not None:
        yield Remedy(
            words=f"`model: {nearest.id}`, which has a projector",
            want=(("model", nearest.id), ("checkpoint", None)),
        )
    yield Remedy(words=f"a projector of {model.id} in a file of models (`extra_models`)")


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
