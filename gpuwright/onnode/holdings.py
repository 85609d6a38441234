"""What the census means: engines, checkpoints, services and plans of ours, and in what state."""

from __future__ import annotations

import os
import re
from typing import Any

from gpuwright.onnode.service import pids
from gpuwright.onnode.stamps import STAMP, vouched
from gpuwright.onnode.tree import Tree

_WORDS = re.compile(r"[\w.+:/-]{1,200}\Z", re.ASCII)
_MOST = 200

KEYS = ("engines", "models", "services", "plans")


def holdings(tree: Tree, spec: dict[str, Any], census: dict[str, Any]) -> dict[str, Any]:
    """`engines`, `models`, `services` and `plans` of the document, from the census's findings."""
    layout = spec["layout"]
    stamps, files = census["stamps"], census["files"]
    return {
        "engines": [
            {**row, "key": _word(stamps[f"{row['path']}/{STAMP}"], "key")}
            for row in _stamped(layout["engines"], stamps, files, census.get("altered") or {})
        ],
        "models": _stamped(layout["model_store"], stamps, files, {}),
        "services": _services(tree, layout["units"]),
        "plans": _plans(f"{layout['state']}/plans", stamps),
    }


def _stamped(
    place: str, stamps: dict[str, Any], files: dict[str, Any], altered: dict[str, str]
) -> list[dict[str, Any]]:
    """Each directory below `place` with a stamp of ours: `whole` where each file that it vouches
    for is the one it names by size, time and inode and nothing else is altered, else `damaged`;
    `unreadable` without any."""
    found = []
    for path in sorted(stamps):
        directory, name = os.path.split(path)
        if name != STAMP or os.path.dirname(directory) != place:
            continue
        entries = vouched(stamps[path])
        same = directory not in altered and all(
            isinstance(entry, dict) and _same(files.get(f"{directory}/{one}"), entry)
            for one, entry in entries.items()
        )
        state = "unreadable" if not entries else "whole" if same else "damaged"
        total = sum(
            entry["bytes"]
            for entry in entries.values()
            if isinstance(entry, dict) and type(entry.get("bytes")) is int
        )
        found.append({"path": directory, "state": state, "bytes": total})
    return found[:_MOST]


def _same(seen: dict[str, Any] | None, entry: dict[str, Any]) -> bool:
    pairs = (("size", "bytes"), ("mtime_ns", "mtime_ns"), ("inode", "inode"))
    return seen is not None and all(seen[one] == entry.get(other) for one, other in pairs)


def _services(tree: Tree, units: str) -> list[dict[str, Any]]:
    """Each unit of ours, whether it starts at boot, runs, and by which plan its file was made."""
    found = []
    groups = tree.exists("/sys/fs/cgroup")
    for name in tree.names(units):
        if re.match(r"gpuwright-[a-z0-9-]{1,32}\.service\Z", name):
            text = tree.text(f"{units}/{name}", 1 << 18) or ""
            plan = re.search(r'\bGPUWRIGHT_PLAN=([0-9a-f]{1,64})"?\s*$', text, re.MULTILINE)
            wanted = f"{units}/multi-user.target.wants/{name}"
            found.append(
                {
                    "unit": name,
                    "active": bool(pids(tree, f"/system.slice/{name}")) if groups else None,
                    "enabled": tree.link(wanted) is not None,
                    "plan": plan.group(1) if plan else None,
                }
            )
    return found[:_MOST]


def _plans(place: str, stamps: dict[str, Any]) -> list[dict[str, Any]]:
    """The last plan that was applied for each service."""
    keys = ("service", "engine", "release", "checkpoint")
    return [
        {key: _word(stamps[path], key) for key in keys}
        for path in sorted(stamps)
        if os.path.dirname(path) == place
    ][:_MOST]


def _word(value: object, key: str) -> str | None:
    """A word of a record that may be anybody's."""
    word = value.get(key) if isinstance(value, dict) else None
    return word if isinstance(word, str) and _WORDS.match(word) else None
