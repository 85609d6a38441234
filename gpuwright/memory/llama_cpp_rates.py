"""llama.cpp's arithmetic: what a model takes by token, sequence and buffer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from gpuwright.architecture import Architecture, LayerGroup, LayerKind
from gpuwright.memory.layers import (
    UNQUANTIZED_BYTES,
    growing_bytes_per_token,
    kv_bytes_per_token,
    sequence_state_bytes,
    unquantized,
)
from gpuwright.memory.pool import measured_pool
from gpuwright.memory.request import GIB, MIB
from gpuwright.rows import KvCacheDtypeRow

MICRO_BATCH = 512
"""Tokens computed at once: the engine's own default, which buffers follow."""
MASK_BYTES = MICRO_BATCH * 2
"""Of the attention mask, for one token of context."""
GPU_RUNTIME_BYTES = GIB // 2
CPU_RUNTIME_BYTES = 200 * MIB
MAX_PROMPT_CACHE_BYTES = 2 * GIB
MAX_CONTEXT_CHECKPOINTS = 8
CONTEXT_STEP = 256
"""The engine rounds a slot's context up to this: memory is reckoned for what it makes of one."""
IMAGE_BYTES = GIB
"""Buffer to encode an image of 4 megapixels: 561 MiB were seen to be too little for it."""
COMPRESSED_BUFFER_BYTES = 973 * MIB
"""Compute buffers of compressed attention: 7.6 GiB were seen at 4096 tokens at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """What a model takes over all devices: by token, by window, by sequence and by buffer."""

    growing: int
    """Bytes of one token in the layers that keep all of them."""
    windows: tuple[tuple[int, int], ...]
    """Bytes of one token in layers with a window, and the tokens that they keep."""
    sequence: int
    """Bytes of the cache that a sequence takes whatever its length."""
    state: int
    buffer_token: int
    """Compute buffers of one token of all slots together: mask, and a layer expanded to f16."""
    buffer_least: int
    logits: int

    def cache(self, context_tokens: int, slots: int) -> int:
        """The cache of `slots` sequences of `context_tokens` each; windows hold theirs alone."""
        total = self.growing * context_tokens + self.sequence
        for each, kept in self.windows:
            total += each * min(context_tokens, kept)
        return total * slots

    def buffers(self, total_tokens: int) -> int:
        return max(self.buffer_least, self.buffer_token * total_tokens + self.logits)

    def draft(self, token: int, total_tokens: int) -> int:
        """A draft: its cache, a mask and logits of its own."""
        return (token + MASK_BYTES) * total_tokens + self.logits


@lru_cache(maxsize=1 << 14)
def rates(architecture: Architecture, kv: KvCacheDtypeRow) -> Rates:
    growing, sequence = growing_bytes_per_token(architecture, kv, 1), 0
    if architecture.measured_caches and (found := measured_pool(architecture, kv, "llama.cpp")):
        growing, sequence = found.tables[0].count, found.state_blocks
    expanded = 0
    if kv.bytes_per_32_elements < UNQUANTIZED_BYTES:
        heads = [group.kv_heads * group.head_size for group in architecture.of(LayerKind.FULL)]
        expanded = max(heads, default=0) * 2 * 2
    return Rates(
        growing=growing,
        windows=tuple(
            (kv_bytes_per_token(group, kv, 1) * group.layers, group.window + MICRO_BATCH)
            for group in architecture.of(LayerKind.SLIDING)
        ),
        sequence=sequence,
        state=sequence_state_bytes(architecture, 1),
        buffer_token=MASK_BYTES + expanded,
        buffer_least=COMPRESSED_BUFFER_BYTES if architecture.of(LayerKind.COMPRESSED) else 0,
        logits=architecture.vocabulary * MICRO_BATCH * 4,
    )


@lru_cache(maxsize=1 << 14)
def draft_token_bytes(
    architecture: Architecture, kv: KvCacheDtypeRow, groups: tuple[LayerGroup, ...]
) -> int:
    """Cache of one token in a draft's layers, which is f16 whatever that of the model.

    `groups` are an external drafter's; where there are none, the model's own draft layers count.
    """
    if not groups and architecture.mtp_layers:
        source = (*architecture.of(LayerKind.FULL), *architecture.of(LayerKind.MLA))[0]
        groups = (replace(source, layers=architecture.mtp_layers),)
    return sum(kv_bytes_per_token(group, unquantized(kv), 1) * group.layers for group in groups)


def prompt_cache_bytes(ram_bytes: int) -> int:
    """RAM for prompts kept between requests; the engine's own default of 8 GiB fits few nodes.

    A sixteenth of the RAM to the nearest 256 MiB, so that it changes at 2, 6, 10 ... GiB of RAM:
    sizes that machines, which are sold by powers of two and keep a few percent back, do not have.
    """
    step = 256 * MIB
    return min(MAX_PROMPT_CACHE_BYTES, (ram_bytes // 16 + step // 2) // step * step)


def checkpoint_bytes(rate: Rates) -> int:
    """One saved state of a sequence, which models with windows or states keep in RAM; else 0."""
    return sum(each * kept for each, kept in rate.windows) + rate.state


def context_checkpoints(size: int, slots: int, ram_bytes: int) -> int:
    """Checkpoints of `size` per slot within an eighth of the RAM: the engine's own 32 of a 27B
    take 5 GiB."""
    if size == 0:
        return 0
    return min(MAX_CONTEXT_CHECKPOINTS, ram_bytes // 8 // (size * slots))
