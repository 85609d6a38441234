"""vLLM's pool of blocks: how layers share them, and what one request takes, exact to the token.

It reproduces what the engine prints at start for full attention, sliding windows, linear-attention
hybrids and latent attention; `tests/engines_cpu` holds it to the engine's own CPU build.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil

from gpuwright.architecture import Architecture, LayerGroup, LayerKind
from gpuwright.memory.layers import (
    heads_per_device,
    kv_bytes_per_token,
    linear_state_bytes,
    unquantized,
    unquantized_layers,
)
from gpuwright.rows import KvCacheDtypeRow

CUDA_BLOCK_MULTIPLE = 16
CPU_BLOCK_MULTIPLE = 128
LATENT_HYBRID_MULTIPLE = 128
"""Least multiple of a block where latent attention shares the pool with linear states."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Block tables that a request keeps for one type of layers: `count` of them, all alike."""

    block_tokens: int
    count: int
    kept_tokens: int | None = None
    """Tokens that a sliding window keeps at most; None: the table grows with the context."""

    def need(self, tokens: int) -> int:
        if self.kept_tokens is None:
            return -(-tokens // self.block_tokens) * self.count
        # One more, as a window need not begin where a block does.
        return (-(-min(tokens, self.kept_tokens) // self.block_tokens) + 1) * self.count


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    """How a cache of blocks of `block_bytes` is shared out, on one device."""

    block_tokens: int
    """What the engine calls its block size."""
    block_bytes: int
    tables: tuple[Table, ...]
    state_blocks: int = 0
    """Blocks that hold a request's linear-attention states."""

    def blocks(self, pool_bytes: int) -> int:
        return max(0, pool_bytes) // self.block_bytes

    def need(self, tokens: int) -> int:
        """Blocks that one request of `tokens` takes."""
        return sum(table.need(tokens) for table in self.tables) + self.state_blocks

    def tokens(self, pool_bytes: int, max_model_len: int) -> int:
        """What the engine prints as its cache size: requests of full length times their length."""
        return self.blocks(pool_bytes) * max_model_len // self.need(max_model_len)

    def largest_context(
        self, blocks: int, *, spare_percent: int = 0, step: int = 1, most: int = 1 << 24
    ) -> int:
        """The longest request of whole steps, `most` at the longest, that `blocks` hold with
        something to spare; 0 where they hold none."""
        room = blocks * 100 // (100 + spare_percent)
        if self.need(step) > room:
            return 0
        low, high = 1, max(1, most // step)
        while low < high:
            middle = (low + high + 1) // 2
            if self.need(middle * step) <= room:
                low = middle
            else:
                high = middle - 1
        return low * step


@lru_cache(maxsize=1 << 14)
def pool(
    architecture: Architecture,
    kv: KvCacheDtypeRow,
    tensor_parallel_size: int,
    *,
    max_num_batched_tokens: int = 8192,
    in_flight_batches: int = 1,
    draft_tokens: int = 0,
    drafter: tuple[LayerGroup, ...] = (),
    prefix_caching: bool = True,
    state_bytes: int = 4,
    convolution_bytes: int = 2,
    multiple: int = CUDA_BLOCK_MULTIPLE,
    fill_pages: bool = False,
) -> Pool:
    """The pool of `architecture`, with its own draft layers where `draft_tokens` are drafted, or
    with those of an external `drafter`.

    `multiple` is the attention backend's own block multiple. `in_flight_batches` are steps that a
    window's blocks outlive: two where scheduling runs ahead of the device. `fill_pages` makes a
    block of layers whose page does not divide the largest as long as it can be, as a patched engine
    does; the engine itself keeps it short and pads the page.
    """
    size = tensor_parallel_size
    linear = architecture.of(LayerKind.LINEAR)
    layers = _cached_layers(architecture, kv, size, draft_tokens, tuple(drafter))
    kept = in_flight_batches * max_num_batched_tokens - 1
    if not linear and len({_window(group) for group, _ in layers}) == 1:
        (window,) = {_window(group) for group, _ in layers}
        block_tokens = multiple
        if kv.unquantized_layers:
            sizes = [per_token for _, per_token in layers]
            block_tokens *= ceil(max(sizes) / min(sizes))
        per_token = sum(each * count for (_, each), count in layers.items())
        table = Table(block_tokens=block_tokens, count=1, kept_tokens=window and window + kept)
        return Pool(
            block_tokens=block_tokens, block_bytes=block_tokens * per_token, tables=(table,)
        )
    block_tokens = multiple
    if linear:
        grower = next(key for key in layers if key[0].kind is not LayerKind.SLIDING)
        if grower[0].kind is LayerKind.MLA:
            multiple = max(multiple, LATENT_HYBRID_MULTIPLE)
        state = max(
            linear_state_bytes(
                group,
                size,
                state_bytes=state_bytes,
                convolution_bytes=convolution_bytes,
                draft_tokens=draft_tokens,
            )
            for group in linear
        )
        block_tokens = multiple * ceil(state / (multiple * grower[1]))
    page = block_tokens * max(per_token for _, per_token in layers)
    together = _layers_together([*layers.values(), *(group.layers for group in linear)])
    tables = []
    for (group, per_token), count in layers.items():
        fitting = block_tokens
        if page % (block_tokens * per_token) == 0 or fill_pages:
            fitting = page // per_token // multiple * multiple
        window = _window(group)
        tables.append(
            Table(
                block_tokens=fitting,
                count=ceil(count / together),
                kept_tokens=window and window + kept,
            )
        )
    states = (2 if prefix_caching else 1) + draft_tokens
    return Pool(
        block_tokens=block_tokens,
        block_bytes=page * together,
        tables=tuple(tables),
        state_blocks=sum(ceil(group.layers / together) for group in linear) * states,
    )


def measured_pool(architecture: Architecture, kv: KvCacheDtypeRow, engine: str) -> Pool | None:
    """A cache that no formula gives, as the engine was seen to fill it: a pool of single bytes.

    None where nobody has measured it under `engine` in this element type.
    """
    for cache in architecture.measured_caches:
        if cache.engine == engine and kv.id in cache.kv_cache_dtypes:
            table = Table(block_tokens=1, count=cache.bytes_per_token)
            return Pool(
                block_tokens=1,
                block_bytes=1,
                tables=(table,),
                state_blocks=cache.bytes_per_sequence,
            )
    return None


def _cached_layers(
    architecture: Architecture,
    kv: KvCacheDtypeRow,
    size: int,
    draft_tokens: int,
    drafter: tuple[LayerGroup, ...],
) -> Counter[tuple[LayerGroup, int]]:
    """Layers with a cache by type and bytes per token: those that the engine takes for alike count
    together."""
    counts: Counter[tuple[LayerGroup, int]] = Counter()
    own = architecture.mtp_layers if draft_tokens and not drafter else 0
    plain = unquantized_layers(architecture, kv)
    for group in (*architecture.groups, *drafter):
        if group.kind is LayerKind.LINEAR:
            continue
        more = 0
        if group.kind is not LayerKind.SLIDING:
            more, own = own, 0
        heads = heads_per_device(group.kv_heads, size)
        alike = replace(group, layers=1, kv_heads=heads)
        counts[alike, kv_bytes_per_token(alike, kv, 1)] += group.layers + more - plain
        if plain:
            counts[alike, kv_bytes_per_token(alike, unquantized(kv), 1)] += plain
            plain = 0
    return counts


def _window(group: LayerGroup) -> int | None:
    return group.window if group.kind is LayerKind.SLIDING else None


def _layers_together(counts: list[int]) -> int:
    """Layers that share a table: the fewest of a type, or the most where these are hardly more."""
    fewest, most = min(counts), max(counts)
    return most if most < fewest * 1.5 else fewest
