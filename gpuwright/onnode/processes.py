"""Running a program to its end while its lines are heard; none outlives the one who started it."""

from __future__ import annotations

import collections
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Sequence

from gpuwright.onnode.outcome import NodeError

_KEPT_LINES = 400


class Finished:
    """How a program ended: its exit status and the last lines it said."""

    def __init__(self, status: int, lines: list[str]) -> None:
        self.status = status
        self.lines = lines

    @property
    def ending(self) -> str:
        """The exit status for people."""
        if self.status >= 0:
            return f"exit status {self.status}"
        try:
            return f"killed by {signal.Signals(-self.status).name}"
        except ValueError:
            return f"killed by signal {-self.status}"


def run(
    arguments: Sequence[str],
    environment: dict[str, str],
    hear: Callable[[str], None] | None = None,
    held: Sequence[int] = (),
    seconds: float | None = None,
    directory: str | None = None,
) -> Finished:
    """Run a program, in `directory` or here; stdout and stderr come as one stream of lines.

    `held`: descriptors that the program and all its children keep open, such as a lock: it stays
    held until the last of them is gone, even if we are killed. NodeError: it cannot be started or
    takes longer than `seconds`.
    """
    try:
        process = subprocess.Popen(
            list(arguments),
            env=environment,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=tuple(held),
            start_new_session=True,
        )
    except OSError as problem:
        raise NodeError(f"{arguments[0]} cannot be started: {problem.strerror}") from None
    lines: collections.deque[str] = collections.deque(maxlen=_KEPT_LINES)

    def late(number: int, frame: object) -> None:
        raise NodeError(f"{arguments[0]} did not end within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds or 0)
    try:
        if process.stdout is not None:
            for raw in process.stdout:
                line = raw.decode("utf-8", "replace").rstrip()
                lines.append(line)
                if hear is not None:
                    hear(line)
        status = process.wait()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if process.poll() is None:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
    return Finished(status, list(lines))
