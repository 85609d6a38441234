"""What a decision is about: one node with its want, and one combination that may serve there."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import lru_cache

from gpuwright import compat
from gpuwright.attention_rows import AttentionBackendRow
from gpuwright.catalogue import Matrix
from gpuwright.engine_rows import (
    BuildTagRow,
    MemoryModel,
    ReleaseRow,
)
from gpuwright.feature_rows import FeatureRow, FeatureSupport
from gpuwright.host import Gpu, Host
from gpuwright.memory.request import GIB, MIB, DeviceMemory
from gpuwright.model_rows import CheckpointRow, ModelRow
from gpuwright.pins import Pins
from gpuwright.refusals import Needs, Reason, gib
from gpuwright.rows import Device, KvCacheDtypeRow, Scalar
from gpuwright.toolchains import Toolchain
from gpuwright.want import Want

_OTHERS_STEP = 256 * MIB
UNTOLD_BYTES = 3 * GIB // 2
"""What others are taken to hold of a card where processes cannot be told apart, whatever it is in
truth: a desktop's share, and a little more than WSL hides."""
VISIBLE_PERCENT = 98
"""Share of a card that CUDA sees where its row does not say: 23.57 of 24 GiB was measured."""


class Taste:
    """What is wanted of a service whatever the node: one object for all who want the same."""


@lru_cache(maxsize=1 << 10)
def _taste(*_wanted: object) -> Taste:
    return Taste()


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CardSet:
    """Cards of a node that a build may be given, with what every candidate on them asks."""

    gpus: tuple[Gpu, ...]
    """None for the CPU."""
    label: str
    devices: tuple[DeviceMemory, ...]
    capabilities: tuple[str | None, ...]
    """Each once."""
    kinds: tuple[Gpu, ...]
    """One card of each name and compute capability."""
    unusable: Reason | None
    """Why driver or build cannot compute on one of them."""
    untold: Reason | None
    """Why nobody can say how much memory one of them has to give."""
    unequal: Reason | None
    bytes_per_second: int | None
    """What they, or the RAM, read together; None where the bandwidth of one is unknown."""
    most_weights_bytes: int
    """Weights that the engine cannot hold on them: what is left for any is less."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """One node, what is wanted of it with names resolved, and the matrix."""

    host: Host
    want: Want
    pins: Pins
    matrix: Matrix
    taste: Taste = field(init=False)
    ram: DeviceMemory | None = field(init=False)
    """What a service may take of the node's RAM; None where its size is unknown."""
    said: dict[str, Scalar] = field(init=False)
    """Pins that set what hazards may set too, in the words of these."""
    rooms: dict[str, DeviceMemory] = field(init=False)
    """The memory of each card, by its UUID."""
    undriven: dict[str, Reason | None] = field(init=False)
    """Why the driver cannot use each card, by its UUID."""
    untold: dict[str, Reason | None] = field(init=False)
    """Why the memory of a card cannot be told, by its UUID."""
    card_reasons: dict[tuple[BuildTagRow, str], Reason | None] = field(init=False)
    """What `card_sets.card_reason` has answered, by build and UUID."""
    toolchains: dict[ReleaseRow, Toolchain | Reason | None] = field(init=False)
    """What `kernel_compilers.node_toolchain` has answered."""
    card_sets: dict[Hashable, tuple[CardSet, ...]] = field(init=False)
    """What `card_sets.card_sets` has answered: builds and models are many, sets of cards few."""

    def __post_init__(self) -> None:
        want, pins, cards = self.want, self.pins, self.host.gpus
        taste = _taste(
            self.matrix,
            pins.workload,
            pins.attention_backend,
            pins.kv_cache_dtype,
            pins.speculation,
            pins.drafter,
            want.speculative,
            want.prefix_caching,
            want.structured_output,
            want.vision,
            want.images_per_prompt is not None,
            want.chat_template,
            want.lora is not None,
        )
        object.__setattr__(self, "taste", taste)
        total = self.host.memory_total_bytes
        object.__setattr__(self, "ram", ram_memory(total) if total else None)
        pinned = {
            "prefix_caching": want.prefix_caching,
            "max_num_batched_tokens": want.max_num_batched_tokens,
            "max_num_seqs": want.max_num_seqs,
            "max_model_len": want.max_model_len,
            "draft_tokens": want.speculative.tokens if want.speculative is not None else None,
        }
        said = {name: value for name, value in pinned.items() if value is not None}
        object.__setattr__(self, "said", said)
        object.__setattr__(self, "card_sets", {})
        object.__setattr__(self, "card_reasons", {})
        object.__setattr__(self, "toolchains", {})
        rooms = {gpu.uuid: card_memory(gpu, self.matrix) for gpu in cards}
        object.__setattr__(self, "rooms", rooms)
        undriven = {gpu.uuid: compat.driven(gpu, self.host, self.matrix) for gpu in cards}
        object.__setattr__(self, "undriven", undriven)
        untold = {gpu.uuid: untold_memory(gpu, self.matrix) for gpu in cards}
        object.__setattr__(self, "untold", untold)


