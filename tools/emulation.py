"""Where an engine's environment runs: on this machine, or as on one of another architecture, whose
root lies in a folder and whose programs qemu-user runs here (binfmt_misc)."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tools.lock_resolve import LockError

BINFMT = Path("/proc/sys/fs/binfmt_misc")
_NAMED_BY_PACKAGES_ALONE = {"cc": "gcc", "c++": "g++", "which": "which.debianutils"}
"""Links that a package's script would have made: in a root that was only unpacked they are not."""
PROGRAMS = (
    *("ar", "as", "basename", "c++", "cat", "cc", "dirname", "env", "g++", "gcc", "ld"),
    *("ldconfig", "lscpu", "mkdir", "rm", "sh", "uname", "which"),
)
"""What of a machine's own programs an engine finds: with more, a compiler for CUDA could be."""
OS_RELEASES = ("etc/os-release", "usr/lib/os-release")
"""Where Python looks for a distribution's name, in its order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """A folder's root; this machine where there is none."""

    root: Path | None = None

    def python(self, minor: str) -> str:
        """The interpreter as uv is told of it."""
        return str(self.root / f"usr/bin/python{minor}") if self.root else minor

    def program(self, name: str) -> Path | None:
        """The machine's own program, links followed; of a root never what a link of it leads to
        outside."""
        if self.root is None:
            here = shutil.which(name)
            return Path(here).resolve() if here else None
        inside = self.root.resolve()
        for each in (name, _NAMED_BY_PACKAGES_ALONE.get(name, name)):
            for folder in ("usr/bin", "usr/sbin", "bin", "sbin"):
                found = (inside / folder / each).resolve()
                if found.is_file() and found.is_relative_to(inside):
                    return found
        return None

    def variables(self) -> dict[str, str]:
        """What its programs need: where they find their libraries, and the rest of their root."""
        if self.root is None:
            return {}
        told = {name: os.environ[name] for name in ("QEMU_CPU",) if name in os.environ}
        return {"QEMU_LD_PREFIX": str(self.root), **told}

    def check(self, architecture: str) -> None:
        """LockError where programs of `architecture` do not run as this machine's."""
        if self.root is None:
            if architecture != platform.machine():
                raise LockError(
                    f"{architecture}: needed to prove a lock for it, found {platform.machine()}; "
                    "--emulate ROOT names a folder with the root of such a machine"
                )
            return
        self.emulator(architecture)
        inside = self.root.resolve()
        releases = {path: (inside / path).resolve() for path in OS_RELEASES}
        lacking = [
            *(name for name in PROGRAMS if self.program(name) is None),
            *(
                path
                for path, found in releases.items()
                if not found.is_file() or not found.is_relative_to(inside)
            ),
        ]
        if lacking:
            # What the root lacks would be this machine's.
            raise LockError(f"{self.root}: needed its own {', '.join(lacking)} there, found none")

    def emulator(self, architecture: str) -> str:
        """What runs its programs, in words: qemu-aarch64 7.2.22."""
        row = BINFMT / f"qemu-{architecture}"
        lines = row.read_text(encoding="utf-8").splitlines() if row.exists() else []
        told = dict(line.split(maxsplit=1) for line in lines if " " in line)
        if lines[:1] != ["enabled"] or "interpreter" not in told:
            raise LockError(
                f"{row}: needed enabled, so that programs for {architecture} run here (Debian's "
                f"qemu-user-binfmt registers it), found {lines[0] if lines else 'none'}"
            )
        said = _version(told["interpreter"])
        match = re.match(r"(\S+) version (\S+)", said)
        if not match:
            raise LockError(
                f"{told['interpreter']}: needed its version, so that the lock's proof can name "
                f"what ran it, found {said!r}"
            )
        return " ".join(match.groups())


def _version(interpreter: str) -> str:
    """The first line of what it says of itself, or of why it does not."""
    try:
        done = subprocess.run(
            [interpreter, "--version"], capture_output=True, text=True, check=False
        )
    except OSError as problem:
        return problem.strerror or str(problem)
    lines = (done.stdout or done.stderr).splitlines() or [f"exit status {done.returncode}"]
    return lines[0] if done.returncode == 0 else f"exit status {done.returncode}: {lines[0]}"


HERE = Machine()
