"""What a memory plan is asked for, and what it answers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from gpuwright.architecture import Architecture, LayerGroup
from gpuwright.memory.lora import LoraRoom
from gpuwright.memory.terms import TermsRow
from gpuwright.plan import MemoryPlan, MemoryTerm
from gpuwright.rows import KvCacheDtypeRow

GIB = 2**30
MIB = 2**20
SPARE_PERCENT = 2
"""Of a device, what every plan leaves free; of one whole request, what a cache has beyond it.
With less, a start succeeds or fails by chance."""
TIGHT_SHARE = 0.06
"""A plan that leaves less than this share of its device says so."""
_STEPS = (1, 1.5)
_SMALLEST_CONTEXT = 2048


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceMemory:
    """A device to plan on: what it has in all, and what is left when others' use is taken off."""

    name: str
    total_bytes: int
    available_bytes: int
    others_bytes: int = 0

    def capped(self, percent: int) -> DeviceMemory:
        """The device with at most `percent` of it to be had, by others and by this service."""
        most = max(0, self.total_bytes * percent // 100 - self.others_bytes)
        return self if self.available_bytes <= most else replace(self, available_bytes=most)


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftMemory:
    """A drafter beside the model: its weights, and its layers' cache."""

    weights_bytes: int
    groups: tuple[LayerGroup, ...] | None = ()
    """Layers that keep a cache of their own; None where nobody has read them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryRequest:
    """`max_model_len` and `max_num_seqs` are pins, or None for the largest that fits."""

    architecture: Architecture
    kv: KvCacheDtypeRow
    weights_bytes: int
    devices: tuple[DeviceMemory, ...]
    """The first is the main one, where an engine gives one more to do than the others."""
    on_gpu: bool
    model_context_tokens: int
    target_context_tokens: int
    target_num_seqs: int
    max_num_batched_tokens: int
    terms: TermsRow | None = None
    """The engine's measured terms; llama.cpp needs none."""
    engine: str = ""
    """Whose measured caches count, for a model that no formula covers."""
    ram_bytes: int = 0
    """The node's RAM, for what stays beside the cards."""
    host_bytes: int = 0
    """Part of the weights that llama.cpp keeps in RAM even with every layer on a card."""
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    steps_may_shrink: bool = False
    """`max_num_batched_tokens` is no pin, so a pinned context may have it smaller."""
    must_draft: bool = False
    """The draft is a pin: a smaller reserve comes before no plan."""
    share: float | None = None
    """Share of each card that the engine is given, pinned."""
    draft_tokens: int = 0
    """Tokens drafted at a time: by `draft`, or else by the model's own layers."""
    draft: DraftMemory | None = None
    prefix_caching: bool = True
    state_bytes: int = 4
    """Bytes of an element of a linear-attention state."""
    vision: bool = False
    """Images are profiled or encoded."""
    projector_bytes: int = 0
    """A separate image encoder's weights."""
    lora: LoraRoom | None = None
    """What adapters are kept beside the weights."""
    offload: bool = False
    """Experts may stay in RAM where the cards do not hold them."""
    expert_bytes: int = 0
    """Part of the weights that is routed experts."""
    output_bytes: int = 0
    """Part of the weights that is the output matrix, which llama.cpp keeps whole."""
    ram_available_bytes: int = 0
    """What of the RAM such a part may take; none of it where a card's memory is the RAM."""
    shares_ram: bool = False
    """The device's memory is the node's RAM, so that what stands in either is taken of it."""
    row: str | None = None
    """Where the figures stand, for a shortage to name."""

    @property
    def tensor_parallel_size(self) -> int:
        return len(self.devices)

    @property
    def smallest(self) -> DeviceMemory:
        return min(self.devices, key=lambda device: device.available_bytes)

    @property
    def sequences(self) -> int:
        return self.max_num_seqs or self.target_num_seqs

    @property
    def lora_bytes(self) -> int:
        """What adapters take of each device."""
        if self.lora is None:
            return 0
        return self.lora.on_device(self.architecture, self.tensor_parallel_size)

    def lora_terms(self) -> tuple[MemoryTerm, ...]:
        """The same as a line of the memory plan; none without adapters."""
        if self.lora is None:
            return ()
        note = f"rank {self.lora.rank}, {self.lora.places} at once"
        return (MemoryTerm(name="LoRA adapters", bytes=self.lora_bytes, note=note),)

    def contexts(self) -> tuple[int, ...]:
        """Contexts to try, largest first: the pin alone, or the model's own and coarse steps."""
        if self.max_model_len is not None:
            return (self.max_model_len,)
        return _contexts(self.model_context_tokens)


@lru_cache(maxsize=256)
def _contexts(model_context_tokens: int) -> tuple[int, ...]:
    """The steps are coarse so that a few MiB more or less on a node do not change its plan."""
    found = [model_context_tokens]
    power = 1 << model_context_tokens.bit_length()
    while power >= _SMALLEST_CONTEXT:
        for step in reversed(_STEPS):
            tokens = int(power * step)
            if _SMALLEST_CONTEXT <= tokens < model_context_tokens:
                found.append(tokens)
        power >>= 1
    return tuple(found)


def first_that_fits(contexts: Sequence[int], fits: Callable[[int], bool]) -> int | None:
    """The largest of `contexts`, which come largest first, that fits; None where none does.

    Found by halving: a shorter context fits wherever a longer one does. Most often the first fits,
    or none does, so those are asked first.
    """
    if not contexts or not fits(contexts[-1]):
        return None
    if fits(contexts[0]):
        return contexts[0]
    index = bisect_left(contexts, True, key=fits)
    return contexts[index]


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """A plan in numbers, each of one device; None where a figure has no meaning for the engine."""

    weights_bytes: int
    kv_cache_bytes: int
    reserve_bytes: int
    """What is kept free of all of it: workspace that no profile sees, and what is left."""
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None
    """Requests of full length that the cache holds at once."""
    block_tokens: int | None = None
    num_blocks: int | None = None
    bytes_per_token: int | None = None
    """By which a longer context grows."""
    state_bytes_per_sequence: int | None = None
    """Linear-attention states of one request."""


def token_figures(
    memory: MemoryPlan,
    *,
    weights_bytes: int,
    cached_tokens: int,
    max_model_len: int,
    bytes_per_token: int,
    state_bytes_per_sequence: int,
) -> Figures:
    """The figures of an engine whose cache is counted in tokens, not in blocks."""
    return Figures(
        weights_bytes=weights_bytes,
        kv_cache_bytes=cached_tokens * bytes_per_token,
        reserve_bytes=memory.margin_bytes,
        kv_cache_tokens=cached_tokens,
        max_concurrency=cached_tokens / max_model_len,
        bytes_per_token=bytes_per_token,
        state_bytes_per_sequence=state_bytes_per_sequence,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Details:
    """What is said of a memory plan that is taken."""

    memory: MemoryPlan
    """Of the device that is the fullest."""
    figures: Figures
    devices: tuple[MemoryPlan, ...]
    """Of each device, in the order of the request."""
    ram_bytes: int = 0
    """What stays in RAM beside cards."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """Settings of the engine that the plan stands on, in neutral words."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """A memory plan that holds: what it is compared by with other candidates' plans.

    Of all that fit one is taken, so its details are worked out only where they are asked for.
    """

    max_model_len: int
    max_num_seqs: int
    kv_cache_tokens: int
    cpu_expert_layers: int = 0
    """Layers, counted from the first, whose experts the CPU computes."""
    below_advice: bool = False
    """It keeps a smaller reserve than is advised, as a pin fits no other way."""
    details: Callable[[], Details] = field(compare=False, repr=False)

    @property
    def memory(self) -> MemoryPlan:
        return self.details().memory

    @property
    def devices(self) -> tuple[MemoryPlan, ...]:
        return self.details().devices

    @property
    def figures(self) -> Figures:
        return self.details().figures

    @property
    def parameters(self) -> dict[str, Any]:
        return self.details().parameters

    @property
    def warnings(self) -> tuple[str, ...]:
        return self.details().warnings


def usable_bytes(available_bytes: int) -> int:
    """What a plan may fill of a device at most."""
    return available_bytes * (100 - SPARE_PERCENT) // 100


def with_spare(needed_bytes: int) -> int:
    """What a device must have for `needed_bytes` and the spare beside them."""
    return -(-needed_bytes * 100 // (100 - SPARE_PERCENT))


def comfort_bytes(available_bytes: int) -> int:
    """What a device had better keep free: 6 %, and 1 GiB at least."""
    return max(int(available_bytes * TIGHT_SHARE), GIB)


def on_each(request: MemoryRequest, memory: MemoryPlan) -> tuple[MemoryPlan, ...]:
    """What the devices hold where each takes the same."""
    return tuple(
        replace(memory, where=device.name, available_bytes=device.available_bytes)
        for device in request.devices
    )


def tight(memory: MemoryPlan) -> tuple[str, ...]:
    """A warning where less than 6 % or 1 GiB of the device stays free."""
    floor = comfort_bytes(memory.available_bytes)
    if memory.margin_bytes >= floor:
        return ()
    return (
        f"memory is tight: {memory.margin_bytes / GIB:.2f} GiB of {memory.where} stay free, "
        f"{floor / GIB:.2f} GiB would be comfortable",
    )


def less_than_advised(request: MemoryRequest, *, left: int, advised: int) -> str:
    """The warning of a plan that keeps a smaller reserve for what is pinned."""
    pinned = "context" if request.max_model_len is not None else "draft"
    return (
        f"the pinned {pinned} leaves {left / GIB:.2f} GiB outside the pool, where "
        f"{advised / GIB:.2f} GiB are advised"
    )


def spared(count: int) -> int:
    """`count` with the spare that is asked beyond it."""
    return count * (100 + SPARE_PERCENT) // 100