@dataclass(frozen=True, kw_only=True, slots=True)
class Drafting:
    """How tokens are drafted: by which feature, with which drafter, how many at a time."""

    row: FeatureRow
    support: FeatureSupport
    tokens: int
    drafter: CheckpointRow | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Combination:
    """A build of an engine with a checkpoint on a set of cards; empty: the CPU."""

    release: ReleaseRow
    tag: BuildTagRow
    model: ModelRow
    checkpoint: CheckpointRow
    gpus: tuple[Gpu, ...] = ()
    backend: AttentionBackendRow | None = None
    kv: KvCacheDtypeRow | None = None
    drafting: Drafting | None = None
    features: frozenset[str] = frozenset()
    """Ids of the features that are in use."""
    offload: bool = False
    """Whether experts may stay in RAM and be computed by the CPU."""

    # Called for every candidate: `replace` would take four times as long.
    def by(
        self,
        drafting: Drafting | None,
        kv: KvCacheDtypeRow | None = None,
        backend: AttentionBackendRow | None = None,
        features: frozenset[str] = frozenset(),
        gpus: tuple[Gpu, ...] | None = None,
    ) -> Combination:
        """The same build, and how it is used; on other cards where `gpus` names them."""
        return Combination(
            release=self.release,
            tag=self.tag,
            model=self.model,
            checkpoint=self.checkpoint,
            gpus=self.gpus if gpus is None else gpus,
            backend=backend,
            kv=kv,
            drafting=drafting,
            features=features,
            offload=self.offload,
        )

    def offloading(self) -> Combination:
        """A combination that is only begun, with experts in RAM where that helps."""
        return Combination(
            release=self.release,
            tag=self.tag,
            model=self.model,
            checkpoint=self.checkpoint,
            offload=True,
        )

    @property
    def label(self) -> str:
        """Its name for people, as far as it is chosen."""
        return f"{release_label(self.release, self.tag)}, {self.checkpoint.id}" + cards_label(
            self.gpus
        )

    @property
    def device(self) -> Device:
        return Device.CUDA if self.gpus else Device.CPU

    @property
    def capabilities(self) -> tuple[str | None, ...]:
        """Compute capabilities of the cards, each once; empty on the CPU."""
        return tuple(dict.fromkeys([gpu.compute_capability for gpu in self.gpus]))

    @property
    def capability(self) -> str | None:
        """Compute capability of the first card; None on the CPU."""
        return self.gpus[0].compute_capability if self.gpus else None

    @property
    def tensor_parallel_size(self) -> int:
        return len(self.gpus) if self.gpus and splits_tensors(self.release) else 1

    @property
    def nvlink(self) -> bool:
        """Whether every card is known to have an active link to every other; unknown is no."""
        gpus = self.gpus
        if not gpus or not all(gpu.nvlink is True for gpu in gpus):
            return False
        here = {gpu.index for gpu in gpus}
        return all(gpu.linked is None or here - {gpu.index} <= gpu.linked for gpu in gpus)

    @property
    def experts_misfit(self) -> bool:
        """An expert's share on one card does not divide by the checkpoint's group size."""
        group, size = self.checkpoint.group_size, self.model.architecture.expert_size
        return bool(group and size) and size // self.tensor_parallel_size % group != 0


