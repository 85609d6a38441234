"""Versions, compute capabilities and ranges over them, compared as numbers and never as text."""

import re
from functools import lru_cache

_PRE_RELEASES = {"dev": -4, "a": -3, "b": -2, "rc": -1}
_VERSION = re.compile(
    r"b?(?P<numbers>\d+(?:\.\d+)*)(?:\.?(?P<kind>dev|a|b|rc|post)(?P<count>\d*))?", re.ASCII
)
_CLAUSE = re.compile(r"(?P<operator>>=|<=|==|!=|<|>)(?P<version>.+)", re.ASCII)

Version = tuple[tuple[int, ...], int, int]


@lru_cache(maxsize=1024)
def parse_version(text: str) -> Version:
    """`text` as a value that sorts: "0.5.10.post1" after "0.5.10", "1.4.0rc1" before "1.4.0".

    A leading `b` as in llama.cpp's build numbers ("b11434") is dropped. Trailing zeros do not
    count: "13" equals "13.0". Raises ValueError where `text` is no version.
    """
    match = _VERSION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a version")
    numbers = [int(part) for part in match["numbers"].split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    kind = match["kind"]
    stage = 0 if kind is None else 1 if kind == "post" else _PRE_RELEASES[kind]
    return tuple(numbers), stage, int(match["count"] or 0)


@lru_cache(maxsize=1024)
def _clauses(spec: str) -> tuple[tuple[str, Version], ...]:
    clauses = []
    for part in spec.split(","):
        match = _CLAUSE.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"{part.strip()!r} is not a bound such as '>=8.0'")
        clauses.append((match["operator"], parse_version(match["version"])))
    return tuple(clauses)


def check_range(spec: str) -> None:
    """Raise ValueError where `spec` is not a comma list of bounds; an empty one covers all."""
    if spec.strip():
        _clauses(spec)


@lru_cache(maxsize=4096)
def within(version: str, spec: str) -> bool:
    """Whether `version` meets every bound of `spec` (">=8.0,<8.9"); an empty spec covers all."""
    if not spec.strip():
        return True
    value = parse_version(version)
    for operator, bound in _clauses(spec):
        holds = {
            ">=": value >= bound,
            "<=": value <= bound,
            "==": value == bound,
            "!=": value != bound,
            "<": value < bound,
            ">": value > bound,
        }[operator]
        if not holds:
            return False
    return True


def at_least(version: str, floor: str) -> bool:
    """Whether `version` is `floor` or later."""
    return parse_version(version) >= parse_version(floor)
