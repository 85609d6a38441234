"""The matrix's rows as values: one frozen dataclass per kind, as the YAML files spell them.

`sources` says where each claim comes from; `unknown` gives the reason for every null. A method
`faults` names what the types alone cannot: its texts continue the row's path.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

Scalar = str | int | bool
_PCI_ID = re.compile(r"10de:[0-9a-f]{4}", re.ASCII)
_ADDRESS = re.compile(r"https://|pkg:pypi/[A-Za-z0-9._-]+@[A-Za-z0-9._]+\Z", re.ASCII)
"""A page, or the package itself where a claim was read in it."""
_DATE = re.compile(r"20\d\d-[01]\d-[0-3]\d", re.ASCII)


class ClaimKind(StrEnum):
    STATED = "stated"
    MEASURED = "measured"
    DERIVED = "derived"


class Effect(StrEnum):
    REFUSE = "refuse"
    AVOID = "avoid"
    WARN = "warn"


class Device(StrEnum):
    CPU = "cpu"
    CUDA = "cuda"


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """Where something in a row comes from, and which of the row's keys it covers."""

    url: str
    says: str
    covers: tuple[str, ...]
    read: str
    kind: ClaimKind = ClaimKind.STATED

    def faults(self) -> Iterator[str]:
        if not _ADDRESS.match(self.url):
            yield f".url: {self.url!r} does not begin with https:// and is no pkg:pypi/NAME@VERSION"
        if not _DATE.fullmatch(self.read):
            yield f".read: {self.read!r} is not a date such as 2026-11-30"


class GpuKind(StrEnum):
    GEFORCE = "geforce"
    WORKSTATION = "workstation"
    DATACENTER = "datacenter"
    INTEGRATED = "integrated"
    JETSON = "jetson"


class KernelModule(StrEnum):
    """Which flavour of NVIDIA's kernel module drives a card."""

    OPEN = "open"
    PROPRIETARY = "proprietary"
    EITHER = "either"


class Precision(StrEnum):
    BF16 = "bf16"
    FP8 = "fp8"
    NVFP4 = "nvfp4"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GpuRow:
    id: str
    name: str
    aliases: tuple[str, ...]
    pci_ids: tuple[str, ...] | None
    kind: GpuKind
    compute_capability: str
    memory_mib: int
    visible_mib: int | None
    """What CUDA sees of it when nothing runs: the driver keeps the rest."""
    bandwidth_gb_per_s: int | None
    nvlink: bool | None
    lacks: tuple[Precision, ...]
    """Precisions without units of their own: a checkpoint or cache in them is storage only."""
    kernel_module: KernelModule | None
    sources: tuple[Claim, ...]
    unified_memory: bool = False
    """It has no memory but the node's."""
    architecture: str | None = None
    """Of the processor that it is joined with, as `uname -m` says it; None: any."""
    node_threads: int | None = None
    """Threads of that processor; None: not said, or any."""
    node_memory_gib: int | None = None
    """RAM that is joined with it beside its own memory; None: not said, or any."""
    forward_compatibility: bool = False
    """Whether NVIDIA's compatibility package lets an older driver run a newer CUDA on it."""
    unknown: dict[str, str] = field(default_factory=dict)

    def faults(self) -> Iterator[str]:
        if self.kind is GpuKind.GEFORCE and self.forward_compatibility:
            yield ".forward_compatibility: GeForce cards have none (CUDA error 804)"
        for pci_id in self.pci_ids or ():
            if not _PCI_ID.fullmatch(pci_id):
                yield f".pci_ids: {pci_id!r} is not vendor:device in lower-case hexadecimal"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GenerationRow:
    """Cards of neighbouring compute capabilities, and the driver branches that drive them."""

    id: str
    capabilities: str
    first_driver: str
    last_driver: str | None
    sources: tuple[Claim, ...]
    unknown: dict[str, str] = field(default_factory=dict)


