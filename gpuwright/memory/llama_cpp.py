"""llama.cpp: weights, a cache of fixed size per slot, and buffers that grow with the context.

Layers are split over the cards by the room that each has; where the request allows it, experts of
the first layers stay in RAM, of as few layers as the cards need. What may give way without harm
(slots, layers with their experts on a card, context beyond the workload's) leaves a card
comfortable; only what is asked for fills it to the last percents.
"""

from __future__ import annotations

from functools import partial

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
from gpuwright.memory.pool import measured_pool
from gpuwright.memory.request import (
    GIB,
    MIB,
    Details,
    DeviceMemory,
    Figures,
    Fit,
    MemoryRequest,
    comfort_bytes,
    first_that_fits,
    tight,
    usable_bytes,
    with_spare,
)
from gpuwright.memory.split import layer_split
from gpuwright.plan import KV_CACHE, WEIGHTS, MemoryPlan, MemoryTerm
from gpuwright.quoting import counted
from gpuwright.refusals import Needs, OutOfMemory, Reason

_TERMS = (
    WEIGHTS,
    KV_CACHE,
    "linear states",
    "compute buffers",
    "runtime",
    "draft",
    "drafter and images",
    "prompt cache",
    "saved states",
)
DRAFT_SPARE_BYTES = GIB
"""Left free beside a draft where the context is ours to choose: a 27B with MTP started at 196K
tokens on 24 GB and died as its cache filled, and held 164K
(https://github.com/noonghunna/club-3090/blob/4a29ab57/BENCHMARKS.md)."""


def fit(request: MemoryRequest) -> Fit | Reason:
    """The plan of `request`: whole on its devices, or with experts in RAM where that may be."""
    architecture = request.architecture
    if architecture.measured_caches and not measured_pool(architecture, request.kv, "llama.cpp"):
        return Needs(
            subject="cache under llama.cpp", needed="one that was measured", found=request.kv.id
        )
    whole = _Placing(request)
    found = whole.largest()
    if found is not None:
        return found
    if request.offload and whole.apart and request.expert_bytes:
        return _with_experts_in_ram(request, whole)
    return whole.shortage()


def _with_experts_in_ram(request: MemoryRequest, whole: _Placing) -> Fit | OutOfMemory:
    """The experts of as few layers in RAM as leave the cards at ease with the longest context that
    is wanted, or of as many as RAM holds; `whole` does not fit."""
    placings = {0: whole}

    def placing(in_ram: int) -> _Placing:
        if in_ram not in placings:
            placings[in_ram] = _Placing(request, in_ram)
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


