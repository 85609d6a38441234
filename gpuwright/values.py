"""Checks of single values of a want: each answers with the value in one form, or a ValueError.

The text of the ValueError reads behind the key's name and a colon.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpuwright.quoting import clipped, nearest, quoted

NO_GPUS = "none"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/+-]{0,127}", re.ASCII)
_SERVICE = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?", re.ASCII)
_GPU = re.compile(r"\d{1,3}|(?:GPU|MIG)-[0-9A-Za-z-]{1,64}", re.ASCII)
_LOWEST_PORT = 1024


def read_text(value: object) -> str:
    if not isinstance(value, str):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        quote = "; quote it" if number else ""
        raise ValueError(f"needs text, found {quoted(value)}{quote}")
    if not value:
        raise ValueError("needs text, found none")
    if not value.isprintable():
        raise ValueError(f"needs text without control characters, found {quoted(value)}")
    return value


def read_name(value: object) -> str:
    if not _NAME.fullmatch(read_text(value)):
        raise ValueError(
            f"{quoted(value)} needs 1 to 128 letters, digits and . _ / + -, the first of them a "
            "letter or a digit"
        )
    return str(value)


def read_service(value: object) -> str:
    if not _SERVICE.fullmatch(read_text(value)):
        raise ValueError(
            f"{quoted(value)} needs 1 to 32 of a-z, 0-9 and -, with no - at either end"
        )
    return str(value)


def read_whole(low: int, high: int) -> Callable[[object], int]:
    def check(value: object) -> int:
        if type(value) is not int:
            bare = isinstance(value, str) and value.isascii() and value.isdigit()
            end = "; leave the quotes out" if bare else ""
            raise ValueError(
                f"needs a whole number from {low:,} to {high:,}, found {quoted(value)}{end}"
            )
        if not low <= value <= high:
            shown = f"{value:,}" if abs(value) < 1 << 64 else quoted(value)
            raise ValueError(f"needs {low:,} to {high:,}, found {shown}")
        return value

    return check


def read_switch(value: object) -> bool:
    if type(value) is not bool:
        raise ValueError(f"needs true or false, found {quoted(value)}")
    return value


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeculativeWant:
    """A pinned way of drafting; the method None: no drafting. What else is None is decided."""

    method: str | None
    tokens: int | None = None
    drafter: str | None = None


_MOST_DRAFT_TOKENS = 64
_OF_SPECULATIVE = ("method", "tokens", "drafter")


def read_speculative(value: object) -> SpeculativeWant:
    """`off`, a method, `method:tokens`, or a mapping of method, tokens and drafter."""
    if value is False or value in ("none", "off"):
        return SpeculativeWant(method=None)
    if isinstance(value, Mapping):
        for key in value:
            if key not in _OF_SPECULATIVE:
                raise ValueError(f"{clipped(key)}: unknown key{nearest(key, _OF_SPECULATIVE)}")
        tokens, drafter = value.get("tokens"), value.get("drafter")
        if "method" not in value:
            raise ValueError("method missing; known beside it: tokens, drafter")
        if value["method"] in (False, "none", "off"):
            if beside := [key for key in ("tokens", "drafter") if value.get(key) is not None]:
                raise ValueError(f"method off contradicts {' and '.join(beside)}")
            return SpeculativeWant(method=None)
        return SpeculativeWant(
            method=read_name(value["method"]),
            tokens=None if tokens is None else read_whole(1, _MOST_DRAFT_TOKENS)(tokens),
            drafter=None if drafter is None else read_name(drafter),
        )
    if not isinstance(value, str):
        raise ValueError(
            f"needs off, a method such as mtp, or method:tokens, found {quoted(value)}"
        )
    method, separator, count = value.partition(":")
    if not separator:
        return SpeculativeWant(method=read_name(method))
    if not count.isascii() or not count.isdigit() or len(count) > len(str(_MOST_DRAFT_TOKENS)):
        raise ValueError(f"{quoted(value)} needs a whole number of tokens behind the colon")
    return SpeculativeWant(
        method=read_name(method), tokens=read_whole(1, _MOST_DRAFT_TOKENS)(int(count))
    )


def read_port(value: object) -> int:
    try:
        return read_whole(_LOWEST_PORT, 65535)(value)
    except ValueError as error:
        if type(value) is int and 0 < value < _LOWEST_PORT:
            raise ValueError(f"{error}: the service has no right to bind lower ports") from None
        raise


_CARDS = "needs a list such as [0, 1] or of UUIDs, or 'none'; left out: what fits"


def read_gpus(value: object) -> tuple[str, ...]:
    if value == NO_GPUS:
        return ()
    if isinstance(value, str | int) and not isinstance(value, bool):
        value = [value]
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(f"{_CARDS}, found {quoted(value)}")
    names = []
    for entry in value:
        if isinstance(entry, bool) or not _GPU.fullmatch(str(entry)):
            raise ValueError(f"{quoted(entry)} is neither an index nor a UUID; {_CARDS}")
        names.append(str(entry))
    if len(set(names)) < len(names):
        raise ValueError("names a card twice")
    return tuple(names)


def read_address(value: object) -> str:
    text = read_text(value)
    if text == "localhost":
        return "127.0.0.1"
    try:
        # A scope after % could be any text, and stands in the unit and in URLs.
        return str(ipaddress.ip_address(text if "%" not in text else ""))
    except ValueError:
        raise ValueError(
            f"{quoted(text)} is not an IP address; needs one such as 127.0.0.1 or ::1, without "
            "port, brackets or scope, or localhost"
        ) from None


LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)


def read_lora_rank(value: object) -> int:
    rank = read_whole(LORA_RANKS[0], LORA_RANKS[-1])(value)
    if rank not in LORA_RANKS:
        raise ValueError(f"needs one of {', '.join(map(str, LORA_RANKS))}, found {rank}")
    return rank


def read_list(read: Callable[[object], str]) -> Callable[[object], tuple[str, ...]]:
    """One value, or a list of them."""

    def check(value: object) -> tuple[str, ...]:
        values = value if isinstance(value, list | tuple) else [value]
        return tuple(dict.fromkeys(read(each) for each in values))

    return check