def release_label(release: ReleaseRow, tag: BuildTagRow) -> str:
    return f"{release.engine} {release.release} {tag.tag}"


def cards_label(gpus: tuple[Gpu, ...]) -> str:
    """The end of a candidate's name: none on the CPU."""
    return f", GPU {'+'.join(str(gpu.index) for gpu in gpus)}" if gpus else ""


def splits_tensors(release: ReleaseRow) -> bool:
    """Whether the engine splits tensors over cards; llama.cpp splits layers."""
    return release.memory_model is not MemoryModel.LLAMA_CPP


def card_memory(gpu: Gpu, matrix: Matrix) -> DeviceMemory:
    """A card's memory: what CUDA sees of it, less what others hold.

    Use by others counts in coarse steps, so a plan may change where it crosses a multiple of
    256 MiB. Use that no process accounts for counts beyond the driver's own reserve, and only where
    it is measured in the same way whether or not our service runs.
    """
    visible = _visible_bytes(gpu, matrix)
    others = gpu.others_bytes
    if not gpu.listed:
        others = UNTOLD_BYTES
    elif gpu.sized:
        others += max(0, (gpu.unexplained_bytes or 0) - _reserve_bytes(gpu, matrix))
    others = -(-others // _OTHERS_STEP) * _OTHERS_STEP
    return DeviceMemory(
        name=f"GPU {gpu.index} ({gpu.name})",
        total_bytes=visible,
        available_bytes=max(0, visible - others),
        others_bytes=others,
    )


def untold_memory(gpu: Gpu, matrix: Matrix) -> Reason | None:
    """Why nobody can say what a plan may take of the card; None: `card_memory` says it.

    Where sizes of processes are not told, a running service of ours hides what else is in use. So
    that this never changes a plan, such use is not planned around: while it can be seen, the card
    is refused.
    """
    row = matrix.gpu(gpu)
    subject = f"GPU {gpu.index} ({gpu.name})"
    if gpu.listed and gpu.sized:
        if gpu.unexplained_bytes is not None:
            return None
        return Needs(
            subject=subject,
            needed="the size of our own processes",
            found="unknown",
            row=row.id if row else "gpus",
        )
    spare = _reserve_bytes(gpu, matrix) + (0 if gpu.listed else UNTOLD_BYTES)
    if gpu.unexplained_bytes is None or gpu.unexplained_bytes <= spare:
        return None
    return Needs(
        subject=subject,
        needed=f"at most {gib(spare)} in use by what the driver gives no size of",
        found=gib(gpu.unexplained_bytes),
        row=row.id if row else "gpus",
        help=f"what else uses GPU {gpu.index} stopped; a reboot, where a dead process left it",
    )


def _visible_bytes(gpu: Gpu, matrix: Matrix) -> int:
    total, row = gpu.total_bytes or 0, matrix.gpu(gpu)
    if row is not None and row.visible_mib is not None:
        return min(total, row.visible_mib * MIB)
    return total * VISIBLE_PERCENT // 100


def _reserve_bytes(gpu: Gpu, matrix: Matrix) -> int:
    """What the driver keeps of a card for itself, with a step to spare."""
    return (gpu.total_bytes or 0) - _visible_bytes(gpu, matrix) + _OTHERS_STEP


def ram_memory(total_bytes: int) -> DeviceMemory:
    """What a service may take of a node's RAM: all but an eighth, and but 1 GiB at least.

    Reckoned from the total, not from what is free: a plan must not change because the service
    that it describes is running. The total itself moves by some MiB between kernels. What a plan
    takes from it are coarse steps (context, slots, prompt cache), so the same plan comes out unless
    the total crosses one of the few sizes at which the next step just fits.
    """
    available = max(0, total_bytes - max(GIB, total_bytes // 8))
    return DeviceMemory(name="RAM", total_bytes=total_bytes, available_bytes=available)
