"""Every listed card."""

from __future__ import annotations

from gpuwright.catalogue import Matrix
from gpuwright.rows import GpuKind, GpuRow
from gpuwright.versions import parse_version
from tools.pages.markdown import gib, page, sources, table

_TITLES = {
    GpuKind.GEFORCE: "GeForce",
    GpuKind.WORKSTATION: "Workstation",
    GpuKind.DATACENTER: "Data centre",
    GpuKind.INTEGRATED: "Memory of the node",
    GpuKind.JETSON: "Jetson",
}


def render(matrix: Matrix) -> str:
    kinds = [kind for kind in GpuKind if any(row.kind is kind for row in matrix.gpus)]
    return page(
        "Cards",
        f"{len(matrix.gpus)} cards and variants. An unlisted card is planned from its compute "
        "capability and its memory, and the plan says that it is unlisted.",
        *(_kind(kind, [row for row in matrix.gpus if row.kind is kind]) for kind in kinds),
    )


def _kind(kind: GpuKind, rows: list[GpuRow]) -> str:
    rows = sorted(rows, key=lambda row: parse_version(row.compute_capability))
    cards = table(
        (
            "card",
            "id",
            "compute capability",
            "memory, GiB",
            "GB/s",
            "NVLink",
            "has no units for",
            "kernel module",
            "PCI ids",
        ),
        (_cells(row) for row in rows),
    )
    claims = sources(claim for row in rows for claim in row.sources)
    return f"## {_TITLES[kind]}\n\n{cards}\n\nSources: {claims}"


def _cells(row: GpuRow) -> tuple[str, ...]:
    return (
        row.name.removeprefix("NVIDIA "),
        row.id,
        row.compute_capability,
        gib(row.memory_mib),
        "unknown" if row.bandwidth_gb_per_s is None else str(row.bandwidth_gb_per_s),
        {True: "yes", False: "no", None: "unknown"}[row.nvlink],
        ", ".join(row.lacks),
        row.kernel_module or "unknown",
        ", ".join(each.removeprefix("10de:") for each in row.pci_ids or ("unknown",)),
    )
