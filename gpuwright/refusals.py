"""Why something cannot be: the reasons a plan fails, and the three families of error.

A Reason carries values and says one sentence: subject, what is needed, what was found, the row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol

from gpuwright.plan import Rejection
from gpuwright.quoting import sentence
from gpuwright.remedies import CPU_INSTEAD, Remedy, said, that_help

GIB = 2**30
GIST = 4
"""Reasons that a one-line refusal shows; the rest stand in its long form."""


def gib(count: int) -> str:
    """`count` bytes in GiB with two decimals, for people."""
    return f"{count / GIB:.2f} GiB"


class _FaultsError(Exception):
    """An error that carries every fault found, one sentence each."""

    def __init__(self, *faults: str) -> None:
        self.faults = tuple(dict.fromkeys(sentence(fault) for fault in faults))
        super().__init__("; ".join(self.faults))


class MatrixError(_FaultsError):
    """Our own data is wrong; each fault starts with its path in the matrix."""


class WantError(_FaultsError):
    """What the operator asked for is wrong; each fault starts with its key."""


class HostError(_FaultsError):
    """The node document is not one that the probe writes."""


class NoAnswerError(_FaultsError):
    """A node cannot be asked, or what it says is no record of ours."""


class Reason(Protocol):
    """What every reason offers: one sentence, and what would help where that is known.

    `needed`, `found` and `row` stand where a reason has them.
    """

    def sentence(self) -> str: ...

    def remedies(self) -> tuple[Remedy, ...]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Needs:
    """A property of the node or the candidate that is not what is needed."""

    subject: str
    needed: str
    found: str
    help: str | Remedy | tuple[Remedy, ...] | None = None
    row: str | None = None

    def sentence(self) -> str:
        return f"{self.subject}: needs {self.needed}, found {self.found}"

    def remedies(self) -> tuple[Remedy, ...]:
        if isinstance(self.help, tuple):
            return self.help
        return (self.help,) if isinstance(self.help, Remedy) else said(self.help)


@dataclass(frozen=True, kw_only=True, slots=True)
class DriverTooOld:
    """The driver is older than the CUDA runtime of the binaries needs."""

    cuda: str
    needed: str
    found: str
    row: str | None = None

    def sentence(self) -> str:
        return f"CUDA {self.cuda} runtime: needs driver >= {self.needed}, found {self.found}"

    def remedies(self) -> tuple[Remedy, ...]:
        return (Remedy(words=f"driver >= {self.needed}", driver=self.needed),)


@dataclass(frozen=True, kw_only=True, slots=True)
class NoKernels:
    """The binaries hold no code for the card's compute capability."""

    gpu: str
    capability: str
    carried: tuple[str, ...]
    row: str | None = None

    @property
    def needed(self) -> str:
        return ", ".join(self.carried)

    @property
    def found(self) -> str:
        return self.capability

    def sentence(self) -> str:
        return (
            f"binaries: hold code for compute capability {self.needed}, {self.gpu} has {self.found}"
        )

    def remedies(self) -> tuple[Remedy, ...]:
        return ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Hazardous:
    """A hazard row says that this combination must not run."""

    because: str
    instead: str | None
    found: str
    """What of the combination meets it."""
    row: str | None = None

    @property
    def needed(self) -> str:
        return self.instead or "another combination"

    def sentence(self) -> str:
        return self.because + (f"; instead: {self.instead}" if self.instead else "")

    def remedies(self) -> tuple[Remedy, ...]:
        return said(self.instead)


@dataclass(frozen=True, kw_only=True, slots=True)
class OutOfMemory:
    """The smallest device does not hold weights, cache and workspace."""

    where: str
    needed_bytes: int
    available_bytes: int
    what: str
    largest_context_tokens: int | None = None
    others_bytes: int = 0
    """What other processes hold of the device."""
    row: str | None = None

    def sentence(self) -> str:
        held = f", {gib(self.others_bytes)} held by others" if self.others_bytes else ""
        return (
            f"{self.where}: {self.what} needs {gib(self.needed_bytes)}, "
            f"{gib(self.available_bytes)} can be had{held}"
        )

    @property
    def needed(self) -> str:
        return gib(self.needed_bytes)

    @property
    def found(self) -> str:
        return gib(self.available_bytes)

    def remedies(self) -> tuple[Remedy, ...]:
        if self.largest_context_tokens:
            words = f"max_model_len of at most {self.largest_context_tokens:,} tokens"
            return (Remedy(words=words, want=(("max_model_len", self.largest_context_tokens),)),)
        shown = self.others_bytes >= GIB // 100
        if shown and self.needed_bytes <= self.available_bytes + self.others_bytes:
            return said(f"{self.where} without the {gib(self.others_bytes)} that others hold")
        return ()


@dataclass(frozen=True, kw_only=True, slots=True)
class PortTaken:
    """Another process listens where the service would."""

    address: str
    port: int
    process: str | None
    pid: int | None
    unit: str | None
    row: str | None = None

    def sentence(self) -> str:
        who = self.process or "an unnamed process"
        details = [f"pid {self.pid}"] if self.pid else []
        details += [self.unit] if self.unit else []
        detail = f" ({', '.join(details)})" if details else ""
        return f"port {self.port}: needs to be free, {who}{detail} listens on {self.address}"

    def remedies(self) -> tuple[Remedy, ...]:
        return said(f"another `port`, or {self.process or 'that process'} stopped")


