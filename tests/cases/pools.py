"""Pools as engines printed them, beside what our arithmetic makes of the same memory.

A printed GiB is rounded: it stands for all pools within 0.005 of it. A figure is reproduced where
one of these gives it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil, floor
from typing import Any

from gpuwright.architecture import Architecture, LayerGroup, LayerKind
from gpuwright.load import load_matrix
from gpuwright.memory import by_token, llama_cpp_rates
from gpuwright.memory.pool import Pool, pool
from gpuwright.memory.request import GIB, MIB
from gpuwright.rows import KvCacheDtypeRow

ROUNDING = 0.005


def misses(printed: Mapping[str, Any]) -> list[str]:
    """What of a printed pool we do not reproduce, one sentence each."""
    return list(_OF_ENGINES[printed["engine"]](dict(printed)))


def _interval(gib: float) -> tuple[int, int]:
    return ceil((gib - ROUNDING) * GIB), floor((gib + ROUNDING) * GIB)


def _of_vllm(printed: dict[str, Any]) -> Iterator[str]:
    layout = pool(
        _architecture(printed["model"]),
        _kv(printed["kv"]),
        printed["cards"],
        max_num_batched_tokens=printed.get("batch", 8192),
        draft_tokens=printed.get("draft", 0),
        drafter=_drafter(printed.get("drafter")),
        convolution_bytes=printed.get("convolution_bytes", 2),
        prefix_caching=printed.get("prefix_caching", True),
        fill_pages=printed.get("fill_pages", False),
    )
    if "block_tokens" in printed and layout.block_tokens != printed["block_tokens"]:
        yield f"a block of {layout.block_tokens} tokens, {printed['block_tokens']} were printed"
    if "gib" not in printed:
        return
    length = printed["length"]
    low, high = (layout.blocks(size) for size in _interval(printed["gib"]))
    if printed.get("too_short"):
        if high >= layout.need(length):
            yield f"{high} blocks hold {length:,} tokens, which the engine refused"
        return
    wanted = {key: printed[key] for key in ("tokens", "blocks", "requests") if key in printed}
    reporting = printed.get("reporting")
    found = [_figures(layout, blocks, length, reporting) for blocks in range(low, high + 1)]
    if not any(figures | wanted == figures for figures in found):
        yield f"{found[0]} to {found[-1]}, {wanted} was printed"


def _drafter(heads: list[int] | None) -> tuple[LayerGroup, ...]:
    if heads is None:
        return ()
    layers, kv_heads, size = heads
    kind = LayerKind.FULL
    return (LayerGroup(kind=kind, layers=layers, kv_heads=kv_heads, head_size=size),)


def _figures(layout: Pool, blocks: int, length: int, reporting: str | None) -> dict[str, Any]:
    """What the engine prints of a pool of so many blocks."""
    need = layout.need(length)
    tokens = blocks * length // need
    if reporting == "before-0.21":
        # A release then printed what the groups of layers share out, whatever a request takes.
        tokens = blocks // _groups(layout, length) * layout.block_tokens
    return {"blocks": blocks, "tokens": tokens, "requests": round(blocks / need, 2)}


def _groups(layout: Pool, length: int) -> int:
    """Tables that a request keeps: one for each group of layers, states included."""
    states = layout.state_blocks // 2
    return sum(table.count for table in layout.tables) + states


def _of_sglang(printed: dict[str, Any]) -> Iterator[str]:
    layers, heads, size = printed["heads"]
    architecture = Architecture(
        attention_heads=heads,
        hidden_size=heads * size,
        vocabulary=1,
        groups=(LayerGroup(kind=LayerKind.FULL, layers=layers, kv_heads=heads, head_size=size),),
    )
    per_token = by_token.all_layers_bytes_per_token(
        architecture, _kv(printed["kv"]), printed["cards"]
    )
    if printed.get("part") == "keys":
        per_token //= 2
    low, high = (size // per_token for size in _interval(printed["gib"]))
    if not low <= printed["tokens"] <= high:
        yield f"{low:,} to {high:,} tokens, {printed['tokens']:,} were printed"


def _of_llama_cpp(printed: dict[str, Any]) -> Iterator[str]:
    """How much a longer context takes, from the memory that two runs took."""
    architecture, kv = _architecture(printed["model"]), _kv(printed["kv"])
    rates = llama_cpp_rates.rates(architecture, kv)
    draft = llama_cpp_rates.draft_token_bytes(architecture, kv, ())

    def taken(tokens: int) -> int:
        drafting = rates.draft(draft, tokens) if printed.get("draft") else 0
        return rates.cache(tokens, 1) + rates.buffers(tokens) + drafting

    growth = (taken(printed["to"]) - taken(printed["from"])) / MIB
    if growth != printed["mib"]:
        yield f"{growth:g} MiB, {printed['mib']} were taken"


_OF_ENGINES = {"vllm": _of_vllm, "sglang": _of_sglang, "llama.cpp": _of_llama_cpp}


def _architecture(model: str) -> Architecture:
    return next(row.architecture for row in load_matrix().models if row.id == model)


def _kv(name: str) -> KvCacheDtypeRow:
    return next(row for row in load_matrix().kv_cache_dtypes if name in (row.id, *row.aliases))
