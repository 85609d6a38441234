"""What is known of cards from outside the driver: whose processes they run, and their health."""

from __future__ import annotations

from typing import Any

from gpuwright.onnode.listeners import unit_of
from gpuwright.onnode.outcome import clean
from gpuwright.onnode.tree import Tree

_OURS = "gpuwright-"
FAILING_XIDS = frozenset((48, 64, 79, 95, 140))
"""Memory errors that neither ECC nor containment held (48, 95, 140), memory that cannot be taken
out of use (64), off the bus (79): each wants a reset of the card, or of the node, before anything
runs again (https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html). A contained one
(94) ends its program alone; 154 comes with others, and again once a card has recovered."""
_SLOWED = frozenset(("hw_slowdown", "hw_thermal", "hw_power_brake", "sw_thermal"))


def add_processes(devices: list[dict[str, Any]], tree: Tree, container: bool) -> None:
    """Name each process, and say whether it is one of our services.

    In a container the driver's numbers are those of its host: there, they name nobody.
    """
    for process in (one for device in devices for one in device["processes"] or []):
        place = f"/proc/{process['pid']}"
        name = None if container else tree.word(f"{place}/comm")
        group = None if container else tree.text(f"{place}/cgroup")
        process["name"] = clean(name, 64) if name else None
        process["ours"] = None if group is None else (unit_of(group) or "").startswith(_OURS)


def add_condition(
    devices: list[dict[str, Any]], lost: list[dict[str, Any]], logged: dict[str, list[int]] | None
) -> None:
    """The kernel log's errors of each card, and its health."""
    for card in (*devices, *lost):
        place = (card["pci_address"] or "").partition(".")[0]
        card["xids"] = None if logged is None else logged.get(place, [])
    for device in devices:
        device["health"] = _health(device)


def _health(device: dict[str, Any]) -> str:
    failing = (
        FAILING_XIDS.intersection(device["xids"] or ())
        or device["repair"]["failed"]
        or device["ecc"]["uncorrected"]
    )
    if failing:
        return "failing"
    return "throttled" if _SLOWED.intersection(device["throttle"] or ()) else "ok"