class _Placing:
    """`request` with the experts of `in_ram` layers left in RAM."""

    def __init__(self, request: MemoryRequest, in_ram: int = 0) -> None:
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
        self.rooms = [usable_bytes(each.available_bytes) for each in request.devices]
        """What each device may hold."""
        self.comfort = self.rooms
        """What it had better hold; of RAM an eighth is left out already."""
        if request.on_gpu:
            comfort = [
                each.available_bytes - comfort_bytes(each.available_bytes)
                for each in request.devices
            ]
            self.comfort = [min(pair) for pair in zip(comfort, self.rooms, strict=True)]
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
            beside += self.prompt_cache + self._saved_bytes(slots)
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
        saved = 0 if self.apart else self._saved_bytes(slots)
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

    def _checkpoints(self, slots: int) -> int:
        """Saved states of each slot, which are there to read a prompt again."""
        if not self.request.prefix_caching:
            return 0
        return context_checkpoints(checkpoint_bytes(self.rates), slots, self.request.ram_bytes)

    def _saved_bytes(self, slots: int) -> int:
        return checkpoint_bytes(self.rates) * self._checkpoints(slots) * slots

    def _tensor_split(self) -> tuple[int, ...]:
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
            f"{counted(self._checkpoints(slots), 'checkpoint')} for each of {each}",
        )
        return [
            tuple(
                MemoryTerm(name=name, bytes=size, note=note)
                for name, note, size in zip(_TERMS, notes, sizes, strict=True)
                if size
            )
            for sizes in self._sizes(tokens, slots)
        ]

    def _where(self) -> str:
        count = len(self.request.devices)
        text = "one device" if count == 1 else f"layers split over {count} cards"
        if self.adapters_bytes:
            text += ", with adapters"
        if self.in_ram:
            text += f", experts of {counted(self.in_ram, 'layer')} in RAM"
        return text

    def fullest(self, tokens: int, slots: int) -> tuple[int, DeviceMemory, int]:
        """Bytes on the device that is the most filled, that device, and its index."""
        devices = self.request.devices
        found = self.filled(tokens, slots)
        index = max(
            range(len(found)), key=lambda each: found[each] / max(1, devices[each].available_bytes)
        )
        return found[index], devices[index], index

    def holds(self, wanted: int, slots: int, *, comfortable: bool = False) -> bool:
        """Whether each device has room, with something to spare, or so much that it is at ease."""
        request = self.request
        choosing = request.on_gpu and request.max_model_len is None
        spare = DRAFT_SPARE_BYTES if choosing and self.draft_token is not None else 0
        rooms = self.rooms
        if comfortable:
            rooms, spare = self.comfort, 0
        filled = self.filled(wanted, slots)
        filled[self.drafting] += spare
        return all(held <= room for held, room in zip(filled, rooms, strict=True))

    def missing_bytes(self, tokens: int) -> int:
        """How much room the devices lack for the fewest slots of `tokens` at ease."""
        return sum(self.filled(tokens, self.request.max_num_seqs or 1)) - sum(self.comfort)

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

    def _ram_bytes(self, slots: int) -> int:
        """RAM that is taken beside the experts that are there."""
        beside = self.request.host_bytes + CPU_RUNTIME_BYTES + self.prompt_cache
        return beside + self._saved_bytes(slots)

    def most_in_ram(self) -> int:
        """Of how many layers RAM holds the experts."""
        request = self.request
        room = usable_bytes(request.ram_available_bytes) - self._ram_bytes(request.sequences)
        return max(0, min(self.moe, room * self.moe // request.expert_bytes))

    def ram_shortage(self) -> OutOfMemory | None:
        request = self.request
        needed = with_spare(self.ram_experts_bytes + self._ram_bytes(request.sequences))
        if not self.in_ram or needed <= request.ram_available_bytes:
            return None
        return OutOfMemory(
            row=request.row,
            where="RAM",
            needed_bytes=needed,
            available_bytes=request.ram_available_bytes,
            what=f"experts of {counted(self.in_ram, 'layer')}, prompt cache and saved states",
        )

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
        needed, device, _ = self.fullest(tokens, slots)
        return OutOfMemory(
            row=self.request.row,
            where=device.name,
            needed_bytes=with_spare(needed),
            available_bytes=device.available_bytes,
            others_bytes=device.others_bytes,
            what=f"weights, buffers and {slots} x {tokens:,} tokens",
            largest_context_tokens=self._largest_context(tokens, slots),
        )

    def _largest_context(self, short: int, slots: int) -> int | None:
        """The largest context below `short`, which does not fit."""
        if not self.holds(CONTEXT_STEP, slots):
            return None
        low, high = 1, min(short, self.request.model_context_tokens) // CONTEXT_STEP
        while low < high:
            middle = (low + high + 1) // 2
            if self.holds(middle * CONTEXT_STEP, slots):
                low = middle
            else:
                high = middle - 1
        return low * CONTEXT_STEP

    def _fit(self, tokens: int, slots: int) -> Fit:
        # The engine counts layers from the first, those without experts too.
        computed = self.layers - self.moe + self.in_ram if self.in_ram else 0
        return Fit(
            max_model_len=tokens,
            max_num_seqs=slots,
            kv_cache_tokens=tokens * slots,
            cpu_expert_layers=computed,
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
            parameters["context_checkpoints"] = self._checkpoints(slots)
        if request.on_gpu:
            parameters["gpu_layers"] = "all"
        if self.in_ram:
            parameters["cpu_expert_layers"] = cpu_expert_layers
        if len(request.devices) > 1:
            parameters["tensor_split"] = ",".join(map(str, self._tensor_split()))
        return Details(
            memory=memory,
            devices=devices,
            ram_bytes=self.ram_experts_bytes + self._ram_bytes(slots) if self.apart else 0,
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
            warnings=tight(memory) if request.on_gpu else (),
        )
