"""What `gpuwright kv` is asked, and its answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpuwright.engine_rows import MemoryModel, ReleaseRow
from gpuwright.memory import cache, vllm_terms
from gpuwright.memory.cache import Cache
from gpuwright.memory.pool import Pool, measured_pool, pool
from gpuwright.memory.request import GIB, MemoryRequest
from gpuwright.model_rows import CheckpointRow, ModelRow
from gpuwright.refusals import Needs, Reason

_LLAMA = "llama.cpp"


@dataclass(frozen=True, kw_only=True, slots=True)
class KvQuestion:
    """`release` is None where none was named: then what holds of any release is reckoned with."""

    request: MemoryRequest
    model: ModelRow
    checkpoint: CheckpointRow | None
    engine: str
    memory_model: MemoryModel
    release: ReleaseRow | None
    block_multiple: int
    tokens: int
    pool_bytes: int
    assumed: tuple[str, ...]
    refused: Reason | None = None
    """Why the card keeps no such cache."""

    @property
    def whole(self) -> bool:
        """Whether the cache is one over all cards, or stands on a single one."""
        return self.memory_model is MemoryModel.LLAMA_CPP or len(self.request.devices) == 1

    @property
    def title(self) -> str:
        engine = f"{self.engine} {self.release.release}" if self.release else self.engine
        size = self.request.tensor_parallel_size
        over = f", tensor parallel {size}" if size > 1 else ""
        return f"{self.model.id} under {engine}, {self.request.kv.id} cache{over}"

    def as_data(self) -> dict[str, Any]:
        return {
            "model": self.model.id,
            "checkpoint": self.checkpoint.id if self.checkpoint else None,
            "engine": self.engine,
            "release": self.release.release if self.release else None,
            "kv_cache_dtype": self.request.kv.id,
            "tensor_parallel_size": self.request.tensor_parallel_size,
            "max_model_len": self.tokens,
            "kv_cache_bytes": self.pool_bytes,
            "assumed": list(self.assumed),
        }

    def answer(self) -> Cache | Reason:
        """What the cache holds, or why nobody can say it."""
        if self.refused is not None:
            return self.refused
        request, architecture = self.request, self.request.architecture
        if self.memory_model is MemoryModel.VLLM:
            shared = self._layout()
            if not isinstance(shared, Pool):
                return shared
            return cache.of_pool(request, shared, self.pool_bytes, self.tokens)
        if architecture.measured_caches and (
            self.memory_model is not MemoryModel.LLAMA_CPP
            or measured_pool(architecture, request.kv, _LLAMA) is None
        ):
            return Needs(
                subject=f"cache of {self.model.id} under {self.engine}",
                needed="a formula, or one that was measured",
                found=request.kv.id,
                row=self.model.id,
            )
        if self.memory_model is MemoryModel.LLAMA_CPP:
            return cache.of_slots(request, self.pool_bytes, self.tokens)
        return cache.of_tokens(request, self.pool_bytes, self.tokens)

    def _layout(self) -> Pool | Reason:
        request = self.request
        if request.architecture.measured_caches:
            return vllm_terms.layout(request)
        assert request.terms is not None
        return pool(
            request.architecture,
            request.kv,
            request.tensor_parallel_size,
            max_num_batched_tokens=request.max_num_batched_tokens,
            in_flight_batches=request.terms.in_flight_batches if self.release else 1,
            draft_tokens=request.draft_tokens,
            prefix_caching=request.prefix_caching,
            state_bytes=request.state_bytes,
            multiple=self.block_multiple,
            fill_pages=self.release is None,
        )

    def shortage(self, found: Cache) -> str | None:
        """One sentence where the cache does not hold what is asked; None where it does."""
        needed, seqs, blocks = found.needed_bytes, self.request.sequences, found.num_blocks
        if needed <= self.pool_bytes and found.max_concurrency >= 1:
            if blocks is None or not found.state_bytes_per_sequence or seqs <= blocks:
                return None
            return (
                f"max_num_seqs: {seqs:,} requests need a block each for their states, "
                f"found {blocks:,}"
            )
        sentence = (
            f"KV cache: one request of {self.tokens:,} tokens needs {needed / GIB:.4f} GiB, found "
            f"{self.pool_bytes / GIB:.4f} GiB"
        )
        if found.max_context:
            return f"{sentence}; it holds one of {found.max_context:,}"
        return f"{sentence}; it holds none"
