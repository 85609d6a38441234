"""What would help where something cannot be: what can be tried is offered only if it helps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

_TRIES = 3
"""How many remedies of one kind are tried."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Remedy:
    """What would help. Where it is a key of the want, or another driver, it can be tried: then it
    is offered only if a plan comes of it."""

    words: str
    want: tuple[tuple[str, Any], ...] = ()
    """Keys of the want with their values."""
    driver: str | None = None

    @property
    def can_be_tried(self) -> bool:
        return bool(self.want) or self.driver is not None

    @property
    def kind(self) -> str:
        """Of two of one kind the one that asks less is enough."""
        keys = [key for key, _ in self.want]
        return "driver" if self.driver else " ".join(keys)

    def cost(self) -> tuple[int, ...]:
        """Sorts those of one kind, the one that asks least first."""
        if self.driver is not None:
            return tuple(int(part) for part in self.driver.split("."))
        return tuple(-value for _, value in self.want if isinstance(value, int))


CPU_INSTEAD = Remedy(words="`gpus: none` to serve on the CPU", want=(("gpus", ()),))


def said(help: str | None) -> tuple[Remedy, ...]:
    """What helps and can only be said."""
    return () if help is None else (Remedy(words=help),)


def that_help(remedies: Iterable[Remedy], helps: Callable[[Remedy], bool]) -> Iterator[str]:
    """Remedies in their order, each once; of longer contexts and of newer drivers the one that
    asks least."""
    remedies = tuple(dict.fromkeys(remedies))
    kinds: dict[str, list[Remedy]] = {}
    for each in remedies:
        if each.can_be_tried:
            kinds.setdefault(each.kind, []).append(each)
    least = {
        next((each for each in sorted(kind, key=Remedy.cost)[:_TRIES] if helps(each)), None)
        for kind in kinds.values()
    }
    for each in remedies:
        if not each.can_be_tried or each in least:
            yield each.words
