"""The result of a decision, as data: what one node will serve, with what, and why."""

from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """One place a file can come from.

    kind: `python_package` (project, version, filename, sha256, bytes, member), `hub` (repo,
    revision, path), `url` (url) or `local` (path on the node). Only the fields of its kind are set.
    """

    kind: str
    project: str | None = None
    version: str | None = None
    filename: str | None = None
    member: str | None = None
    sha256: str | None = None
    bytes: int | None = None
    repo: str | None = None
    revision: str | None = None
    url: str | None = None
    path: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFile:
    """One file of a checkpoint: its name in the store, its size and hash, where to get it."""

    path: str
    bytes: int
    sha256: str
    sources: tuple[Source, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedCheckpoint:
    """A checkpoint that a plan brings to its node; without files while nobody has pinned it."""

    id: str
    files: tuple[ModelFile, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedGpu:
    """A card the service runs on, named by UUID; the index is in PCI order, for people."""

    uuid: str
    index: int
    name: str
    compute_capability: str


WEIGHTS, KV_CACHE = "weights", "KV cache"
"""Names of terms that every memory plan has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryTerm:
    """One line of a memory plan: what it is, its size, and where the figure comes from."""

    name: str
    bytes: int
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryPlan:
    """What the service takes on one device (a GPU, or RAM) and what that has."""

    where: str
    available_bytes: int
    terms: tuple[MemoryTerm, ...]

    @property
    def needed_bytes(self) -> int:
        return sum(term.bytes for term in self.terms)

    @property
    def margin_bytes(self) -> int:
        return self.available_bytes - self.needed_bytes

    def bytes_of(self, name: str) -> int:
        """Of the terms called `name`."""
        return sum(term.bytes for term in self.terms if term.name == name)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejection:
    """A candidate that lost, with its first hard reason in one sentence.

    `needed` and `found` are its two sides, in one unit, where the reason has sides.
    """

    candidate: str
    reason: str
    needed: str | None = None
    found: str | None = None
    row: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanWarning:
    """What may go wrong with a plan, and what to do or what the plan does about it."""

    because: str
    instead: str | None = None
    hazard: str | None = None
    """Id of the hazard row that says it; None where no row does."""
    applied: bool = False
    """Whether the plan does what `instead` says."""

    def sentence(self) -> str:
        link = "so" if self.applied else "instead"
        text = self.because + (f"; {link}: {self.instead}" if self.instead else "")
        return text + (f" [{self.hazard}]" if self.hazard else "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Speculation:
    """How tokens are drafted: the feature's id, how many at a time, and the drafter's checkpoint
    where the draft is not part of the weights."""

    method: str
    tokens: int
    drafter: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What one node will serve. Pure data: `as_json` is what is stored on the node."""

    service: str
    bind: str
    port: int
    model: str
    checkpoint: str
    served_model_name: str
    quantization: str
    engine: str
    release: str
    build_tag: str
    attention_backend: str
    kv_cache_dtype: str
    gpus: tuple[PlannedGpu, ...]
    tensor_parallel_size: int
    max_model_len: int
    max_num_seqs: int
    memory: MemoryPlan
    """Of the device that is the fullest."""
    files: tuple[ModelFile, ...]
    reasons: tuple[str, ...]
    warnings: tuple[PlanWarning, ...] = ()
    others: Callable[[], tuple[Rejection, ...]] = field(default=tuple, compare=False, repr=False)
    """What `why_not` says: many lines that few read, so they are written where they are read."""
    rank: tuple[Any, ...] = field(default=(), compare=False, repr=False)
    """What the decision compared it by, smaller first; `fits` orders the plans of models by it."""
    not_applicable: str | None = None
    """One line that says why this plan can be shown but not applied; None: it can be applied."""
    devices: tuple[MemoryPlan, ...] = ()
    """The memory plan of each device, in the order of `gpus`; of RAM alone without any."""
    ram_beside_bytes: int = 0
    """What stays in RAM beside cards."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """Engine settings that launch.py turns into flags, in neutral words (threads, batch, ...)."""
    figures: dict[str, Any] = field(default_factory=dict)
    """The memory plan in numbers, of its smallest device: `memory.request.Figures` as data."""
    speculation: Speculation | None = None
    features: tuple[str, ...] = ()
    """Ids of the feature rows that are in use."""
    feature_arguments: tuple[str, ...] = ()
    """Arguments from the rows of `features`, filled but for `{drafter}` and `{projector}`."""
    projector: str | None = None
    """Checkpoint that lets prompts hold images, where the engine wants one of its own."""
    beside: tuple[PlannedCheckpoint, ...] = ()
    """What is served with the model's own checkpoint: its drafter, its projector."""
    assumed: tuple[str, ...] = ()
    """What nobody measured or said, and the plan takes to be so; one sentence each."""

    @property
    def checkpoints(self) -> tuple[PlannedCheckpoint, ...]:
        """All that the node must have, the model's own first."""
        return (PlannedCheckpoint(id=self.checkpoint, files=self.files), *self.beside)

    @property
    def why_not(self) -> tuple[Rejection, ...]:
        """Each other candidate with why it is not this plan."""
        return self.others()

    @property
    def ram_bytes(self) -> int:
        """What the service takes of the node's RAM for weights and cache."""
        if not self.gpus:
            return self.memory.needed_bytes
        return self.ram_beside_bytes

    @property
    def on_gpu(self) -> bool:
        return bool(self.gpus)

    @property
    def loopback(self) -> bool:
        """Whether nobody but the node itself can reach the service."""
        return is_loopback(self.bind)


def shown_address(address: str) -> str:
    """An address or host name as a URL, or an ssh forwarding, wants it before a port."""
    return f"[{address}]" if ":" in address else address


def is_loopback(address: str) -> bool:
    """Whether an IP address is the machine's own: all of 127.0.0.0/8, and ::1."""
    return ip_address(address).is_loopback
