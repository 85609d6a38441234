"""llama.cpp: weights, a cache of fixed size per slot, and buffers that grow with the context.

Layers are split over the cards by the room that each has; where the request allows it, experts of
the first layers stay in RAM, of as few layers as the cards need. What may give way without harm
(slots, layers with their experts on a card, context beyond the workload's) leaves a card
comfortable; only what is asked for fills it to the last percents.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from functools import partial

from gpuwright.memory.llama_cpp_placing import DRAFT_SPARE_BYTES, Placing
from gpuwright.memory.llama_cpp_rates import (
    CONTEXT_STEP,
    checkpoint_bytes,
)
from gpuwright.memory.pool import measured_pool
from gpuwright.memory.request import (
    MIB,
    Details,
    Figures,
    Fit,
    MemoryRequest,
    first_that_fits,
    tight,
    usable_bytes,
    with_spare,
)
from gpuwright.plan import KV_CACHE, WEIGHTS, MemoryPlan
from gpuwright.refusals import Needs, OutOfMemory, Reason, gib


def fit(request: MemoryRequest) -> Fit | Reason:
    """The plan of `request`: whole on its devices, or with experts in RAM where that may be."""
    architecture = request.architecture
    if architecture.measured_caches and not measured_pool(architecture, request.kv, "llama.cpp"):
        return Needs(
            subject="cache under llama.cpp", needed="one that was measured", found=request.kv.id
        )
    answer = _placed(request)
    drafts = bool(request.draft_tokens) or request.draft is not None
    if not (drafts and request.must_draft and request.max_model_len is None):
        return answer
    least = min(request.target_context_tokens, request.model_context_tokens)
    if isinstance(answer, Fit) and answer.max_model_len >= least:
        return answer
    closer = _placed(replace(request, model_context_tokens=least), close=True)
    if isinstance(answer, OutOfMemory):
        return closer
    more = isinstance(closer, Fit) and closer.max_model_len > answer.max_model_len
    return closer if more else answer


def _placed(request: MemoryRequest, *, close: bool = False) -> Fit | OutOfMemory:
    whole = _Answer(request, close=close)
    found = whole.largest()
    if found is not None:
        return found
    if request.offload and whole.apart and request.expert_bytes:
        return _with_experts_in_ram(request, whole)
    return whole.shortage()


def _with_experts_in_ram(request: MemoryRequest, whole: _Answer) -> Fit | OutOfMemory:
    """The experts of as few layers in RAM as leave the cards at ease with the longest context that
    is wanted, or of as many as RAM holds; `whole` does not fit."""
    placings = {0: whole}

    def placing(in_ram: int) -> _Answer:
        if in_ram not in placings:
            placings[in_ram] = _Answer(request, in_ram, close=whole.close)
        return placings[in_ram]

    most = whole.most_in_ram()
    pinned = request.max_model_len
    target = min(request.target_context_tokens, request.model_context_tokens)
    wanted = [each for each in request.contexts() if pinned is not None or each <= target]
    tokens = first_that_fits(wanted, lambda tokens: placing(most).fits(tokens)) if most else None
    if tokens is None:
        return placing(request.architecture.moe_layers).shortage()
    low, high = 1, most
    probes = []
    if len(request.devices) == 1:
        # What is short tells nearly how many it takes, so that is tried before halving.
        short = whole.missing_bytes(tokens) * request.architecture.moe_layers
        near = -(-short // request.expert_bytes)
        probes = [near - 1, near]
    while low < high:
        middle = probes.pop() if probes else (low + high) // 2
        if not low <= middle < high:
            continue
        if placing(middle).fits(tokens, comfortable=True):
            high = middle
        else:
            low = middle + 1
    return placing(low).largest() or placing(low).shortage()


class _Answer(Placing):
    """What a placing answers: how many slots of which context it holds, or what is short."""

    def _slots(self, tokens: int) -> range:
        """Slots that may be answered with `tokens` each, most first: they give way before a pinned
        context does, or one that the workload asks for."""
        request = self.request
        most = request.max_num_seqs or request.target_num_seqs
        rigid = request.max_num_seqs is not None or self._beyond(tokens)
        return range(most, most - 1 if rigid else 0, -1)

    def _beyond(self, tokens: int) -> bool:
        """Whether nobody asked for so long a context."""
        return self.request.max_model_len is None and tokens > self.request.target_context_tokens

    def fits(self, tokens: int, *, comfortable: bool = False) -> bool:
        """Whether `slots` finds any: on cards, whether the fewest fit that it may answer."""
        if not self.request.on_gpu:
            return self.slots(tokens) is not None
        least = self._slots(tokens)[-1]
        return self.holds(tokens, least, comfortable=comfortable or self._beyond(tokens))

    def slots(self, tokens: int) -> int | None:
        """Slots of `tokens` each that fit: the most that leave the devices at ease, or else the
        most that fit at all; or None."""
        for comfortable in (True,) if self._beyond(tokens) else (True, False):
            for slots in self._slots(tokens):
                if self.holds(tokens, slots, comfortable=comfortable):
                    return slots
        return None

    def largest(self) -> Fit | None:
        """With the first context that fits; None where not even the smallest does."""
        tokens = first_that_fits(self.request.contexts(), self.fits)
        slots = None if tokens is None else self.slots(tokens)
        return None if tokens is None or slots is None else self._fit(tokens, slots)

    def shortage(self) -> OutOfMemory:
        """Why not even the smallest context fits."""
        if (short := self.ram_shortage()) is not None:
            return short
        tokens = self.request.contexts()[-1]
        slots = self.request.max_num_seqs or 1
        needed, device, index = self.fullest(tokens, slots, self.spare)
        beside = f", {gib(self.spare[index])} beside the draft" if self.spare[index] else ""
        return OutOfMemory(
            row=self.request.row,
            where=device.name,
            needed_bytes=with_spare(needed),
            available_bytes=device.available_bytes,
            others_bytes=device.others_bytes,
            what=f"weights, buffers and {slots} x {tokens:,} tokens{beside}",
            largest_context_tokens=self._largest_context(slots),
        )

    def _largest_context(self, slots: int) -> int | None:
        """The largest context that fits where it is pinned."""
        request = self.request
        pinned = _Answer(request, self.in_ram, close=True)
        most = min(request.max_model_len or 1 << 62, request.model_context_tokens) // CONTEXT_STEP
        found = bisect_left(
            range(1, most + 1),
            True,
            key=lambda steps: not pinned.holds(steps * CONTEXT_STEP, slots),
        )
        return found * CONTEXT_STEP or None

    def _fit(self, tokens: int, slots: int) -> Fit:
        # The engine counts layers from the first, those without experts too.
        computed = self.layers - self.moe + self.in_ram if self.in_ram else 0
        return Fit(
            max_model_len=tokens,
            max_num_seqs=slots,
            kv_cache_tokens=tokens * slots,
            cpu_expert_layers=computed,
            below_advice=self.close,
            details=partial(self._details, tokens, slots, computed),
        )

    def _details(self, tokens: int, slots: int, cpu_expert_layers: int) -> Details:
        request = self.request
        _, _, index = self.fullest(tokens, slots)
        devices = tuple(
            MemoryPlan(where=device.name, available_bytes=device.available_bytes, terms=terms)
            for device, terms in zip(request.devices, self.terms(tokens, slots), strict=True)
        )
        memory = devices[index]
        parameters: dict[str, object] = {
            "flash_attention": "on" if request.on_gpu else "auto",
            "prompt_cache_mib": self.prompt_cache // MIB,
        }
        if checkpoint_bytes(self.rates):
            parameters["context_checkpoints"] = self.checkpoints(slots)
        if request.on_gpu:
            parameters["gpu_layers"] = "all"
        if self.in_ram:
            parameters["cpu_expert_layers"] = cpu_expert_layers
        if len(request.devices) > 1:
            parameters["tensor_split"] = ",".join(map(str, self.tensor_split()))
        return Details(
            memory=memory,
            devices=devices,
            ram_bytes=self.ram_experts_bytes + self.taken_ram_bytes(slots) if self.apart else 0,
            figures=Figures(
                weights_bytes=memory.bytes_of(WEIGHTS),
                kv_cache_bytes=memory.bytes_of(KV_CACHE),
                reserve_bytes=memory.margin_bytes,
                kv_cache_tokens=tokens * slots,
                max_concurrency=float(slots),
                bytes_per_token=self.rates.growing,
                state_bytes_per_sequence=self.rates.state,
            ),
            parameters=parameters,
            warnings=self._tight(devices, memory),
        )

    def _tight(self, devices: tuple[MemoryPlan, ...], memory: MemoryPlan) -> tuple[str, ...]:
        if not self.request.on_gpu:
            return ()
        if not self.close:
            return tight(memory)
        room = devices[self.drafting]
        advised = room.available_bytes - usable_bytes(room.available_bytes) + DRAFT_SPARE_BYTES
        return (
            f"the pinned draft leaves {gib(room.margin_bytes)} of {room.where} free, where "
            f"{gib(advised)} are advised",
        )
