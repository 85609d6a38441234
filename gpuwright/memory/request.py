"""What a memory plan is asked for, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from gpuwright.model_rows import Architecture
from gpuwright.plan import MemoryPlan
from gpuwright.refusals import OutOfMemory
from gpuwright.rows import KvCacheDtypeRow

GIB = 2**30
MIB = 2**20
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


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryRequest:
    """`max_model_len` and `max_num_seqs` are pins, or None for the largest that fits."""

    architecture: Architecture
    kv: KvCacheDtypeRow
    weights_bytes: int
    devices: tuple[DeviceMemory, ...]
    on_gpu: bool
    model_context_tokens: int
    target_context_tokens: int
    target_num_seqs: int
    max_num_batched_tokens: int
    ram_bytes: int = 0
    """The node's RAM, for what stays beside the cards."""
    host_bytes: int = 0
    max_model_len: int | None = None
    max_num_seqs: int | None = None

    @property
    def tensor_parallel_size(self) -> int:
        return len(self.devices)

    @property
    def smallest(self) -> DeviceMemory:
        return min(self.devices, key=lambda device: device.available_bytes)

    def contexts(self) -> Iterator[int]:
        """Contexts to try, largest first: the pin alone, or the model's own and coarse steps.

        The steps are coarse so that a few MiB more or less on a node do not change its plan.
        """
        if self.max_model_len is not None:
            yield self.max_model_len
            return
        yield self.model_context_tokens
        power = 1 << self.model_context_tokens.bit_length()
        while power >= _SMALLEST_CONTEXT:
            for step in reversed(_STEPS):
                tokens = int(power * step)
                if _SMALLEST_CONTEXT <= tokens < self.model_context_tokens:
                    yield tokens
            power >>= 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """A memory plan that holds, with the context and the requests it holds for."""

    memory: MemoryPlan
    max_model_len: int
    max_num_seqs: int
    parameters: dict[str, Any] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def tight(memory: MemoryPlan) -> tuple[str, ...]:
    """A warning where less than 6 % or 1 GiB of the device stays free."""
    floor = max(int(memory.available_bytes * TIGHT_SHARE), GIB)
    if memory.margin_bytes >= floor:
        return ()
    return (
        f"memory is tight: {memory.margin_bytes / GIB:.2f} GiB of {memory.where} stay free, "
        f"{floor / GIB:.2f} GiB would be comfortable",
    )


def largest(
    request: MemoryRequest, attempt: Callable[[int], Fit | OutOfMemory]
) -> Fit | OutOfMemory:
    """The first context of `request` that `attempt` fits, or why not even the smallest does.

    For a context that is pinned and does not fit, the answer names the largest that would.
    """
    shortage: OutOfMemory | None = None
    for tokens in request.contexts():
        answer = attempt(tokens)
        if isinstance(answer, Fit):
            return answer
        shortage = answer
    assert shortage is not None
    return shortage