@dataclass(frozen=True, kw_only=True, slots=True)
class DiskTooSmall:
    """The filesystem below a path has too little room for what will be written."""

    path: str
    mount: str
    needed_bytes: int
    free_bytes: int
    what: str
    row: str | None = None

    @property
    def needed(self) -> str:
        return gib(self.needed_bytes)

    @property
    def found(self) -> str:
        return gib(self.free_bytes)

    def sentence(self) -> str:
        return (
            f"disk {self.mount} below {self.path}: needs {gib(self.needed_bytes)} for {self.what}, "
            f"found {gib(self.free_bytes)} free"
        )

    def remedies(self) -> tuple[Remedy, ...]:
        return said(f"{gib(self.needed_bytes - self.free_bytes)} more room on {self.mount}")


@dataclass(frozen=True, kw_only=True, slots=True)
class GpusUnusable:
    """The node has a card, and its driver does not answer."""

    status: str
    detail: str
    help: str
    cpu_instead: bool = True
    """Whether the CPU could serve: nothing else is wrong with the node."""
    row: str | None = None

    def sentence(self) -> str:
        return f"GPU ({self.status}): {self.detail or 'the driver does not answer'}"

    def remedies(self) -> tuple[Remedy, ...]:
        leave = "`gpus: none`, which serves on the CPU and leaves the card alone"
        cpu = (Remedy(words=leave, want=CPU_INSTEAD.want),) if self.cpu_instead else ()
        return (*said(self.help), *cpu)


@dataclass(frozen=True, kw_only=True, slots=True)
class Superseded:
    """A newer release or build of the same engine runs here too."""

    by: str
    row: str | None = None

    def sentence(self) -> str:
        return f"not looked at: {self.by} is newer and runs here, too"

    def remedies(self) -> tuple[Remedy, ...]:
        return ()


@dataclass(frozen=True, kw_only=True, slots=True)
class NoCard:
    """The binaries compute on a card, and there is none to use."""

    found: str = "none"
    row: str | None = None

    @property
    def needed(self) -> str:
        return "an NVIDIA GPU"

    def sentence(self) -> str:
        return f"device: needs {self.needed}, found {self.found}"

    def remedies(self) -> tuple[Remedy, ...]:
        return ()


@dataclass(frozen=True, kw_only=True, slots=True)
class CpuNotAsked:
    """A card is there, and nobody said that the CPU is to serve beside it."""

    row: str | None = None

    @property
    def needed(self) -> str:
        return "`gpus: none`"

    @property
    def found(self) -> str:
        return "a card"

    def sentence(self) -> str:
        return "a card is there: the CPU serves only where `gpus` says none"

    def remedies(self) -> tuple[Remedy, ...]:
        return (CPU_INSTEAD,)


@dataclass(frozen=True, kw_only=True, slots=True)
class Unlisted:
    """The matrix has no row for something that it must know."""

    subject: str
    file: str

    @property
    def needed(self) -> str:
        return f"a row in {self.file}"

    @property
    def found(self) -> str:
        return "none"

    @property
    def row(self) -> str:
        return self.file

    def sentence(self) -> str:
        return f"{self.subject}: unknown, no row in {self.file}"

    def remedies(self) -> tuple[Remedy, ...]:
        listed = self.file.endswith(".yaml")
        return said(f"a row for {self.subject} in {self.file}" if listed else None)


def rejection_of(candidate: str, reason: Reason) -> Rejection:
    """`reason` as the line of the candidate that it rules out."""
    return Rejection(
        candidate=candidate,
        reason=reason.sentence(),
        needed=getattr(reason, "needed", None),
        found=getattr(reason, "found", None),
        row=getattr(reason, "row", None),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """No plan can be: what the node lacks, or why every candidate failed.

    What would help is tried before it is offered, so it is worked out only where it is asked for.
    """

    model: str
    summary: str
    reasons: tuple[str, ...]
    offers: Callable[[], tuple[str, ...]] = field(compare=False, repr=False)
    why_not: tuple[Rejection, ...] = ()

    @property
    def remedies(self) -> tuple[str, ...]:
        return self.offers()

    def sentence(self) -> str:
        """The gist in one line, for an error message that has only one."""
        shown = "; ".join(self.reasons[:GIST])
        more = f"; and {len(self.reasons) - GIST} more" if len(self.reasons) > GIST else ""
        text = f"{self.summary}: {shown}{more}" if self.reasons else self.summary
        return text + (f". What would help: {'; '.join(self.remedies)}" if self.remedies else "")


def refuse(
    model: str,
    summary: str,
    reasons: Iterable[Reason],
    why_not: Iterable[Rejection] = (),
    *,
    helps: Callable[[Remedy], bool],
) -> Refusal:
    """A Refusal from reasons with its remedies in their order, each once. Those that can be tried
    stand there if they help."""
    reasons = tuple(reasons)

    @cache
    def offers() -> tuple[str, ...]:
        remedies = (each for reason in reasons for each in reason.remedies())
        return tuple(that_help(remedies, helps))

    return Refusal(
        model=model,
        summary=summary,
        reasons=tuple(dict.fromkeys(reason.sentence() for reason in reasons)),
        offers=offers,
        why_not=tuple(why_not),
    )
