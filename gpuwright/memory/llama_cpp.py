"""llama.cpp: weights, a cache of fixed size per slot, and buffers that grow with the context."""

from __future__ import annotations

from collections.abc import Callable

from gpuwright.memory.layers import kv_bytes_per_token, linear_state_bytes
from gpuwright.memory.request import GIB, MIB, Fit, MemoryRequest, largest, tight
from gpuwright.model_rows import Architecture, LayerKind
from gpuwright.plan import MemoryPlan, MemoryTerm
from gpuwright.refusals import OutOfMemory
from gpuwright.rows import KvCacheDtypeRow

MICRO_BATCH = 512
"""Tokens computed at once: the engine's own default, which buffers follow."""
GPU_RUNTIME_BYTES = GIB // 2
CPU_RUNTIME_BYTES = 200 * MIB
MAX_PROMPT_CACHE_BYTES = 2 * GIB
MAX_CONTEXT_CHECKPOINTS = 8
CONTEXT_STEP = 256
"""The engine rounds a slot's context up to this: memory is reckoned for what it makes of one."""
UNQUANTIZED_BYTES = 64


def kv_bytes(
    architecture: Architecture, kv: KvCacheDtypeRow, context_tokens: int, slots: int
) -> int:
    """The cache of `slots` sequences of `context_tokens` each; windows hold theirs alone."""
    total = 0
    for group in architecture.groups:
        if group.kind is LayerKind.LINEAR:
            continue
        tokens = context_tokens
        if group.kind is LayerKind.SLIDING:
            tokens = min(tokens, group.window + MICRO_BATCH)
        total += kv_bytes_per_token(group, kv, 1) * group.layers * tokens * slots
    return total


def scratch_bytes(
    architecture: Architecture, kv: KvCacheDtypeRow, total_tokens: int, micro_batch: int
) -> int:
    """Compute buffers: mask, logits, and one layer expanded to f16 where the cache is quantized."""
    scratch = total_tokens * micro_batch * 2 + architecture.vocabulary * micro_batch * 4
    if kv.bytes_per_32_elements < UNQUANTIZED_BYTES:
        layer = max(
            (group.kv_heads * group.head_size for group in architecture.of(LayerKind.FULL)),
            default=0,
        )
        scratch += layer * 2 * 2 * total_tokens
    return scratch


def state_bytes(architecture: Architecture, slots: int) -> int:
    """Linear-attention states of `slots` sequences."""
    return sum(
        linear_state_bytes(group, 1) * group.layers * slots
        for group in architecture.of(LayerKind.LINEAR)
    )


def draft_bytes(architecture: Architecture, total_tokens: int, micro_batch: int) -> int:
    """A built-in draft: its layers' cache in f16, and a mask of its own."""
    full = architecture.of(LayerKind.FULL)[0]
    cache = full.kv_heads * full.head_size * 2 * 2 * architecture.mtp_layers * total_tokens
    return cache + total_tokens * micro_batch * 2


