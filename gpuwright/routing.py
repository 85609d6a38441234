"""Which engine comes first for a workload on a card."""

from __future__ import annotations

from gpuwright.model_rows import LayerKind
from gpuwright.rows import Route, WorkloadRow
from gpuwright.site import Combination
from gpuwright.versions import within

_NO_ROUTE = Route(order=(), because="no route of the workload covers this card")


def route_for(workload: WorkloadRow, combination: Combination) -> Route:
    """The first route of `workload` whose device, capability and kind of model fit."""
    capability = combination.capability
    hybrid = bool(combination.model.architecture.of(LayerKind.LINEAR))
    for route in workload.routes:
        if route.device is not combination.device or route.hybrid not in (None, hybrid):
            continue
        if capability is None or within(capability, route.capabilities):
            return route
    return _NO_ROUTE
