"""Rows about combinations that go wrong although each part is supported."""

from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field, fields
from enum import StrEnum
from functools import cached_property

from gpuwright.model_rows import LayerKind
from gpuwright.rows import Claim, Device, Effect, Scalar


class Compiler(StrEnum):
    """Whether a node has what kernels are compiled with at start: nvcc and ninja."""

    PRESENT = "present"
    ABSENT = "absent"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class When:
    """A hazard's conditions: all that are named must hold; of a list, any one word.

    A range over what a plan would set, or over a driver, holds only where that is known. Without
    slots, so that `named` is worked out once.
    """

    engines: tuple[str, ...] = ()
    build_tags: tuple[str, ...] = ()
    cuda: tuple[str, ...] = ()
    """CUDA runtimes that the build brings."""
    device: Device | None = None
    backends: tuple[str, ...] = ()
    not_backends: tuple[str, ...] = ()
    kv_cache_dtypes: tuple[str, ...] = ()
    quantizations: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    layers: tuple[LayerKind, ...] = ()
    """Kinds of layers that the model has."""
    experts_misfit: bool | None = None
    """An expert's share does not divide by the checkpoint's group size."""
    speculative: bool | None = None
    draft_tokens: str = ""
    features: tuple[str, ...] = ()
    not_features: tuple[str, ...] = ()
    capabilities: str = ""
    kinds: tuple[str, ...] = ()
    """Kinds of card; one that is not listed has none."""
    gpus: tuple[str, ...] = ()
    unified_memory: bool | None = None
    card_below_mib: int | None = None
    """The smallest card has less memory than this."""
    cards: str = ""
    """How many of them, however the engine divides a model."""
    mixed_cards: bool | None = None
    """They differ in compute capability."""
    tensor_parallel: str = ""
    nvlink: bool | None = None
    pcie_lanes: str = ""
    """Of the card with the fewest in use."""
    power_percent: str = ""
    """Power limit of the card that is held down the most, of its maker's."""
    vgpus: tuple[str, ...] = ()
    """How a card is virtualized, as NVML says it."""
    drivers: str = ""
    virtualizations: tuple[str, ...] = ()
    cpus: tuple[str, ...] = ()
    """What the CPU's model name begins with."""
    compiler: tuple[Compiler, ...] = ()
    ram_misfit: bool | None = None
    """The node has less RAM than the checkpoint is large."""
    max_model_len: str = ""
    max_num_seqs: str = ""
    max_num_batched_tokens: str = ""

    @cached_property
    def named(self) -> tuple[str, ...]:
        """Names of the conditions that are said."""
        return tuple(
            each.name
            for each in fields(self)
            if each.default is not MISSING and getattr(self, each.name) != each.default
        )

    def words(self) -> str:
        """The conditions for people: "engines vllm, capabilities >=9.0"."""
        values = {name: getattr(self, name) for name in self.named}
        return ", ".join(
            f"{name.replace('_', ' ')} "
            + (" or ".join(map(str, value)) if isinstance(value, tuple) else _word(value))
            for name, value in values.items()
        )


def _word(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


RANGES = (
    "draft_tokens",
    "capabilities",
    "cards",
    "tensor_parallel",
    "pcie_lanes",
    "power_percent",
    "drivers",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
)
"""Conditions that are ranges."""
PARAMETERS: dict[str, type] = {
    "prefix_caching": bool,
    "eager": bool,
    "custom_all_reduce": bool,
    "nccl_peer_access": bool,
    "cards_by_index": bool,
    "flashinfer_sampler": bool,
    "flashinfer_fp8_gemm": bool,
    "max_model_len": int,
    "max_num_batched_tokens": int,
    "max_num_seqs": int,
    "draft_tokens": int,
    "gpu_memory_share_cap": int,
    "graph_batch_cap": int,
}
"""What a hazard may set: switches, and ceilings of which the least counts. The share is in percent
of the card, the cap of graphs in requests; launch.py and the memory plan turn them into flags."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class HazardRow:
    id: str
    when: When
    effect: Effect
    because: str
    sources: tuple[Claim, ...]
    instead: str | None = None
    sets: dict[str, Scalar] = field(default_factory=dict)
    """Plan parameters that an `avoid` changes, in neutral words."""
    introduced: str | None = None
    fixed: str | None = None

    def faults(self) -> Iterator[str]:
        if not self.when.named:
            yield ".when: names no condition"
        if self.sets and self.effect is not Effect.AVOID:
            yield ".sets: stands beside effect avoid alone"
        for key, value in self.sets.items():
            kind = PARAMETERS.get(key)
            if kind is None:
                yield f".sets.{key}: unknown; known: {', '.join(PARAMETERS)}"
            elif type(value) is not kind:
                yield f".sets.{key}: {type(value).__name__} where {kind.__name__} is needed"
            elif kind is int and self.when.max_model_len:
                yield f".sets.{key}: the context is known only once memory is planned"
