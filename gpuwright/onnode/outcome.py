"""How a program on a node reports: progress on stderr, one JSON object last on stdout.

It never ends in a traceback, and nothing here may stop work because the one who listens has
gone: a broken pipe is ignored.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from typing import Any


class NodeError(Exception):
    """Work that cannot be done, as one sentence for people and what would help.

    `more` is put into the answer: lines of a compiler's output or of a journal, as lists.
    """

    def __init__(self, error: str, hint: str = "", **more: object) -> None:
        super().__init__(error)
        self.error = error
        self.hint = hint
        self.more = more


def clean(text: object, limit: int = 4000) -> str:
    """`text` as one printable line: control, bidi and line separator characters become `?`."""
    shown = []
    for character in str(text)[:limit]:
        code = ord(character)
        hostile = (
            code < 0x20
            or 0x7F <= code < 0xA0
            or 0x200B <= code <= 0x200F
            or 0x2028 <= code <= 0x202E
            or 0x2066 <= code <= 0x2069
            or 0xD800 <= code <= 0xDFFF
        )
        shown.append("?" if hostile else character)
    return "".join(shown)


def _write(descriptor: int, text: str) -> None:
    data = text.encode("utf-8", "backslashreplace")
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        return  # the control machine has gone; the work goes on


def say(line: str) -> None:
    """One line of progress for people, on stderr."""
    _write(2, clean(line) + "\n")


class Progress:
    """Lines of progress, at most one every two seconds."""

    def __init__(self, every_seconds: float = 2.0) -> None:
        self.every_seconds = every_seconds
        self._last = time.monotonic()

    def due(self) -> bool:
        """True if a line may be said; the clock restarts then."""
        if time.monotonic() - self._last < self.every_seconds:
            return False
        self._last = time.monotonic()
        return True


def answer(result: dict[str, object]) -> None:
    """Put `result` on stdout as the last line, in ASCII: the node's locale cannot break it."""
    _write(1, json.dumps(result, ensure_ascii=True) + "\n")


def failed(error: str, hint: str = "") -> dict[str, object]:
    """The answer of a program that could not do its work."""
    return {"ok": False, "error": clean(error), "hint": clean(hint)}


def cause(problem: BaseException) -> str:
    """What went wrong, for the end of a sentence; of the system's own errors no numbers."""
    if isinstance(problem, OSError) and problem.strerror:
        return problem.strerror
    return str(problem) or type(problem).__name__


def sentence(problem: BaseException) -> str:
    """An exception for people."""
    if isinstance(problem, NodeError):
        return problem.error
    if isinstance(problem, OSError) and problem.strerror:
        named = problem.filename2 or problem.filename
        return f"{named}: {problem.strerror}" if named else problem.strerror
    return f"{type(problem).__name__}: {problem}"


def _stop(number: int, frame: object) -> None:
    raise NodeError(f"stopped by signal {number}", "run again: it goes on where this one stopped")


def conclude(
    main: Callable[[dict[str, Any], str | None], dict[str, Any]],
    spec_text: str,
    carried: str | None = None,
) -> int:
    """Run `main(spec, carried)` and answer with what it returns; the exit status is returned.

    1: it could not do its work. 0: it did, or it was only asked whether it could (`preflight`) and
    answered, be it no. A hang-up of the control machine
    is ignored; a request to end (SIGTERM, SIGINT) unwinds, so that locks and children go.
    """
    os.umask(0o022)  # not whatever the one who logged in has
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    spec: Any = None
    try:
        spec = json.loads(spec_text)
        if not isinstance(spec, dict):
            raise NodeError("the program's specification must be a JSON object")
        result = main(spec, carried)
    except NodeError as failure:
        result = {**failed(failure.error, failure.hint), **failure.more}
    except Exception as problem:
        result = failed(sentence(problem))
    answer(result)
    only_asked = isinstance(spec, dict) and bool(spec.get("preflight"))
    return 1 if result.get("ok") is False and not only_asked else 0
