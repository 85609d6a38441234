"""Where llama.cpp puts what: layers over the cards by the room of each, and the bytes of each card.

Experts of the first layers may stay in RAM. The projector and a drafter are the first card's; the
output matrix, its logits and the model's own draft layers, which stand behind the layers, the
last one's.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuwright.memory.llama_cpp_rates import (
    CONTEXT_STEP,
    CPU_RUNTIME_BYTES,
    GPU_RUNTIME_BYTES,
    IMAGE_BYTES,
    MICRO_BATCH,
    checkpoint_bytes,
    context_checkpoints,
    draft_token_bytes,
    prompt_cache_bytes,
    rates,
)
from gpuwright.memory.request import (
    GIB,
    DeviceMemory,
    MemoryRequest,
    comfort_bytes,
    usable_bytes,
    with_spare,
)
from gpuwright.memory.split import layer_split
from gpuwright.plan import KV_CACHE, WEIGHTS, MemoryTerm
from gpuwright.quoting import counted
from gpuwright.refusals import OutOfMemory

_BESIDE = "beside"
_TERMS = (
    WEIGHTS,
    KV_CACHE,
    "linear states",
    "compute buffers",
    "runtime",
    "draft",
    _BESIDE,
    "prompt cache",
    "saved states",
)
DRAFT_SPARE_BYTES = GIB
"""Left free beside a draft where the context is ours to choose: a 27B with MTP started at 196K
tokens on 24 GB and died as its cache filled, and held 164K
(https://github.com/noonghunna/club-3090/blob/4a29ab57/BENCHMARKS.md)."""


class Placing:
    """`request` with the experts of `in_ram` layers left in RAM, as bytes on its devices; `close`
    where a pinned draft has no spare left beside it."""

    def __init__(self, request: MemoryRequest, in_ram: int = 0, *, close: bool = False) -> None:
        architecture, draft = request.architecture, request.draft
        self.request, self.in_ram = request, in_ram
        self.layers, self.moe = architecture.layers, architecture.moe_layers
        self.ram_experts_bytes = request.expert_bytes * in_ram // self.moe if in_ram else 0
        self.apart = request.on_gpu and not request.shares_ram
        """Whether what stays in RAM takes nothing of the device."""
        host = request.host_bytes if self.apart else 0
        self.adapters_bytes = 0
        """Of adapters, which lie beside the weights of their layers."""
        if request.lora is not None:
            self.adapters_bytes = request.lora.on_device(architecture, 1)
        self.weights_bytes = (
            request.weights_bytes + self.adapters_bytes - host - self.ram_experts_bytes
        )
        self.split: tuple[int, ...] = (self.layers,)
        """Layers of each device."""
        self.shares: tuple[int, ...] = (self.weights_bytes,)
        """For each device, its part of the weights in bytes."""
        if len(request.devices) > 1:
            self.split, self.shares = self._over_devices()
        self.runtime = GPU_RUNTIME_BYTES if request.on_gpu else 0
        self.runtime += 0 if self.apart else CPU_RUNTIME_BYTES
        self.prompt_cache = prompt_cache_bytes(request.ram_bytes) if request.prefix_caching else 0
        self.rates = rates(architecture, request.kv)
        self.main_bytes = request.projector_bytes
        """What the main device holds alone whatever the context."""
        if request.projector_bytes or request.vision:
            self.main_bytes += IMAGE_BYTES
        self.draft_token: int | None = None
        """Cache of one drafted token; None where nothing drafts."""
        self.drafting = -1
        """The device that drafts: the last, where the model's own draft layers stand, or the main
        one with a drafter."""
        if draft is not None:
            self.main_bytes += draft.weights_bytes
            self.drafting = 0
        if request.draft_tokens or draft is not None:
            groups = (draft.groups or ()) if draft is not None else ()
            self.draft_token = draft_token_bytes(architecture, request.kv, groups)
        choosing = request.on_gpu and request.max_model_len is None
        self.close = close
        self.spare = [0] * len(request.devices)
        """What is left free of each device beyond what every plan leaves."""
        if choosing and self.draft_token is not None and not close:
            self.spare[self.drafting] = DRAFT_SPARE_BYTES
        self.rooms = [
            usable_bytes(each.available_bytes) - spare
            for each, spare in zip(request.devices, self.spare, strict=True)
        ]
        """What each device may hold."""
        self.comfort = self.rooms
        """What it had better hold; of RAM an eighth is left out already."""
        if request.on_gpu:
            comfort = [
                each.available_bytes - comfort_bytes(each.available_bytes)
                for each in request.devices
            ]
            self.comfort = [min(pair) for pair in zip(comfort, self.rooms, strict=True)]

    def _over_devices(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Layers and bytes of the weights of each of several devices. The output matrix is no part
        of a layer: it stands behind the last one, on the last device."""
        request, layers = self.request, self.layers
        output = min(request.output_bytes, self.weights_bytes)
        # Layers without experts come first, and experts of the first others stay in RAM.
        experts = request.expert_bytes // self.moe if self.in_ram else 0
        bare = layers - self.moe + self.in_ram
        whole = request.weights_bytes + self.adapters_bytes - output
        plain = (whole - experts * self.moe) // layers
        runs = ((bare, plain), (layers - bare, plain + experts))
        split = layer_split(runs, [each.available_bytes for each in request.devices], output)
        plain = (self.weights_bytes - output - experts * (self.moe - self.in_ram)) // layers
        shares, first = [], 0
        for count in split:
            carrying = max(0, first + count - max(first, bare))
            shares.append(plain * count + experts * carrying)
            first += count
        shares[-1] += output
        return split, tuple(shares)

    def filled(self, wanted: int, slots: int) -> list[int]:
        """Bytes on each device with `slots` of `wanted` tokens: asked so often that the sums of
        `_sizes` are spelt out."""
        rate, total = self.rates, self.layers
        tokens = -(-wanted // CONTEXT_STEP) * CONTEXT_STEP
        cache, state = rate.cache(tokens, slots), rate.state * slots
        beside = rate.buffers(tokens * slots) - rate.logits
        beside += self.runtime
        if not self.apart:
            beside += self.prompt_cache + self.saved_bytes(slots)
        found = []
        for weights, layers in zip(self.shares, self.split, strict=True):
            held = weights + cache * layers // total + state * layers // total
            found.append(held + beside)
        found[0] += self.main_bytes
        found[-1] += rate.logits
        if self.draft_token is not None:
            found[self.drafting] += rate.draft(self.draft_token, tokens * slots)
        return found

    def _sizes(self, wanted: int, slots: int) -> list[tuple[int, ...]]:
        """Bytes on each device with `slots` of `wanted` tokens, as `_TERMS` names them."""
        rate = self.rates
        tokens = -(-wanted // CONTEXT_STEP) * CONTEXT_STEP
        cache, state = rate.cache(tokens, slots), rate.state * slots
        buffers = rate.buffers(tokens * slots) - rate.logits
        last = len(self.split) - 1
        drafts = [0] * len(self.split)
        if self.draft_token is not None:
            drafts[self.drafting] = rate.draft(self.draft_token, tokens * slots)
        prompts = 0 if self.apart else self.prompt_cache
        saved = 0 if self.apart else self.saved_bytes(slots)
        runtime = self.runtime
        found: list[tuple[int, ...]] = []
        total = self.layers
        for index, (weights, layers) in enumerate(zip(self.shares, self.split, strict=True)):
            cached, states = cache * layers // total, state * layers // total
            computed = buffers + (rate.logits if index == last else 0)
            main = self.main_bytes if index == 0 else 0
            beside = (runtime, drafts[index], main, prompts, saved)
            found.append((weights, cached, states, computed, *beside))
        return found

    def checkpoints(self, slots: int) -> int:
        """Saved states of each slot, which are there to read a prompt again."""
        if not self.request.prefix_caching:
            return 0
        return context_checkpoints(checkpoint_bytes(self.rates), slots, self.request.ram_bytes)

    def saved_bytes(self, slots: int) -> int:
        return checkpoint_bytes(self.rates) * self.checkpoints(slots) * slots

    def tensor_split(self) -> tuple[int, ...]:
        """Layers of each device as the engine deals them: it counts those that draft and the output
        too, and these come last. One too many there moves no other layer, one too few would."""
        *first, last = self.split
        return (*first, last + self.request.architecture.mtp_layers + 1)

    def terms(self, tokens: int, slots: int) -> list[tuple[MemoryTerm, ...]]:
        """What stands on each device with `slots` of `tokens`."""
        rounded = -(-tokens // CONTEXT_STEP) * CONTEXT_STEP
        each = counted(slots, "slot")
        notes = (
            self._where(),
            f"{slots} x {rounded:,} tokens in {self.request.kv.id}",
            each,
            f"{MICRO_BATCH} tokens a step",
            "process and device context",
            "cache in f16, buffers",
            "on the main device",
            "prompts kept in RAM",
            f"{counted(self.checkpoints(slots), 'checkpoint')} for each of {each}",
        )
        names = [self._beside() if name == _BESIDE else name for name in _TERMS]
        return [
            tuple(
                MemoryTerm(name=name, bytes=size, note=note)
                for name, note, size in zip(names, notes, sizes, strict=True)
                if size
            )
            for sizes in self._sizes(tokens, slots)
        ]

    def _beside(self) -> str:
        """What the main device holds alone."""
        drafter = self.request.draft is not None
        images = bool(self.request.projector_bytes or self.request.vision)
        return " and ".join(["drafter"] * drafter + ["images"] * images)

    def _where(self) -> str:
        count = len(self.request.devices)
        text = "one device" if count == 1 else f"layers split over {count} cards"
        if self.adapters_bytes:
            text += ", with adapters"
        if self.in_ram:
            text += f", experts of {counted(self.in_ram, 'layer')} in RAM"
        return text

    def fullest(
        self, tokens: int, slots: int, spare: Sequence[int] = ()
    ) -> tuple[int, DeviceMemory, int]:
        """Bytes on the device that is the most filled, that device, and its index; with what is to
        stay free of each where `spare` says it."""
        devices = self.request.devices
        found = self.filled(tokens, slots)
        if spare:
            found = [held + free for held, free in zip(found, spare, strict=True)]
        index = max(
            range(len(found)), key=lambda each: found[each] / max(1, devices[each].available_bytes)
        )
        return found[index], devices[index], index

    def holds(self, wanted: int, slots: int, *, comfortable: bool = False) -> bool:
        """Whether each device has room, with something to spare, or so much that it is at ease."""
        rooms = self.comfort if comfortable else self.rooms
        filled = self.filled(wanted, slots)
        return all(held <= room for held, room in zip(filled, rooms, strict=True))

    def missing_bytes(self, tokens: int) -> int:
        """How much room the devices lack for the fewest slots of `tokens` at ease."""
        return sum(self.filled(tokens, self.request.max_num_seqs or 1)) - sum(self.comfort)

    def taken_ram_bytes(self, slots: int) -> int:
        """RAM that is taken beside the experts that are there."""
        beside = self.request.host_bytes + CPU_RUNTIME_BYTES + self.prompt_cache
        return beside + self.saved_bytes(slots)

    def most_in_ram(self) -> int:
        """Of how many layers RAM holds the experts."""
        request = self.request
        room = usable_bytes(request.ram_available_bytes) - self.taken_ram_bytes(request.sequences)
        return max(0, min(self.moe, room * self.moe // request.expert_bytes))

    def ram_shortage(self) -> OutOfMemory | None:
        request = self.request
        needed = with_spare(self.ram_experts_bytes + self.taken_ram_bytes(request.sequences))
        if not self.in_ram or needed <= request.ram_available_bytes:
            return None
        return OutOfMemory(
            row=request.row,
            where="RAM",
            needed_bytes=needed,
            available_bytes=request.ram_available_bytes,
            what=f"experts of {counted(self.in_ram, 'layer')}, prompt cache and saved states",
        )
