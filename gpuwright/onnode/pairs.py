"""How each two cards are connected: NVLinks, peer access over PCIe, the way through the board."""

from __future__ import annotations

from typing import Any

from gpuwright.onnode.calls import INVALID_ARGUMENT, LOST, NOT_SUPPORTED, Driver, code_of
from gpuwright.onnode.cards import bus_address

_MOST_LINKS = 36
_READ, _WRITE, _OVER_NVLINK = 0, 1, 2
_P2P = (
    "ok",
    "chipset_not_supported",
    "gpu_not_supported",
    "topology_not_supported",
    "disabled_by_regkey",
    "not_supported",
    "unknown",
)
_TOPOLOGY = {
    0: "internal",
    10: "single",
    20: "multiple",
    30: "hostbridge",
    40: "node",
    50: "system",
}


def links(driver: Driver, handle: Any) -> list[str | None] | None:
    """The far end of each active NVLink of a card, None for one that is not told.

    None altogether: whether there are any cannot be told.
    """
    ends: list[str | None] = []
    known = True
    for link in range(_MOST_LINKS):
        try:
            active = driver.call("nvmlDeviceGetNvLinkState", handle, link)
        except Exception as problem:
            code = code_of(problem)
            if code == LOST:
                raise
            known = known and code in (NOT_SUPPORTED, INVALID_ARGUMENT)  # the card has fewer
            continue
        if active == 1:
            ends.append(bus_address(driver.ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)))
    return ends if ends or known else None


def pair(driver: Driver, one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Two cards, each with its `handle`, `address`, `index` and `links`."""
    said = [
        driver.ask("nvmlDeviceGetP2PStatus", one["handle"], other["handle"], way)
        for way in (_READ, _WRITE)
    ]
    status = next((code for code in said if code != 0), 0)
    level = driver.ask("nvmlDeviceGetTopologyCommonAncestor", one["handle"], other["handle"])
    return {
        "a": one["index"],
        "b": other["index"],
        "nvlinks": _between(driver, one, other),
        "p2p": _P2P[status] if isinstance(status, int) and 0 <= status < len(_P2P) else None,
        "topology": _TOPOLOGY.get(level) if isinstance(level, int) else None,
    }


def _between(driver: Driver, one: dict[str, Any], other: dict[str, Any]) -> int | None:
    """Active links that lead from one card to the other, through NVLink switches too."""
    if one["links"] is None or other["links"] is None:
        return None
    direct = one["links"].count(other["address"]) if other["address"] else 0
    if direct or not one["links"] or not other["links"]:
        return int(direct)
    over = driver.ask("nvmlDeviceGetP2PStatus", one["handle"], other["handle"], _OVER_NVLINK)
    if over is None:
        return None
    return min(len(one["links"]), len(other["links"])) if over == 0 else 0
