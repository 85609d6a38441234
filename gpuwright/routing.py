"""Which engine comes first for a workload on a card."""

from __future__ import annotations

from gpuwright.model_rows import LayerKind, ModelRow
from gpuwright.rows import Device, Route, WorkloadRow
from gpuwright.versions import within

_NO_ROUTE = Route(order=(), because="no route of the workload covers this card")


def route(workload: WorkloadRow, model: ModelRow, capabilities: tuple[str | None, ...]) -> Route:
    """The first route of `workload` whose device, capability and kind of model fit; on the CPU
    `capabilities` are empty, and of several cards the first counts."""
    device = Device.CUDA if capabilities else Device.CPU
    capability = capabilities[0] if capabilities else None
    hybrid = bool(model.architecture.of(LayerKind.LINEAR))
    for each in workload.routes:
        if each.device is not device or each.hybrid not in (None, hybrid):
            continue
        if capability is None or within(capability, each.capabilities):
            return each
    return _NO_ROUTE
