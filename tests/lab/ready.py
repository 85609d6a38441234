"""Making a node's tree its own before the first boot, and waiting for it after each."""

import subprocess
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab.machine import LabError, run

if TYPE_CHECKING:
    from tests.lab.node import Node

SSH_CONFIG = """\
Host *
  BatchMode yes
  ConnectTimeout 5
  ConnectionAttempts 1
  ServerAliveInterval 5
  ServerAliveCountMax 3
  IdentityFile {key}
  IdentitiesOnly yes
  StrictHostKeyChecking yes
  UserKnownHostsFile {known_hosts}
  GlobalKnownHostsFile /dev/null
  LogLevel ERROR
"""


def mount_tree(node: "Node") -> None:
    """Put the node's own layer over the base tree."""
    for name in ("upper", "work", "root"):
        (node.home / name).mkdir(exist_ok=True)
    # volatile: a sync inside is no sync of this machine's disk, which is most of an installation's
    # time. Nothing is lost by it: the mount outlives power cuts of the node.
    parts = f"lowerdir={node.base},upperdir={node.home}/upper,workdir={node.home}/work"
    options = f"{parts},volatile"
    run("mount", "-t", "overlay", "overlay", "-o", options, node.root)


def prepare(node: "Node") -> None:
    """Give the mounted tree its name, its identity, its way to resolve names and the lab's key."""
    etc = node.root / "etc"
    (etc / "hostname").write_text(f"{node.name}\n")
    (etc / "hosts").write_text(f"127.0.0.1 localhost\n{node.address} {node.name}\n")
    (etc / "machine-id").write_text(f"{uuid.uuid4().hex}\n")
    (etc / "resolv.conf").unlink(missing_ok=True)
    (etc / "resolv.conf").write_text(_resolvers())
    host_key = etc / "ssh/ssh_host_ed25519_key"
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", node.name, "-f", host_key)
    public = " ".join(host_key.with_suffix(".pub").read_text().split()[:2])
    node.known_hosts.write_text(f"{node.address} {public}\n{node.name} {public}\n")
    node.ssh_config.write_text(SSH_CONFIG.format(key=node.ssh_key, known_hosts=node.known_hosts))
    ssh = node.root / "root/.ssh"
    ssh.mkdir(mode=0o700, exist_ok=True)
    keys = ssh / "authorized_keys"
    keys.write_text(node.ssh_key.with_suffix(".pub").read_text())
    keys.chmod(0o600)


def wait(node: "Node", timeout: float) -> None:
    """Return when ssh answers and the boot is over; LabError with the console's end otherwise."""
    deadline = time.monotonic() + timeout
    said = ""
    while time.monotonic() < deadline:
        if not node.is_running:
            said = "it is not running"
        else:
            # Waiting inside costs one connection; `degraded` is a boot that is over, too.
            try:
                done = node.run(
                    "systemctl is-system-running --wait",
                    check=False,
                    timeout=max(1, deadline - time.monotonic()),
                )
            except subprocess.TimeoutExpired:
                break
            said = (done.stdout + done.stderr).strip()
            if done.stdout.strip() in ("running", "degraded"):
                return
            if not node.is_running:
                break
        time.sleep(0.05)
    console = node.log.read_text(errors="replace")[-1500:] if node.log.exists() else ""
    raise LabError(f"{node.name}: not up after {timeout:g} s: {said}\n{console}")


def _resolvers() -> str:
    """The machine's resolvers, save those that listen on its own loopback."""
    for path in (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf")):
        if path.exists() and "nameserver 127." not in (text := path.read_text()):
            return text
    return ""
