"""Whether a release can do what a want pins: rules as in compat.py."""

from __future__ import annotations

from gpuwright.engine_rows import MemoryModel, ReleaseRow
from gpuwright.launch_words import named_by_directory
from gpuwright.model_rows import ModelRow
from gpuwright.plan import is_loopback
from gpuwright.refusals import Needs, Reason
from gpuwright.remedies import Remedy
from gpuwright.rows import WorkloadRow
from gpuwright.want import Want

LLAMA_CPP_SEQUENCES = 256


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
