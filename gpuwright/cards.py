"""A card as the probe saw it, and what connects it to others: `gpus.devices` and `gpus.pairs`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuwright.document import Reader
from gpuwright.refusals import HostError

VGPU_MODES = ("none", "passthrough", "vgpu", "host_vgpu", "host_vsga")
"""How NVML says that a card is virtualized."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """A card the driver answers for, and who holds memory of it.

    A plan must not depend on whether our own service runs, so what it holds is taken off by the
    size that the driver gives for its processes. What that leaves open:

    `others_bytes` is what processes that are not ours hold, desktops among them; 0 where they are
    not `listed`. `unexplained_bytes` is what else is in use: the driver's own reserve, what a dead
    process left. It is None where a service of ours may run and its size is not known. `sized` says
    that the driver gives sizes of processes here: at least one is known.
    """

    index: int
    uuid: str
    pci_id: str | None
    name: str
    compute_capability: str | None
    total_bytes: int | None
    others_bytes: int
    unexplained_bytes: int | None
    listed: bool = True
    sized: bool = True
    nvlink: bool | None = None
    linked: frozenset[int] | None = None
    """Indexes of the cards that it has NVLinks to; None: not told."""
    reached: frozenset[int] | None = None
    """Indexes of the cards that it shares memory with, over NVLink or PCIe; None: not told."""
    mig: tuple[str, ...] | None = None
    """Names of the instances that it is divided into; None: it is whole, as far as is known."""
    vgpu: str | None = None
    """One of `VGPU_MODES`."""
    display: bool | None = None
    """Whether a desktop draws on it."""
    failing: bool = False
    """Whether it had errors of hardware since the node booted, `xids` among them."""
    xids: tuple[int, ...] = ()
    power_percent: int | None = None
    """Its power limit, of its maker's."""
    lanes: int | None = None
    """PCIe lanes in use."""

    @property
    def label(self) -> str:
        return f"GPU {self.index} ({self.name})"


def read_cards(
    gpus: Reader, own_kernel: bool, ours: frozenset[int], unsure: bool
) -> tuple[Gpu, ...]:
    """The cards of a document's `gpus`. HostError: the probe cannot have written it.

    `ours` are processes of our service, `unsure` says that it may run. Only with a kernel of its
    `own_kernel` does a node list processes under the numbers that it gives them.
    """
    entries = gpus.children("devices")
    pairs = _pairs(gpus)
    return tuple(_read(entry, own_kernel, ours, unsure, pairs) for entry in entries)


_Pair = tuple[frozenset[int], int | None, str | None]


def _pairs(gpus: Reader) -> list[_Pair]:
    found = []
    for entry in gpus.children("pairs") if gpus.get("pairs", list, None) else ():
        ends = frozenset(
            end for end in (entry.get("a", int), entry.get("b", int)) if end is not None
        )
        if len(ends) != 2:
            raise HostError(f"{entry.path}: needs two cards")
        found.append((ends, entry.count("nvlinks", None), entry.get("p2p", str, None)))
    return found


def _read(
    entry: Reader, own_kernel: bool, ours: frozenset[int], unsure: bool, pairs: Sequence[_Pair]
) -> Gpu:
    total, free = entry.count("memory_total_bytes"), entry.count("memory_free_bytes")
    index, uuid, name = entry.get("index", int), entry.get("uuid", str), entry.get("name", str)
    if index is None or uuid is None:
        raise HostError(f"{entry.path}: needs index and uuid")
    listed = own_kernel and entry.get("processes", list) is not None
    mine: list[int | None] = []
    others: list[int | None] = []
    for process in entry.children("processes") if listed else ():
        is_ours = process.get("pid", int) in ours
        (mine if is_ours else others).append(process.count("used_bytes"))
    known = sum(used or 0 for used in (*mine, *others))
    unexplained: int | None = 0
    if total is not None and free is not None:
        unexplained = max(0, total - free - known)
    if None in mine or (not listed and unsure):
        unexplained = None
    touching = [pair for pair in pairs if index in pair[0]]
    pcie, power = entry.part("pcie"), entry.part("power")
    limit, default = power.amount("limit_w"), power.amount("default_w")
    return Gpu(
        index=index,
        uuid=uuid,
        pci_id=entry.get("pci_id", str),
        name=name or "unnamed card",
        compute_capability=entry.version("compute_capability"),
        # A card of no size at all is one whose size is not known.
        total_bytes=total or None,
        others_bytes=sum(used or 0 for used in others),
        unexplained_bytes=unexplained,
        listed=listed,
        sized=any(used is not None for used in (*mine, *others)),
        nvlink=entry.get("nvlink", bool, None),
        linked=_far_ends(
            index, touching, [None if links is None else links > 0 for _, links, _ in touching]
        ),
        reached=_far_ends(
            index, touching, [None if p2p is None else p2p == "ok" for _, _, p2p in touching]
        ),
        mig=_instances(entry.part("mig")),
        vgpu=entry.get("vgpu", str, None),
        display=entry.get("display_active", bool, None),
        failing=entry.get("health", str, None) == "failing",
        xids=tuple(xid for xid in entry.get("xids", list, None) or () if isinstance(xid, int)),
        power_percent=int(limit * 100 / default) if limit is not None and default else None,
        lanes=pcie.count("width", None),
    )


def _far_ends(
    index: int, touching: Sequence[_Pair], answers: Sequence[bool | None]
) -> frozenset[int] | None:
    """The cards of which the answer is yes; None where one of the answers is not known."""
    if not touching or None in answers:
        return None
    return frozenset(
        other
        for (ends, _, _), yes in zip(touching, answers, strict=True)
        for other in ends
        if yes and other != index
    )


def _instances(mig: Reader) -> tuple[str, ...] | None:
    if mig.get("enabled", bool, None) is not True:
        return None
    entries = mig.children("instances") if mig.get("instances", list, None) else []
    return tuple(entry.get("name", str, None) or "unnamed" for entry in entries)