def prompt_cache_bytes(ram_bytes: int) -> int:
    """RAM for prompts kept between requests; the engine's own default of 8 GiB fits few nodes.

    A sixteenth of the RAM to the nearest 256 MiB, so that it changes at 2, 6, 10 ... GiB of RAM:
    sizes that machines, which are sold by powers of two and keep a few percent back, do not have.
    """
    step = 256 * MIB
    return min(MAX_PROMPT_CACHE_BYTES, (ram_bytes // 16 + step // 2) // step * step)


def context_checkpoint_bytes(architecture: Architecture, kv: KvCacheDtypeRow) -> int:
    """One saved state of a sequence, which models with windows or states keep in RAM; else 0."""
    windows = sum(
        kv_bytes_per_token(group, kv, 1) * group.layers * (group.window + MICRO_BATCH)
        for group in architecture.of(LayerKind.SLIDING)
    )
    return windows + state_bytes(architecture, 1)


def context_checkpoints(
    architecture: Architecture, kv: KvCacheDtypeRow, slots: int, ram_bytes: int
) -> int:
    """Checkpoints per slot within an eighth of the RAM: the engine's own 32 of a 27B take 5 GiB."""
    size = context_checkpoint_bytes(architecture, kv)
    if size == 0:
        return 0
    return min(MAX_CONTEXT_CHECKPOINTS, ram_bytes // 8 // (size * slots))


def fit(request: MemoryRequest) -> Fit | OutOfMemory:
    """The plan of `request`: layers are split over the devices by the room that each has."""
    device = request.smallest
    whole = sum(each.available_bytes for each in request.devices)
    prompt_cache = prompt_cache_bytes(request.ram_bytes)
    checkpoint = context_checkpoint_bytes(request.architecture, request.kv)
    runtime = GPU_RUNTIME_BYTES if request.on_gpu else CPU_RUNTIME_BYTES
    weights = request.weights_bytes - (request.host_bytes if request.on_gpu else 0)

    def share(count: int) -> int:
        # Nothing to share by: the whole of it would have to fit into nothing, and is refused.
        return count * device.available_bytes // whole if whole else count

    def checkpoints(slots: int) -> int:
        return context_checkpoints(request.architecture, request.kv, slots, request.ram_bytes)

    def terms(wanted: int, slots: int) -> tuple[MemoryTerm, ...]:
        tokens = -(-wanted // CONTEXT_STEP) * CONTEXT_STEP
        scratch = scratch_bytes(request.architecture, request.kv, tokens * slots, MICRO_BATCH)
        kept = checkpoints(slots)
        in_ram = (
            MemoryTerm(name="prompt cache", bytes=prompt_cache, note="prompts kept in RAM"),
            MemoryTerm(
                name="saved states",
                bytes=checkpoint * kept * slots,
                note=f"{kept} checkpoints for each of {slots} slots",
            ),
        )
        found = (
            MemoryTerm(name="weights", bytes=share(weights), note=_over(request)),
            MemoryTerm(
                name="KV cache",
                bytes=share(kv_bytes(request.architecture, request.kv, tokens, slots)),
                note=f"{slots} x {tokens:,} tokens in {request.kv.id}",
            ),
            MemoryTerm(
                name="linear states",
                bytes=share(state_bytes(request.architecture, slots)),
                note=f"{slots} slots",
            ),
            MemoryTerm(name="compute buffers", bytes=scratch, note=f"{MICRO_BATCH} tokens a step"),
            MemoryTerm(name="runtime", bytes=runtime, note="process and device context"),
        )
        return tuple(term for term in (*found, *(() if request.on_gpu else in_ram)) if term.bytes)

    def attempt_slots(tokens: int, slots: int) -> Fit | OutOfMemory:
        memory = MemoryPlan(
            where=device.name, available_bytes=device.available_bytes, terms=terms(tokens, slots)
        )
        if memory.needed_bytes * 51 > device.available_bytes * 50:
            return OutOfMemory(
                where=device.name,
                needed_bytes=memory.needed_bytes * 51 // 50,
                available_bytes=device.available_bytes,
                others_bytes=device.others_bytes,
                what=f"weights, buffers and {slots} x {tokens:,} tokens",
                largest_context_tokens=_largest_context(request, terms),
            )
        parameters: dict[str, object] = {
            "flash_attention": "on" if request.on_gpu else "auto",
            "prompt_cache_mib": prompt_cache // MIB,
        }
        if checkpoint:
            parameters["context_checkpoints"] = checkpoints(slots)
        if request.on_gpu:
            parameters["gpu_layers"] = "all"
        if len(request.devices) > 1:
            parameters["tensor_split"] = ",".join(
                str(each.available_bytes // MIB) for each in request.devices
            )
        return Fit(
            memory=memory,
            max_model_len=tokens,
            max_num_seqs=slots,
            parameters=parameters,
            warnings=tight(memory) if request.on_gpu else (),
        )

    def attempt(tokens: int) -> Fit | OutOfMemory:
        if request.max_num_seqs is not None:
            return attempt_slots(tokens, request.max_num_seqs)
        answer: Fit | OutOfMemory = attempt_slots(tokens, request.target_num_seqs)
        for slots in range(request.target_num_seqs - 1, 0, -1):
            # Slots give way before a pinned context does, or one that the workload asks for.
            spare = request.max_model_len is None and tokens > request.target_context_tokens
            if isinstance(answer, Fit) or spare:
                break
            answer = attempt_slots(tokens, slots)
        return answer

    return largest(request, attempt)


def _over(request: MemoryRequest) -> str:
    if len(request.devices) == 1:
        return "one device"
    return f"layers split over {len(request.devices)} cards"


def _largest_context(
    request: MemoryRequest, terms: Callable[[int, int], tuple[MemoryTerm, ...]]
) -> int | None:
    """The longest context that fits in the pinned slots, or else in one, by halving."""
    slots = request.max_num_seqs or 1
    low, high = 0, request.model_context_tokens // CONTEXT_STEP
    while low < high:
        middle = (low + high + 1) // 2
        needed = sum(term.bytes for term in terms(middle * CONTEXT_STEP, slots))
        if needed * 51 <= request.smallest.available_bytes * 50:
            low = middle
        else:
            high = middle - 1
    return low * CONTEXT_STEP or None
