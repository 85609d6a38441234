"""One booted tree: systemd-nspawn in control groups of the node's own, by which it is found."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from tests.lab.machine import LabError, cgroup_roots, run

# A container that reboots ends with 133 where no manager registered it; this one starts it again.
# Control groups of its own: nspawn would put every node's systemd into the very same one.
SUPERVISOR = """
for group in $GROUPS_OF_NODE; do echo 0 > "$group/cgroup.procs"; done
unset GROUPS_OF_NODE
while "$@"; [ $? -eq 133 ]; do :; done
"""


def groups(machine: str) -> list[Path]:
    """The machine's control group in each hierarchy that systemd uses."""
    return [root / machine for root in cgroup_roots()]


def machines(prefix: str) -> list[str]:
    """Names of machines whose control group begins with `prefix`, running or left over."""
    names = {path.name for root in cgroup_roots() for path in root.glob(f"{prefix}*")}
    return sorted(names)


def start(
    machine: str, root: Path, namespace: Path, binds: list[tuple[Path, str]], log: Path
) -> None:
    """Boot the tree at `root`; returns at once, ssh tells when it is up."""
    remove_groups(machine)
    for group in groups(machine):
        group.mkdir()
    argv = [
        *("systemd-nspawn", "--quiet", "--boot", f"--directory={root}", f"--machine={machine}"),
        *("--register=no", "--keep-unit", "--resolv-conf=off", "--timezone=off"),
        *("--link-journal=no", "--settings=no", f"--network-namespace-path={namespace}"),
        *(f"--bind={source}:{target}" for source, target in binds),
    ]
    env = {
        "PATH": os.environ["PATH"],
        # Without it systemd 256 and newer refuses a machine with the old layout of control groups.
        "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1",
        "GROUPS_OF_NODE": " ".join(str(group) for group in groups(machine)),
    }
    quoted = ["sh", "-c", SUPERVISOR, machine, *argv]
    # The log, not a pipe: whoever started the node may be long gone while it runs.
    run("setsid", "--fork", "sh", "-c", 'exec "$@" >>"$0" 2>&1', log, *quoted, env=env)


def is_running(machine: str) -> bool:
    """Whether any process of the machine is alive."""
    try:
        events = (groups(machine)[0] / "cgroup.events").read_text()
    except OSError:
        return False
    return "populated 1" in events


def leader(machine: str) -> int | None:
    """The process that is PID 1 inside, as this machine numbers it; None when there is none."""
    payload = groups(machine)[0] / "payload"
    for procs in (payload / "init.scope" / "cgroup.procs", payload / "cgroup.procs"):
        with suppress(OSError):
            for pid in procs.read_text().split():
                status = Path(f"/proc/{pid}/status").read_text()
                inside = next(line for line in status.splitlines() if line.startswith("NSpid"))
                if inside.split()[-1] == "1" and len(inside.split()) > 2:
                    return int(pid)
    return None


def kill(machine: str) -> None:
    """End every process of the machine at once, none of them asked."""
    if not is_running(machine):
        return
    if (pid := leader(machine)) is not None:
        # The kernel ends the whole tree with its PID 1; nspawn then removes its own lock files.
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        if wait_stopped(machine, 5):
            return
    for group in groups(machine)[:1]:
        (group / "cgroup.kill").write_text("1")
    # One that waits for the disk ends only when that has answered: 10 s were not enough for a node
    # that had just unpacked gigabytes, on a machine that others used as well.
    if not wait_stopped(machine, 90):
        raise LabError(f"{machine}: processes still run after they were killed")


def ask_to_power_off(machine: str, seconds: float) -> None:
    """A clean shutdown by systemd's own signal; LabError when it takes longer than `seconds`."""
    pid = leader(machine)
    if pid is None:
        raise LabError(f"{machine}: has no running init")
    os.kill(pid, signal.SIGRTMIN + 4)
    if not wait_stopped(machine, seconds):
        raise LabError(f"{machine}: still shutting down after {seconds:g} s")


def wait_stopped(machine: str, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while is_running(machine):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def remove_groups(machine: str) -> None:
    """Remove the machine's empty control groups."""
    for top in groups(machine):
        if not top.exists():
            continue
        for path in sorted(top.rglob("*/"), key=lambda path: len(path.parts), reverse=True):
            with suppress(OSError):
                path.rmdir()
        # The kernel frees a group a moment after its last process has ended.
        for _ in range(50):
            try:
                top.rmdir()
                break
            except OSError:
                time.sleep(0.02)