WHEELS, VENDOR, STANDING = "wheels", "vendor", "standing"
"""Where a node can have the CUDA compiler from, beside a distribution's own packages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownBad:
    """What a toolkit's compiler is known to get wrong, and for which cards."""

    capabilities: str
    what: str


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CudaRow:
    """One CUDA toolkit, whose runtime engines' binaries bring, and what it asks of a node."""

    id: str
    min_driver: str
    """Oldest driver that runs its binaries, by minor-version compatibility."""
    native_driver: str | None
    """The driver that was released with it: from this one on, its PTX is compiled too."""
    capabilities: str
    host_compilers: dict[str, str]
    """Newest major version of each host compiler that its own compiler accepts."""
    nvcc_from: tuple[str, ...]
    """Where a node can have its compiler: wheels, vendor, or the id of a distribution."""
    forward_compatibility: tuple[GpuKind, ...]
    sources: tuple[Claim, ...]
    known_bad: tuple[KnownBad, ...] = ()
    unknown: dict[str, str] = field(default_factory=dict)

    def faults(self) -> Iterator[str]:
        if GpuKind.GEFORCE in self.forward_compatibility:
            yield ".forward_compatibility: GeForce cards have none (CUDA error 804)"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class KvCacheDtypeRow:
    """A KV cache element type: 32 elements take `bytes_per_32_elements` bytes."""

    id: str
    aliases: tuple[str, ...]
    bytes_per_32_elements: int
    sources: tuple[Claim, ...]
    scale_bytes_per_head: int = 0
    """Bytes for the scales of one token and head, K and V together."""
    unquantized_layers: int = 0
    """Layers that a model without linear attention keeps in 16 bits, half of them at each end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantizationSupport:
    """Where an engine runs a weight format; below `native` it computes in 16 bits."""

    releases: str
    capabilities: str
    native: str
    cpu: bool = False
    """Whether its build for the CPU has kernels for it, too."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class QuantizationRow:
    id: str
    aliases: tuple[str, ...]
    millibits_per_weight: int
    """Nominal size of a weight, to order checkpoints by fidelity."""
    engines: dict[str, QuantizationSupport]
    sources: tuple[Claim, ...]
    preferred: tuple[str, ...] = ()
    """Capabilities of the cards where this format comes before finer ones: they compute in it, or
    it saves most of what bounds them."""
    saves_room_only: bool = False
    """Preferred for the room that it saves: not where a finer one has all that it needs."""
    output_millibits_per_weight: int | None = None
    """Of the output matrix, where that is kept in another format than the rest."""

    @property
    def output_bits(self) -> int:
        """Thousandths of a bit of a weight of the output matrix."""
        return self.output_millibits_per_weight or self.millibits_per_weight


class Preference(StrEnum):
    """What a workload may want more of than finer weights."""

    CONTEXT = "context"
    """Tokens of one request."""
    REQUESTS = "requests"
    """Requests at once, each with the workload's context."""
    FORMAT = "format"
    """Weights in the format to take on the card."""
    PACE = "pace"
    """`wished_tokens_per_second` for one request, if need be by coarser weights."""
    CARDS = "cards"
    """Fewer of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """An order of engines for a workload; the first route whose conditions hold counts."""

    order: tuple[str, ...]
    because: str
    capabilities: str = ""
    device: Device = Device.CUDA
    hybrid: bool | None = None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class WorkloadRow:
    id: str
    aliases: tuple[str, ...]
    says: str
    context_tokens: int
    """A plan that reaches this context beats one that does not, whatever the engine."""
    max_num_seqs: int
    max_num_batched_tokens: int
    routes: tuple[Route, ...]
    sources: tuple[Claim, ...]
    speculation: tuple[str, ...] = ()
    """Ways of drafting that it prefers, best first; empty: none unless one is pinned."""
    prefix_caching: bool = True
    structured_output: bool = False
    asks: tuple[str, ...] = ()
    """Features without which a plan comes after those that have them."""
    least_tokens_per_second: int = 0
    """A plan that cannot write so fast for one request comes after those that can."""
    wished_tokens_per_second: int = 0
    """What the preference for pace asks for: more than that is no reason for coarser weights."""
    least_num_seqs: int = 1
    """A plan that holds fewer requests at once comes after those that hold them."""
    prefer: tuple[Preference, ...] = ()
    """What is compared right after the engine, before the format of weights; in this order."""

    def faults(self) -> Iterator[str]:
        if (Preference.PACE in self.prefer) != (self.wished_tokens_per_second > 0):
            yield ".wished_tokens_per_second: stands exactly where pace is preferred"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DistroRow:
    id: str
    os_id: str
    version_id: str
    codename: str
    glibc: str | None
    python: str
    """Version of its python3."""
    compiler: str
    """The C++ compiler's command, which says its version."""
    build_packages: tuple[str, ...]
    runtime_packages: tuple[str, ...]
    sources: tuple[Claim, ...]
    libraries: dict[str, str] = field(default_factory=dict)
    """Shared library that some engine's wheels do not bring -> the package that has it."""
    python_headers: str = "python3-dev"
    """Package with the headers of its python3."""
    kernel_packages: tuple[str, ...] = ("g++",)
    """What Python engines compile kernels with as they run: gcc and c++ under these names."""
    older_compilers: tuple[str, ...] = ()
    """Further ones of its repository, newest first, for a CUDA that takes none so new."""
    unknown: dict[str, str] = field(default_factory=dict)


def hash_faults(sha256: str | None) -> Iterator[str]:
    if sha256 is not None and (len(sha256) != 64 or set(sha256) - set("0123456789abcdef")):
        yield ".sha256: needs 64 hexadecimal digits"
