"""llama.cpp: weights, a cache of fixed size per slot, and buffers that grow with the context.

Layers are split over the cards by the room that each has; where the request allows it, experts of
the first layers stay in RAM, of as few layers as the cards need.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from gpuwright.memory.llama_cpp_rates import (
    CONTEXT_STEP,
    CPU_RUNTIME_BYTES,
    GPU_RUNTIME_BYTES,
    IMAGE_BYTES,
    MICRO_BATCH,
    Rates,
    checkpoint_bytes,
    context_checkpoints,
    draft_token_bytes,
    prompt_cache_bytes,
    rates,
)
from gpuwright.memory.pool import measured_pool
from gpuwright.memory.request import MIB, DeviceMemory, Figures, Fit, MemoryRequest, tight
from gpuwright.memory.split import layer_split
from gpuwright.plan import MemoryPlan, MemoryTerm
from gpuwright.refusals import Needs, OutOfMemory, Reason


def fit(request: MemoryRequest) -> Fit | Reason:
    """The plan of `request`: whole on its devices, or with experts in RAM where that may be."""
    architecture = request.architecture
    if architecture.measured_caches and not measured_pool(architecture, request.kv, "llama.cpp"):
        return Needs(
            subject="cache under llama.cpp", needed="one that was measured", found=request.kv.id
        )
    whole = _Placing(request=request).largest()
    most = architecture.moe_layers
    if isinstance(whole, Fit) or not (request.offload and request.on_gpu and request.expert_bytes):
        return whole
    pinned = request.max_model_len
    target = min(request.target_context_tokens, request.model_context_tokens)
    for tokens in request.contexts():
        if pinned is None and tokens > target:
            continue
        low, high = 1, most
        while low < high:
            middle = (low + high) // 2
            if _Placing(request=request, in_ram=middle).slots(tokens) is not None:
                high = middle
            else:
                low = middle + 1
        placing = _Placing(request=request, in_ram=low)
        if placing.ram_shortage() is None and placing.slots(tokens) is not None:
            return placing.largest()
    return _Placing(request=request, in_ram=most).shortage()


@dataclass(frozen=True, kw_only=True)
class _Placing:
    """`request` with the experts of `in_ram` layers left in RAM."""

    request: MemoryRequest
    in_ram: int = 0

    @cached_property
    def ram_experts_bytes(self) -> int:
        if not self.in_ram:
            return 0
        return self.request.expert_bytes * self.in_ram // self.request.architecture.moe_layers

    @cached_property
    def weights_bytes(self) -> int:
        host = self.request.host_bytes if self.request.on_gpu else 0
        return self.request.weights_bytes - host - self.ram_experts_bytes

    @cached_property
    def split(self) -> tuple[int, ...]:
        """Layers of each device."""
        architecture = self.request.architecture
        layers, moe = architecture.layers, architecture.moe_layers
        experts = self.request.expert_bytes // moe if moe and self.in_ram else 0
        plain = (self.request.weights_bytes - experts * moe) // layers
        # Layers without experts come first, and so do those whose experts stay in RAM.
        bare = layers - moe + self.in_ram
        sizes = [plain + (experts if index >= bare else 0) for index in range(layers)]
        return layer_split(sizes, [each.available_bytes for each in self.request.devices])

    @cached_property
    def shares(self) -> tuple[tuple[int, int], ...]:
        """For each device: its part of the weights in bytes, and its layers."""
        if len(self.request.devices) == 1:
            return ((self.weights_bytes, self.request.architecture.layers),)
        architecture = self.request.architecture
        layers, moe = architecture.layers, architecture.moe_layers
        bare = layers - moe + self.in_ram
        experts = self.request.expert_bytes // moe if moe and self.in_ram else 0
        plain = (self.weights_bytes - experts * (moe - self.in_ram)) // layers
        found, first = [], 0
        for count in self.split:
            carrying = max(0, first + count - max(first, bare))
            found.append((plain * count + experts * carrying, count))
            first += count
        return tuple(found)

    @cached_property
    def prompt_cache(self) -> int:
        return prompt_cache_bytes(self.request.ram_bytes)

    @cached_property
    def rates(self) -> Rates:
        return rates(self.request.architecture, self.request.kv)

    @cached_property
    def checkpoint(self) -> int:
        return checkpoint_bytes(self.rates)

    @cached_property
    def _main_bytes(self) -> int:
        """What the main device holds alone whatever the context."""
        request, held = self.request, self.request.projector_bytes
        if request.projector_bytes or request.vision:
            held += IMAGE_BYTES
        if request.draft is not None:
            held += request.draft.weights_bytes
        return held

    @cached_property
    def _draft_token(self) -> int | None:
        """Cache of one drafted token; None where nothing drafts."""
        request, draft = self.request, self.request.draft
        if not request.draft_tokens and draft is None:
            return None
        groups = (draft.groups or ()) if draft is not None else ()
        return draft_token_bytes(request.architecture, request.kv, groups)

    def _sizes(self, wanted: int, slots: int, index: int) -> tuple[int, ...]:
        """Bytes on the device of that index with `slots` of `wanted` tokens, as `terms`."""
        request, rate = self.request, self.rates
        tokens = -(-wanted // CONTEXT_STEP) * CONTEXT_STEP
        weights, layers = self.shares[index]
        total = request.architecture.layers
        draft = 0
        if index == 0 and self._draft_token is not None:
            draft = rate.draft(self._draft_token, tokens * slots)
        return (
            weights,
            rate.cache(tokens, slots) * layers // total,
            rate.state * slots * layers // total,
            rate.buffers(tokens * slots) - (rate.logits if index else 0),
            GPU_RUNTIME_BYTES if request.on_gpu else CPU_RUNTIME_BYTES,
            draft,
            0 if index else self._main_bytes,
            0 if request.on_gpu else self.prompt_cache,
            0 if request.on_gpu else self._saved_bytes(slots),
        )

    def _saved_bytes(self, slots: int) -> int:
        kept = context_checkpoints(self.checkpoint, slots, self.request.ram_bytes)
        return self.checkpoint * kept * slots

    def terms(self, tokens: int, slots: int, index: int) -> tuple[MemoryTerm, ...]:
        """What stands on the device of that index with `slots` of `tokens`."""
        rounded = -(-tokens // CONTEXT_STEP) * CONTEXT_STEP
        kept = context_checkpoints(self.checkpoint, slots, self.request.ram_bytes)
        names = {
            "weights": self._where(),
            "KV cache": f"{slots} x {rounded:,} tokens in {self.request.kv.id}",
            "linear states": f"{slots} slots",
            "compute buffers": f"{MICRO_BATCH} tokens a step",
            "runtime": "process and device context",
            "draft": "cache in f16, buffers",
            "drafter and images": "on the main device",
            "prompt cache": "prompts kept in RAM",
            "saved states": f"{kept} checkpoints for each of {slots} slots",
        }
        sizes = self._sizes(tokens, slots, index)
        return tuple(
            MemoryTerm(name=name, bytes=size, note=note)
            for (name, note), size in zip(names.items(), sizes, strict=True)
            if size
        )

    def _where(self) -> str:
        count = len(self.request.devices)
        text = "one device" if count == 1 else f"layers split over {count} cards"
        if self.in_ram:
            text += f", experts of {self.in_ram} layers in RAM"
        return text

    def needed(self, tokens: int, slots: int) -> tuple[int, DeviceMemory, int]:
        """Bytes on the device that is the most filled, that device, and its index."""
        devices = self.request.devices
        if len(devices) == 1:
            return sum(self._sizes(tokens, slots, 0)), devices[0], 0
        found = [
            (sum(self._sizes(tokens, slots, index)), device, index)
            for index, device in enumerate(self.request.devices)
        ]
        return max(found, key=lambda each: each[0] / max(1, each[1].available_bytes))

    def holds(self, tokens: int, slots: int) -> bool:
        needed, device, _ = self.needed(tokens, slots)
        return needed * 51 <= device.available_bytes * 50

    def slots(self, tokens: int) -> int | None:
        """Slots of `tokens` each that fit: the pin, or as many as are wanted or fewer; or None."""
        request = self.request
        if request.max_num_seqs is not None:
            return request.max_num_seqs if self.holds(tokens, request.max_num_seqs) else None
        if self.holds(tokens, request.target_num_seqs):
            return request.target_num_seqs
        # Slots give way before a pinned context does, or one that the workload asks for.
        if request.max_model_len is None and tokens > request.target_context_tokens:
            return None
        for slots in range(request.target_num_seqs - 1, 0, -1):
            if self.holds(tokens, slots):
                return slots
        return None

    def ram_shortage(self) -> OutOfMemory | None:
        if not self.in_ram:
            return None
        request = self.request
        slots = request.max_num_seqs or 1
        needed = self.ram_experts_bytes + request.host_bytes + CPU_RUNTIME_BYTES
        needed += self.prompt_cache + self._saved_bytes(slots)
        if needed <= request.ram_available_bytes:
            return None
        return OutOfMemory(
            where="RAM",
            needed_bytes=needed,
            available_bytes=request.ram_available_bytes,
            what=f"experts of {self.in_ram} layers, prompt cache and saved states",
        )

    def largest(self) -> Fit | OutOfMemory:
        """The first context that fits, or why not even the smallest does."""
        for tokens in self.request.contexts():
            slots = self.slots(tokens)
            if slots is not None:
                return self._fit(tokens, slots)
        return self.shortage()

    def shortage(self) -> OutOfMemory:
        if (short := self.ram_shortage()) is not None:
            return short
        *_, tokens = self.request.contexts()
        slots = self.request.max_num_seqs or 1
        needed, device, _ = self.needed(tokens, slots)
        return OutOfMemory(
            where=device.name,
            needed_bytes=needed * 51 // 50,
            available_bytes=device.available_bytes,
            others_bytes=device.others_bytes,
            what=f"weights, buffers and {slots} x {tokens:,} tokens",
            largest_context_tokens=self._largest_context(slots),
        )

    def _largest_context(self, slots: int) -> int | None:
        low, high = 0, self.request.model_context_tokens // CONTEXT_STEP
        while low < high:
            middle = (low + high + 1) // 2
            if self.holds(middle * CONTEXT_STEP, slots):
                low = middle
            else:
                high = middle - 1
        return low * CONTEXT_STEP or None

    def _fit(self, tokens: int, slots: int) -> Fit:
        request, architecture = self.request, self.request.architecture
        _, device, index = self.needed(tokens, slots)
        memory = MemoryPlan(
            where=device.name,
            available_bytes=device.available_bytes,
            terms=self.terms(tokens, slots, index),
        )
        parameters: dict[str, object] = {
            "flash_attention": "on" if request.on_gpu else "auto",
            "prompt_cache_mib": self.prompt_cache // MIB,
        }
        if self.checkpoint:
            parameters["context_checkpoints"] = context_checkpoints(
                self.checkpoint, slots, request.ram_bytes
            )
        if request.on_gpu:
            parameters["gpu_layers"] = "all"
        if self.in_ram:
            # The engine counts layers from the first, those without experts too.
            parameters["cpu_expert_layers"] = (
                architecture.layers - architecture.moe_layers + self.in_ram
            )
        if len(request.devices) > 1:
            parameters["tensor_split"] = ",".join(
                str(count)
                for count in (
                    self.split
                    if self.in_ram
                    else [each.available_bytes // MIB for each in request.devices]
                )
            )
        kept = {term.name: term.bytes for term in memory.terms}
        return Fit(
            memory=memory,
            max_model_len=tokens,
            max_num_seqs=slots,
            figures=Figures(
                weights_bytes=kept.get("weights", 0),
                kv_cache_bytes=kept.get("KV cache", 0),
                reserve_bytes=memory.margin_bytes,
                kv_cache_tokens=tokens * slots,
                max_concurrency=float(slots),
                bytes_per_token=self.rates.growing,
                state_bytes_per_sequence=self.rates.state,
            ),
            parameters=parameters,
            warnings=tight(memory) if request.on_gpu else (),
        )
