"""Which attention backend a release takes for a model on a card, and why not another.

Pure over rows: the decision and the test that holds the rows to the engines' own answers ask the
same functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gpuwright.attention_rows import AttentionBackendRow, HeadRule, KvRule, Toolchain
from gpuwright.engine_rows import ReleaseRow
from gpuwright.refusals import Needs, Reason, Unlisted
from gpuwright.rows import Device
from gpuwright.versions import within


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What a model, a cache and a card ask of attention. `capability` None: the CPU."""

    capability: str | None
    kv: str
    head_sizes: tuple[int, ...]
    mla: bool = False
    sliding: bool = False
    sinks: bool = False
    family: str = ""
    toolchain: Toolchain = Toolchain.NVCC

    @property
    def device(self) -> Device:
        return Device.CPU if self.capability is None else Device.CUDA

    def inside(self, capabilities: str) -> bool:
        """Whether the card is in the range; the CPU is in each."""
        return self.capability is None or within(self.capability, capabilities)


def chosen(
    release: ReleaseRow,
    rows: Sequence[AttentionBackendRow],
    asked: Sequence[Asked],
    *,
    pinned: str | None = None,
) -> AttentionBackendRow | Reason:
    """The backend that the release takes by itself, or `pinned`, if it fits every card asked for.

    `rows` are those of the engine. The order is that of the first card. Else the first reason.
    """
    named = {row.backend: row for row in rows if within(release.release, row.releases)}
    reasons: list[Reason] = []
    for name in (pinned,) if pinned is not None else order(release, asked[0]):
        if name not in named:
            return Unlisted(
                subject=f"{name} under {release.engine} {release.release}",
                file="attention_backends.yaml",
            )
        reason = _against_any(named[name], asked)
        if reason is None:
            return named[name]
        reasons.append(reason)
    if not reasons:
        return Unlisted(subject=f"attention backends of {release.engine} here", file="engines/")
    return reasons[0]


def beyond(
    release: ReleaseRow, rows: Sequence[AttentionBackendRow], asked: Sequence[Asked]
) -> AttentionBackendRow | None:
    """The first backend that fits every card, in or out of the release's own order."""
    here = (row for row in rows if within(release.release, row.releases))
    return next((row for row in here if _against_any(row, asked) is None), None)


def order(release: ReleaseRow, asked: Asked) -> tuple[str, ...]:
    """The backends that the release tries, first to last."""
    for rule in release.auto_order:
        if (
            rule.device is asked.device
            and rule.mla in (None, asked.mla)
            and (not rule.families or asked.family in rule.families)
            and rule.sinks in (None, asked.sinks)
            and asked.toolchain.has(rule.toolchain)
            and asked.inside(rule.capabilities)
        ):
            return rule.order
    return ()


def reason_against(row: AttentionBackendRow, asked: Asked) -> Reason | None:
    """None where the backend computes what is asked, else the first reason why not."""
    return next((reason for rule in _RULES for reason in rule(row, asked)), None)


def _against_any(row: AttentionBackendRow, asked: Sequence[Asked]) -> Reason | None:
    reasons = (reason_against(row, each) for each in asked)
    return next((reason for reason in reasons if reason is not None), None)


def _needs(row: AttentionBackendRow, needed: str, found: str) -> Needs:
    return Needs(subject=f"attention backend {row.backend}", needed=needed, found=found, row=row.id)


def _card(row: AttentionBackendRow, asked: Asked) -> Iterator[Reason]:
    if asked.device not in row.devices:
        yield _needs(row, ", ".join(row.devices), asked.device)
    elif not asked.inside(row.capabilities):
        yield _needs(row, f"compute capability {row.capabilities}", str(asked.capability))


def _kind(row: AttentionBackendRow, asked: Asked) -> Iterator[Reason]:
    if row.families and asked.family not in row.families:
        yield _needs(row, f"a model of {' or '.join(row.families)}", asked.family or "another")
    elif not row.latent.serves(asked.mla):
        found = "latent attention" if asked.mla else "attention with heads"
        yield _needs(row, "the other kind of attention", found)
    elif asked.mla and not asked.inside(row.latent_capabilities):
        needed = f"compute capability {row.latent_capabilities} for latent attention"
        yield _needs(row, needed, str(asked.capability))
    elif asked.sliding and not row.sliding:
        yield _needs(row, "full attention in every layer", "a sliding window")


def _toolchain(row: AttentionBackendRow, asked: Asked) -> Iterator[Reason]:
    if not asked.toolchain.has(row.toolchain):
        yield _needs(row, str(row.needs), "neither")


def _cache(row: AttentionBackendRow, asked: Asked) -> Iterator[Reason]:
    here = [rule for rule in row.kv if rule.meets(asked.capability)]
    rules = [rule for rule in here if asked.kv in rule.dtypes]
    where = f" on {asked.capability}" if asked.capability else ""
    if not rules:
        dtypes = dict.fromkeys(dtype for rule in here for dtype in rule.dtypes)
        yield _needs(row, f"a cache in {' or '.join(dtypes)}{where}", asked.kv)
    elif not any(asked.toolchain.has(rule.toolchain) for rule in rules):
        yield _needs(row, f"kernels that the vendor builds for {asked.kv}{where}", "none")


def _head_sizes(row: AttentionBackendRow, asked: Asked) -> Iterator[Reason]:
    rule = next((rule for rule in row.heads if rule.meets(asked.capability, asked.kv)), HeadRule())
    for size in asked.head_sizes:
        if not rule.admits(size):
            yield _needs(row, f"head sizes {rule.words()}", str(size))


def _sinks(row: AttentionBackendRow, asked: Asked) -> Iterator[Reason]:
    if not asked.sinks:
        return
    where = f" on {asked.capability}" if asked.capability else ""
    here = [rule for rule in row.sinks if asked.inside(rule.capabilities)]
    if not any(asked.toolchain.has(rule.toolchain) for rule in here):
        needed = "kernels that the vendor builds" if here else "a model without"
        yield _needs(row, f"{needed}, for attention sinks{where}", "attention sinks")
    elif not any(_with_sinks(rule, asked) for rule in row.kv):
        yield _needs(row, f"a model without attention sinks for a cache in {asked.kv}", "sinks")
    for size in asked.head_sizes:
        version = row.version(asked.capability, size)
        if version is not None and not version.sinks:
            needed = f"a model without attention sinks for head size {size}{where}"
            yield _needs(row, needed, f"its version {version.version}")


def _with_sinks(rule: KvRule, asked: Asked) -> bool:
    return rule.sinks and asked.kv in rule.dtypes and rule.meets(asked.capability)


_RULES: tuple[Callable[[AttentionBackendRow, Asked], Iterator[Reason]], ...] = (
    _card,
    _kind,
    _cache,
    _toolchain,
    _head_sizes,
    _sinks,
)
