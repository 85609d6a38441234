"""Attention backends: which one an engine takes by itself, and what each of them computes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from gpuwright import attention
from gpuwright.attention_rows import AttentionBackendRow, Toolchain
from gpuwright.catalogue import Matrix
from gpuwright.compat import runs
from gpuwright.engine_rows import ReleaseRow
from gpuwright.rows import Device
from gpuwright.versions import parse_version
from tools.pages.markdown import page, sources, span, table


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A kind of model that is asked for."""

    name: str
    head_sizes: tuple[int, ...] = ()
    mla: bool = False
    sliding: bool = False
    sinks: bool = False
    family: str = ""


KINDS = (
    Kind(name="heads of 128", head_sizes=(128,)),
    Kind(name="heads of 64", head_sizes=(64,)),
    Kind(name="heads of 256", head_sizes=(256,)),
    Kind(name="a sliding window, heads of 128", head_sizes=(128,), sliding=True),
    Kind(
        name="sinks, a sliding window, heads of 64 (gpt-oss)",
        head_sizes=(64,),
        sliding=True,
        sinks=True,
        family="gpt-oss",
    ),
    Kind(
        name="a sliding window, heads of 256 and 512 (Gemma 4)",
        head_sizes=(256, 512),
        sliding=True,
        family="gemma4",
    ),
    Kind(name="latent attention", mla=True),
)


def render(matrix: Matrix) -> str:
    capabilities = sorted({row.compute_capability for row in matrix.gpus}, key=parse_version)
    return page(
        "Attention backends",
        "What an engine takes by itself for a kind of model, a cache dtype and a compute "
        "capability, with a CUDA compiler beside it. Columns stand for capabilities that are "
        "answered alike; *no code*: the release's binaries do not run there; *none*: nothing that "
        "it takes by itself computes it. Below stands what each backend computes, pinned or not.",
        *(_release(matrix, row, capabilities) for row in matrix.releases if row.auto_order),
        "## What each backend computes",
        *(_engine(matrix, engine) for engine in matrix.engines if matrix.backends(engine)),
    )


def _release(matrix: Matrix, release: ReleaseRow, capabilities: Sequence[str]) -> str:
    parts = [f"## {release.engine} {release.release}"]
    said: dict[str, list[str]] = {}
    for kind in KINDS:
        said.setdefault(_kind(matrix, release, kind, capabilities), []).append(kind.name)
    for text, names in said.items():
        parts += [f"**{'; '.join(names)}**", text]
    return "\n\n".join(parts)


def _kind(matrix: Matrix, release: ReleaseRow, kind: Kind, capabilities: Sequence[str]) -> str:
    dtypes = release.kv_cache_dtypes
    columns = {
        capability: tuple(_cell(matrix, release, kind, capability, kv) for kv in dtypes)
        for capability in capabilities
    }
    alike = [
        (_together(list(group)), cells)
        for cells, group in groupby(columns, key=lambda capability: columns[capability])
    ]
    if all(cell == "none" for _, cells in alike for cell in cells if cell != "no code"):
        return "Nothing computes it."
    rows: dict[tuple[str, ...], list[str]] = {}
    for index, kv in enumerate(dtypes):
        rows.setdefault(tuple(cells[index] for _, cells in alike), []).append(kv)
    return table(
        ("cache", *(name for name, _ in alike)),
        ((", ".join(names), *cells) for cells, names in rows.items()),
    )


def _together(capabilities: Sequence[str]) -> str:
    first, last = capabilities[0], capabilities[-1]
    return first if first == last else f"{first} to {last}"


def _cell(matrix: Matrix, release: ReleaseRow, kind: Kind, capability: str, kv: str) -> str:
    cards = [tag for tag in release.build_tags if tag.device is Device.CUDA]
    if not any(runs(carried, capability) for tag in cards for carried in tag.capabilities):
        return "no code"
    asked = attention.Asked(
        capability=capability,
        kv=kv,
        head_sizes=kind.head_sizes,
        mla=kind.mla,
        sliding=kind.sliding,
        sinks=kind.sinks,
        family=kind.family,
    )
    answer = attention.chosen(release, matrix.backends(release.engine), [asked])
    return answer.backend if isinstance(answer, AttentionBackendRow) else "none"


def _engine(matrix: Matrix, engine: str) -> str:
    return f"### {engine}\n\n" + table(
        (
            "backend",
            "releases",
            "compute capability",
            "cache dtypes",
            "head sizes",
            "computes",
            "needs on the node",
            "sources",
        ),
        (_cells(row) for row in matrix.backends(engine)),
    )


def _cells(row: AttentionBackendRow) -> tuple[str, ...]:
    return (
        f"`{row.backend}`",
        span(row.releases) if row.releases else "all",
        _where(row),
        "; ".join(_caches(row)),
        "; ".join(_heads(row)) or "any",
        ", ".join(_computes(row)),
        f"{row.needs} ({row.toolchain})" if row.needs else "",
        sources(row.sources),
    )


def _where(row: AttentionBackendRow) -> str:
    found = ["CPU"] if Device.CPU in row.devices else []
    if Device.CUDA in row.devices:
        found.append(span(row.capabilities) if row.capabilities else "any card")
    return ", ".join(found)


def _caches(row: AttentionBackendRow) -> Iterator[str]:
    for rule in row.kv:
        beside = [f"on {span(rule.capabilities)}"] if rule.capabilities else []
        beside += [f"on the {'CPU' if each == 'cpu' else 'card'}" for each in rule.devices]
        if not rule.sinks and row.sinks:
            beside.append("without sinks")
        if rule.toolchain is not Toolchain.NONE:
            beside.append(f"with {rule.toolchain}")
        yield " ".join([", ".join(rule.dtypes), *beside])


def _heads(row: AttentionBackendRow) -> Iterator[str]:
    for rule in row.heads:
        beside = [f"on {span(rule.capabilities)}"] if rule.capabilities else []
        if rule.kv_cache_dtypes:
            beside.append(f"in {', '.join(rule.kv_cache_dtypes)}")
        yield " ".join([rule.words(), *beside])


def _computes(row: AttentionBackendRow) -> Iterable[str]:
    if row.latent.serves(False):
        yield "heads"
    if row.latent.serves(True):
        where = f" on {span(row.latent_capabilities)}" if row.latent_capabilities else ""
        yield f"latent attention{where}"
    if row.sliding and row.latent.serves(False):
        yield "sliding windows"
    for sink in row.sinks:
        yield "sinks" + (f" on {span(sink.capabilities)}" if sink.capabilities else "")
    for rule in row.versions:
        limits = [span(rule.capabilities)] if rule.capabilities else []
        if rule.sizes:
            limits.append(f"heads of {', '.join(map(str, rule.sizes))}")
        if rule.maximum:
            limits.append(f"heads up to {rule.maximum}")
        yield f"version {rule.version}" + (f" ({', '.join(limits)})" if limits else "")
