"""Work that may hang, put into a child process that can be given up.

A child holds none of the caller's standard streams: one that can never be killed (a driver in
an uninterruptible call) must not keep the connection to the control machine open.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Callable
from typing import Any

_DRAIN_SECONDS = 1.0
"""For the rest of an answer that a pipe does not hold at once."""


class Child:
    """A child process whose output is read through a pipe until a deadline."""

    def __init__(self, pid: int, descriptor: int, deadline: float) -> None:
        self.pid = pid
        self.descriptor = descriptor
        self.deadline = deadline

    def output(self, limit: int = 64 << 20) -> bytes | None:
        """All it wrote; None if it was not done at the deadline. It is ended either way.

        What it has written by then counts whenever it is read: the reader may come late.
        """
        chunks: list[bytes] = []
        size = 0
        done = False
        late = time.monotonic() >= self.deadline
        if late and select.select([self.descriptor], [], [], 0)[0]:
            self.deadline = time.monotonic() + _DRAIN_SECONDS
        try:
            while size < limit:
                left = max(self.deadline - time.monotonic(), 0.0)
                if not select.select([self.descriptor], [], [], left)[0]:
                    break
                chunk = os.read(self.descriptor, 1 << 20)
                if not chunk:
                    done = True
                    break
                chunks.append(chunk)
                size += len(chunk)
        finally:
            os.close(self.descriptor)
            self._end(done)
        return b"".join(chunks) if done else None

    def _end(self, done: bool) -> None:
        try:
            if done:
                os.waitpid(self.pid, 0)
            else:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, os.WNOHANG)
        except OSError:
            return


def start(work: Callable[[], object], seconds: float) -> Child:
    """Run `work` in a forked child; its result, a JSON value, is the child's output."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return Child(pid, reading, time.monotonic() + seconds)
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        data = json.dumps(work()).encode()
        while data:
            data = data[os.write(writing, data) :]
    finally:
        # No clean-up of the parent's state may run twice.
        os._exit(0)


def value(child: Child) -> Any:
    """What the child's work returned; None if it hung, died or raised."""
    output = child.output()
    try:
        return json.loads(output) if output else None
    except ValueError:
        return None


def spawn(arguments: list[str], seconds: float) -> Child | None:
    """Start a program found on PATH, its output in a pipe; None if it cannot be started.

    Without the subprocess module, whose import takes longer than most programs run.
    """
    reading, writing = os.pipe()
    environment = dict(os.environ, LC_ALL="C", SYSTEMD_COLORS="0", SYSTEMD_PAGER="")
    try:
        pid = os.posix_spawnp(
            arguments[0],
            arguments,
            environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, writing, 1),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            ],
        )
    except OSError:
        os.close(reading)
        os.close(writing)
        return None
    os.close(writing)
    return Child(pid, reading, time.monotonic() + seconds)
