"""Calls of NVIDIA's management library, where any may be missing, refused or answer nonsense."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuwright.onnode.outcome import clean

INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NO_PERMISSION = 4
DRIVER_NOT_LOADED = 9
LIBRARY_NOT_FOUND = 12
LOST = 15
LIB_RM_VERSION_MISMATCH = 18
"""Numbers of nvmlReturn_t."""

MOST_BYTES = 1 << 50
"""More than any card has: NVML's "not available" is the largest number there is."""


def code_of(problem: BaseException) -> int:
    """NVML's number of an error; -1 for one that has none."""
    code = getattr(problem, "value", None)
    return code if isinstance(code, int) else -1


def error_of(problem: BaseException) -> dict[str, object]:
    code = code_of(problem)
    text = str(problem) if code >= 0 else f"{type(problem).__name__}: {problem}"
    return {"error_code": code, "error": clean(text, 300)}


def word(text: object) -> str | None:
    """Old pynvml and hostile firmware give bytes; a name may be no UTF-8."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    return clean(text, 200).strip() or None if isinstance(text, str) else None


def number(value: object, most: int, least: int = 0) -> int | None:
    """A number that can be true; None for any other."""
    return value if isinstance(value, int) and least <= value <= most else None


def switch(value: object) -> bool | None:
    """NVML's 0 or 1."""
    return bool(value) if isinstance(value, int) and value in (0, 1) else None


class Driver:
    """pynvml, asked so that only a lost card raises: all else that fails is None."""

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml

    def ask(self, names: str | Sequence[str], *arguments: object) -> Any:
        """What the first of the functions says that says anything."""
        for name in (names,) if isinstance(names, str) else names:
            try:
                return self.call(name, *arguments)
            except Exception as problem:
                if code_of(problem) == LOST:
                    raise
        return None

    def call(self, name: str, *arguments: object) -> Any:
        """One function; its error is raised. Texts come as bytes: they may be no UTF-8."""
        function = getattr(self.nvml, name)
        return getattr(function, "__wrapped__", function)(*arguments)

    def pair(self, name: str, *arguments: object) -> tuple[Any, Any]:
        """A function that says two things."""
        said = self.ask(name, *arguments)
        return (
            (said[0], said[1]) if isinstance(said, (list, tuple)) and len(said) > 1 else (None,) * 2
        )

    def text(self, name: str, *arguments: object) -> str | None:
        return word(self.ask(name, *arguments))
