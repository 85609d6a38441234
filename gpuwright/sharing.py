"""One build for all nodes of which the same is wanted: who makes it, hands it on, takes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class Part(StrEnum):
    """What a node does for its engine's build."""

    NONE = "none"
    """It has the build."""
    MAKES = "makes"
    GIVES = "gives"
    """It has the build, or makes it first, and hands it on."""
    TAKES = "takes"


@dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """One node's engine directory, which names its content, and whether it stands."""

    host: str
    engine_dir: str
    stands: bool


def parts(needs: Iterable[Need], kept: Iterable[str]) -> Mapping[str, tuple[Part, bool]]:
    """By host: its part, and whether it compiles. `kept` are engine directories whose build the
    control machine holds. Of several nodes without it the first by name compiles."""
    wanted: dict[str, list[Need]] = {}
    for need in sorted(needs, key=lambda each: each.host):
        wanted.setdefault(need.engine_dir, []).append(need)
    held = set(kept)
    found: dict[str, tuple[Part, bool]] = {}
    for engine_dir, each in wanted.items():
        lacking = [need.host for need in each if not need.stands]
        having = [need.host for need in each if need.stands]
        found |= dict.fromkeys(having, (Part.NONE, False))
        found |= dict.fromkeys(lacking, (Part.TAKES, False))
        if engine_dir in held or not lacking:
            continue
        if having:
            found[having[0]] = (Part.GIVES, False)
        else:
            first = Part.GIVES if len(lacking) > 1 else Part.MAKES
            found[lacking[0]] = (first, True)
    return found
