"""Running an engine's own Python to see what it says, with the service's rights and no more."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Sequence
from typing import Any

from gpuwright.onnode.archives import clear
from gpuwright.onnode.outcome import NodeError, clean
from gpuwright.onnode.processes import Finished, run

SHOWN_LINES = 20


def drop_rights(user: str) -> list[str]:
    """Words before a command that is to run as `user`, without a way back, in the groups that
    systemd gives a unit with User= and Group= of that name; none where we are not root.

    NodeError: root cannot become that user. What an engine does as root proves nothing.
    """
    if os.geteuid() != 0:
        return []
    words = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--no-new-privs"]
    if shutil.which("setpriv"):
        told = run([*words, "true"], dict(os.environ), seconds=30)
        if told.status == 0:
            return words
        found = clean(next(filter(None, reversed(told.lines)), told.ending), 200)
    else:
        found = "no setpriv (it comes with util-linux)"
    raise NodeError(f"an engine is proven with the rights of user {user}, needed setpriv: {found}")


class Prover:
    """One environment's Python, and a scratch directory that is gone afterwards."""

    def __init__(self, directory: str, scratch: str, user: str, seconds: float) -> None:
        self.directory, self.scratch, self.seconds = directory, scratch, seconds
        self.home = f"{scratch}/home"
        self.user, self.words = user, drop_rights(user)
        clear(scratch)
        os.makedirs(self.home)
        if self.words:
            shutil.chown(self.home, user, user)

    def give(self, directory: str) -> None:
        """Make a directory of the user's own, if it is not there."""
        if self.words and not os.path.lexists(directory):
            os.makedirs(directory, mode=0o700)
            shutil.chown(directory, self.user, self.user)

    def ask(self, program: str, asked: Any, environment: dict[str, str]) -> tuple[Any, Finished]:
        """The JSON value on the last line of a program's output, None where there is none.

        `asked` reaches it as JSON in a file, its only argument. The environment stays byte for
        byte what its lock says: what is compiled lies where PYTHONPYCACHEPREFIX says.
        """
        for name, text in (("program.py", program), ("asked.json", json.dumps(asked))):
            with open(f"{self.scratch}/{name}", "w", encoding="utf-8") as file:
                file.write(text)
        found = {
            "PATH": f"{self.directory}/bin:/usr/local/bin:/usr/bin:/bin",
            "HOME": self.home,
            "XDG_CACHE_HOME": self.home,
            "TMPDIR": self.home,
            "LC_ALL": "C.UTF-8",
            **environment,
        }
        if not self.words:
            # What the service's user has written is for that user alone.
            found.update(HOME=self.home, XDG_CACHE_HOME=self.home)
        if not self.words or "PYTHONPYCACHEPREFIX" not in found:
            found["PYTHONPYCACHEPREFIX"] = f"{self.home}/python"
        command = [f"{self.scratch}/program.py", f"{self.scratch}/asked.json"]
        # Compilers look beside themselves first, and where root has logged in the user may not.
        told = run(
            [*self.words, f"{self.directory}/bin/python", *command],
            found,
            seconds=self.seconds,
            directory=self.home,
        )
        for line in reversed(told.lines):
            if line.startswith("{") and line.endswith("}"):
                try:
                    return json.loads(line), told
                except ValueError:
                    continue
        return None, told

    def close(self) -> None:
        clear(self.scratch)


def move_as(user: str, old: str, new: str) -> None:
    """Put a directory of the user's own in place of another, with no more rights than the user's:
    a path below what is theirs may lead anywhere. What is kept there can be made again."""
    with contextlib.suppress(NodeError):
        if words := drop_rights(user):
            script = 'rm -rf -- "$2" && mv -T -- "$1" "$2"'
            run([*words, "sh", "-c", script, "sh", old, new], dict(os.environ), seconds=60)


def shown(told: Finished) -> list[str]:
    """The last of what it wrote, for people."""
    lines = [line for line in told.lines if line.strip() and not line.startswith("{")]
    return [clean(line, 400) for line in lines[-SHOWN_LINES:]]


def fault(name: str, what: str, told: Finished) -> NodeError:
    """What an engine's Python said before it ended without an answer."""
    output = shown(told)
    said = next((line for line in reversed(output) if line.strip()), told.ending)
    return NodeError(f"{name}: {what}: {said}", "", output=output)


def versions_differ(wanted: dict[str, str], found: dict[str, str]) -> Sequence[str]:
    """Each package whose version is another than the lock's, as a phrase."""
    return [
        f"{name}: {wanted.get(name, 'nothing')} locked, {found.get(name, 'nothing')} installed"
        for name in sorted(set(wanted) | set(found))
        if wanted.get(name) != found.get(name)
    ]
