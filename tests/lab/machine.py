"""What the lab asks of the machine it runs on: programs, root's powers, locks and mounts."""

import fcntl
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Program asked for, Debian package that brings it.
PROGRAMS = {
    "mmdebstrap": "mmdebstrap",
    "systemd-nspawn": "systemd-container",
    "ssh": "openssh-client",
    "nft": "nftables",
    "ip": "iproute2",
    "mkfs.ext4": "e2fsprogs",
}


class LabError(Exception):
    """The lab could not do what it was asked; the text says what and why in one line or few."""


def say(text: str) -> None:
    """One progress line for people, on standard error."""
    print(f"lab: {text}", file=sys.stderr, flush=True)


def run(
    *argv: str | Path,
    check: bool = True,
    stdin: str | None = None,
    timeout: float = 60,
    env: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program of this machine; LabError with what it said when it fails or takes too long."""
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(
            words,
            check=False,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=timeout,
            env=env,
        )
    except subprocess.TimeoutExpired as error:
        raise LabError(f"{' '.join(words)}: no end after {timeout:g} s") from error
    if check and done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        raise LabError(f"{' '.join(words)}: exit status {done.returncode}: {said}")
    return done


def directory() -> Path:
    """The one directory with everything of the lab: caches, base trees and live labs."""
    path = Path(os.environ.get("GPUWRIGHT_LAB_DIR", "/var/lib/gpuwright-lab"))
    if not re.fullmatch(r"/[A-Za-z0-9_./+-]+", str(path)):
        # Overlay and nspawn options take paths apart at colons and commas.
        raise LabError(f"GPUWRIGHT_LAB_DIR: an absolute path of plain characters, not {path}")
    return path


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock, between processes and threads; it dies with its holder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def write_json(path: Path, value: Any) -> None:
    """Write a record so that a reader sees the old one or the new one, never a part."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    draft.write_text(json.dumps(value, indent=1))
    draft.replace(path)


def read_json(path: Path) -> dict[str, Any] | None:
    """A record, or None where it is missing or was never completed."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def process_started(pid: int) -> int | None:
    """Start time of a process in ticks since boot (proc(5), field 22); None when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def mounts_below(path: Path) -> list[Path]:
    """Mount points at or under `path`, deepest first."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        point = Path(line.split()[4].encode().decode("unicode_escape"))
        if point == path or path in point.parents:
            found.append(point)
    return sorted(found, key=lambda point: len(point.parts), reverse=True)


def unmount_below(path: Path) -> None:
    """Unmount everything at or under `path`; a mount somebody still uses is detached."""
    for point in mounts_below(path):
        if run("umount", point, check=False).returncode != 0:
            run("umount", "--lazy", point, check=False)


def remove_tree(path: Path) -> None:
    """Delete a tree of ours; never through a mount, so nothing of anybody else can be hit."""
    unmount_below(path)
    if left := mounts_below(path):
        raise LabError(f"{left[0]}: still mounted, so {path} is not deleted")
    if path.exists():
        trash = directory() / "trash"
        trash.mkdir(parents=True, exist_ok=True)
        path.rename(trash / uuid.uuid4().hex)
    empty_trash()


def empty_trash() -> None:
    """Delete in a process of its own: some disks take half a minute for one node's files."""
    trash = directory() / "trash"
    if trash.exists():
        argv = ("find", trash, "-xdev", "-mindepth", "1", "-delete")
        run("setsid", "--fork", "sh", "-c", 'exec nice "$@" >/dev/null 2>&1', "lab", *argv)


def missing_packages() -> list[str]:
    """Debian packages of the programs that are not on PATH."""
    return sorted({package for name, package in PROGRAMS.items() if shutil.which(name) is None})


def ensure_packages() -> None:
    """Install the packages that are missing, and nothing else."""
    missing = missing_packages()
    if not missing:
        return
    say(f"installing {', '.join(missing)}")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run("apt-get", "-qq", "update", timeout=300, env=env)
    run(
        *("apt-get", "-qq", "-y", "--no-install-recommends", "install", *missing),
        timeout=600,
        env=env,
    )


@functools.cache
def available() -> tuple[bool, str]:
    """Whether nodes can run here, and the reason in one line if not."""
    if os.geteuid() != 0:
        return False, "the lab needs root"
    if missing := missing_packages():
        if shutil.which("apt-get") is None:
            return False, f"the lab needs {', '.join(missing)}, and there is no apt-get here"
        if mirrorless():
            return False, "the lab needs a Debian mirror, and this machine's apt names none"
    if cgroup_roots() == []:
        return False, "the lab needs the unified cgroup hierarchy, and it is not mounted here"
    try:
        where = directory()
        where.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=where, prefix=".try-") as scratch:
            names = ("lower", "upper", "work", "root")
            parts = {name: Path(scratch, name) for name in names}
            for part in parts.values():
                part.mkdir()
            # In namespaces of their own, so that nothing is left whatever happens.
            run(
                *("unshare", "--net", "--mount", "mount", "-t", "overlay", "overlay", "-o"),
                "lowerdir={lower},upperdir={upper},workdir={work}".format(**parts),
                parts["root"],
            )
    except (OSError, LabError) as error:
        text = " ".join(str(error).split())
        return False, f"the lab needs namespaces and overlay mounts: {text}"
    return True, ""


def cgroup_roots() -> list[Path]:
    """Where a node's control groups go: the unified hierarchy, and systemd's own of cgroup v1."""
    base = Path("/sys/fs/cgroup")
    if (base / "cgroup.controllers").exists():
        return [base]
    if (base / "unified" / "cgroup.procs").exists():
        return [path for path in (base / "unified", base / "systemd") if path.exists()]
    return []


def apt_uris() -> Sequence[str]:
    """URIs of this machine's own apt sources, in their order."""
    texts = []
    for pattern in ("sources.list", "sources.list.d/*.sources", "sources.list.d/*.list"):
        texts += [path.read_text() for path in sorted(Path("/etc/apt").glob(pattern))]
    lines = [line.strip() for text in texts for line in text.splitlines()]
    found = []
    for line in lines:
        if line.startswith("URIs:"):
            found += line.split()[1:]
        elif one_line := re.match(r"deb\s+(\[[^\]]*\]\s+)?(\S+)", line):
            found.append(one_line[2])
    return found


def mirrorless() -> bool:
    """Whether neither GPUWRIGHT_LAB_MIRROR nor this machine's apt names a Debian mirror."""
    return not os.environ.get("GPUWRIGHT_LAB_MIRROR") and not apt_uris()
