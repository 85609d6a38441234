"""Several services on one node: each decided beside the others, no card used twice unless asked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from gpuwright.catalogue import Matrix
from gpuwright.host import Gpu, Host
from gpuwright.pins import pinned_gpus
from gpuwright.plan import Plan
from gpuwright.quoting import quoted
from gpuwright.refusals import Refusal, WantError
from gpuwright.selection import decide, reaches_its_context
from gpuwright.want import Want

Decision = Plan | Refusal
MOST_SERVICES = 8


def decide_services(host: Host, wants: Sequence[Want], matrix: Matrix) -> tuple[Decision, ...]:
    """One decision for each want, in their order.

    Cards that a want names are its own. The others are shared out so that as many services as
    possible have a plan, then as many as possible reach their context, then as evenly as can be.
    A want with `share_gpus` is decided last, on what the others leave of every card. RAM that a
    service computes in is taken from the next. Raises WantError where two services have one name or
    one port, or name one card and do not share it.
    """
    _check(host, wants)
    if len(wants) == 1:
        return (decide(host, wants[0], matrix),)
    named = {
        gpu.uuid
        for want in wants
        if want.gpus and not want.share_gpus
        for gpu in pinned_gpus(host, want)
    }
    free = [gpu for gpu in host.gpus if gpu.uuid not in named]
    seekers = [index for index, want in enumerate(wants) if _seeks(want)]
    best: tuple[tuple[int, int], tuple[Decision, ...]] | None = None
    for parts in _partitions(free, len(seekers)):
        given = dict(zip(seekers, parts, strict=True))
        decisions = _decide_with(host, wants, matrix, given)
        score = (
            sum(isinstance(each, Refusal) for each in decisions),
            sum(
                isinstance(each, Plan) and not reaches_its_context(each, want, matrix)
                for each, want in zip(decisions, wants, strict=True)
            ),
        )
        if best is None or score < best[0]:
            best = score, decisions
        if score == (0, 0):
            break
    assert best is not None
    return best[1]


def _seeks(want: Want) -> bool:
    """Whether the service is to be given cards that nobody has named."""
    return want.gpus is None and not want.share_gpus


def _partitions(cards: list[Gpu], parts: int) -> Iterator[tuple[tuple[Gpu, ...], ...]]:
    """Ways to share out `cards` in their order, even ones first, earlier parts before later."""
    if parts == 0:
        yield ()
        return
    for each in sorted(_compositions(len(cards), parts), key=_unevenness):
        found, start = [], 0
        for count in each:
            found.append(tuple(cards[start : start + count]))
            start += count
        yield tuple(found)


def _unevenness(counts: tuple[int, ...]) -> tuple[int, list[int]]:
    return max(counts) - min(counts), [-count for count in counts]


def _compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    if parts == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in _compositions(total - first, parts - 1):
            yield (first, *rest)


def _decide_with(
    host: Host, wants: Sequence[Want], matrix: Matrix, given: dict[int, tuple[Gpu, ...]]
) -> tuple[Decision, ...]:
    """Decide each want on its cards; those that share come last."""
    found: dict[int, Decision] = {}
    for index in sorted(range(len(wants)), key=lambda each: wants[each].share_gpus):
        want, there = wants[index], _beside(host, found.values())
        if index in given:
            there = replace(there, gpus=given[index])
        found[index] = decide(there, want, matrix)
    return tuple(found[index] for index in range(len(wants)))


def _beside(host: Host, decisions: Iterable[Decision]) -> Host:
    """The node as it is beside the services that are planned already."""
    taken: dict[str, int] = {}
    ram = 0
    for plan in decisions:
        if not isinstance(plan, Plan):
            continue
        # Without cards the one device is the RAM.
        for gpu, memory in zip(plan.gpus, plan.devices, strict=False):
            taken[gpu.uuid] = taken.get(gpu.uuid, 0) + memory.needed_bytes
        ram += plan.ram_bytes
    return replace(
        host,
        gpus=tuple(
            replace(gpu, others_bytes=gpu.others_bytes + taken.get(gpu.uuid, 0))
            for gpu in host.gpus
        ),
        memory_total_bytes=None
        if host.memory_total_bytes is None
        else max(0, host.memory_total_bytes - ram),
    )


def _check(host: Host, wants: Sequence[Want]) -> None:
    faults: list[str] = []
    if not 1 <= len(wants) <= MOST_SERVICES:
        faults.append(f"services: needs 1 to {MOST_SERVICES}, found {len(wants)}")
    for key in ("service", "port"):
        seen: set[object] = set()
        for want in wants:
            value = getattr(want, key)
            if value in seen:
                faults.append(f"{key}: {quoted(value)} stands for two services of one node")
            seen.add(value)
    owners: dict[str, str] = {}
    for want in wants:
        for gpu in pinned_gpus(host, want) if want.gpus and not want.share_gpus else ():
            if gpu.uuid in owners:
                faults.append(
                    f"gpus: {want.service} and {owners[gpu.uuid]} both name GPU {gpu.index}; "
                    "`share_gpus: true` lets one of them use what the other leaves"
                )
            owners[gpu.uuid] = want.service
        size = want.tensor_parallel_size or 1
        if want.gpus is None and size > len(host.gpus) > 0:
            faults.append(
                f"tensor_parallel_size: {size} needs as many cards, found {len(host.gpus)} on "
                "this node"
            )
    if faults:
        raise WantError(*faults)
