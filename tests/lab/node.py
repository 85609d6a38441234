"""A node as tests see it: a small Debian server with an address, reached over ssh."""

import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.lab import caches, container, disks, network, ready
from tests.lab.machine import LabError, read_json, remove_tree, unmount_below, write_json

PORT = 22


class RemoteError(subprocess.CalledProcessError):
    """A command on a node failed; the text ends with what it said."""

    def __str__(self) -> str:
        said = (self.stderr or self.stdout or "").strip()
        return f"{super().__str__()}\n{said[-4000:]}"


class Node:
    """One node of a lab. All it is stands in its directory, so any process can pick it up."""

    def __init__(self, home: Path, record_name: str = "node.json") -> None:
        record = read_json(home / record_name)
        if record is None:
            raise LabError(f"{home.name}: there is no such node")
        self.home = home
        self.name: str = home.name
        self.lab_id: int = record["lab_id"]
        self.index: int = record["index"]
        self.suite: str = record["suite"]
        self.base = Path(record["base"])
        self.address = network.address(self.lab_id, self.index)
        self.port = PORT
        self.root = home / "root"
        self.namespace = home / "netns"
        self.machine = f"{network.bridge_name(self.lab_id)}-{self.name}"
        self.ssh_key = home.parent.parent / "key"
        self.known_hosts = home / "known_hosts"
        self.ssh_config = home / "ssh_config"
        self.log = home / "console.log"

    # Reaching it

    @property
    def ssh_argv(self) -> list[str]:
        """ssh with all options and no host: append `user@address` or `address`, and a command."""
        return ["ssh", "-F", str(self.ssh_config)]

    def run(
        self,
        command: str | Sequence[str],
        user: str = "root",
        check: bool = True,
        timeout: float = 120,
        stdin: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """One command over one ssh connection; a string is a shell's, a sequence is quoted.

        RemoteError when it fails and `check` is on; subprocess.TimeoutExpired after `timeout` s.
        ssh's own failures (the node is off, the key is refused) are exit status 255.
        """
        line = command if isinstance(command, str) else shlex.join(command)
        argv = [*self.ssh_argv, f"{user}@{self.address}", "--", line]
        done = subprocess.run(
            argv,
            check=False,
            capture_output=True,
            text=True,
            timeout=timeout,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
        )
        if check and done.returncode != 0:
            raise RemoteError(done.returncode, line, done.stdout, done.stderr)
        return done

    def pyinfra_host_data(self, user: str = "root") -> dict[str, Any]:
        """Host data for a pyinfra inventory; a user made with sudo brings that along."""
        data: dict[str, Any] = {
            "ssh_hostname": self.address,
            "ssh_port": self.port,
            "ssh_user": user,
            "ssh_key": str(self.ssh_key),
            "ssh_known_hosts_file": str(self.known_hosts),
            "ssh_strict_host_key_checking": "yes",
            "ssh_allow_agent": False,
            "ssh_look_for_keys": False,
        }
        known = self._record().get("users", {}).get(user)
        if known and known["sudo"]:
            data["_sudo"] = True
            if known["sudo"] == "password":
                data["_sudo_password"] = known["password"]
        return data

    @property
    def testinfra_uri(self) -> str:
        """For testinfra.get_host(), by its ssh backend."""
        return f"ssh://root@{self.address}?ssh_config={self.ssh_config}&controlpersist=0"

    # Power

    @property
    def is_running(self) -> bool:
        return container.is_running(self.machine)

    def power_on(self, timeout: float = 60) -> None:
        """Boot, and return when ssh answers and systemd has started everything."""
        if not self.is_running:
            record = self._record()
            for disk in self._disks():
                disks.attach(disk)
            binds = [(Path(source), target) for target, source in record["binds"].items()]
            binds += [(disk.mount, disk.path) for disk in self._disks()]
            network.plug(self.lab_id, self.index, self.namespace)
            container.start(self.machine, self.root, self.namespace, binds, self.log)
        ready.wait(self, timeout)

    def power_off(self) -> None:
        """A power cut: the cable goes dead first, nothing is told, open connections just hang.

        Files stay. This machine's page cache outlives the cut: unsynced writes are kept, too.
        """
        if self.is_running:
            network.set_cable(self.lab_id, self.index, connected=False)
            container.kill(self.machine)
        self._stopped()

    def shutdown(self, timeout: float = 90) -> None:
        """A clean shutdown; LabError when it takes longer than `timeout` seconds."""
        if self.is_running:
            container.ask_to_power_off(self.machine, timeout)
        self._stopped()

    def destroy(self) -> None:
        """Remove the node with everything it has."""
        self.power_off()
        network.set_blocked(self.lab_id, self.address, None)
        unmount_below(self.home)
        remove_tree(self.home)

    def _stopped(self) -> None:
        network.unplug(self.namespace)
        container.remove_groups(self.machine)
        if caches.ARCHIVES in self._record()["binds"]:
            caches.harvest_archives(self.suite, self.home / "archives")

    # Changing it

    def add_user(self, name: str, sudo: str | None = "nopasswd") -> str | None:
        """A login with the lab's key and, as asked, sudo without or with a password.

        Returns the password where there is one.
        """
        if sudo not in (None, "nopasswd", "password"):
            raise LabError(f"sudo: nopasswd, password or None, not {sudo!r}")
        password = f"{name}-password" if sudo == "password" else None
        rule = f"{name} ALL=(ALL:ALL) {'NOPASSWD: ' if sudo == 'nopasswd' else ''}ALL"
        script = [
            "set -e",
            f"useradd --create-home --shell /bin/bash {shlex.quote(name)}",
            f"install -d -m 0700 -o {name} -g {name} /home/{name}/.ssh",
            f"install -m 0600 -o {name} -g {name} /root/.ssh/authorized_keys /home/{name}/.ssh/",
        ]
        if password is not None:
            script.append(f"echo {shlex.quote(f'{name}:{password}')} | chpasswd")
        if sudo is not None:
            script.append(f"umask 0337; echo {shlex.quote(rule)} > /etc/sudoers.d/{name}")
        self.run("sh -s", stdin="\n".join(script))
        users = self._record().get("users", {})
        self._change(users={**users, name: {"sudo": sudo, "password": password}})
        return password

    def limit_disk(self, path: str, size: int) -> None:
        """Mount an empty ext4 of `size` bytes at `path`, made if missing; it stays over reboots.

        The file system's own tables count: a fifth of a disk of 32 MiB, 3 % of one of 1 GiB.
        """
        known = self._disks()
        if any(disk.path == path for disk in known):
            raise LabError(f"{path}: has a disk already")
        inside = self.root / path.lstrip("/")
        inside.mkdir(parents=True, exist_ok=True)
        disk = disks.make(self.home / "disks", len(known), path, size)
        disks.own_like(disk, inside)
        self._change(disks=[*self._record().get("disks", []), {"path": path, "size": size}])
        if (leader := container.leader(self.machine)) is not None:
            disks.show(disk, leader)

    def fill_disk(self, path: str, leave: int = 0) -> None:
        """Use up a disk made by limit_disk until `leave` bytes are free; free_disk undoes it."""
        disks.fill(self._disk(path), leave)

    def free_disk(self, path: str) -> None:
        disks.filler(self._disk(path)).unlink(missing_ok=True)

    def block_network(self, how: str = "reject") -> None:
        """Cut the node off from everything beyond the lab; ssh and the lab's hub stay.

        `reject` answers at once as a strict router does, `drop` is a silent firewall.
        """
        network.set_blocked(self.lab_id, self.address, None)
        network.set_blocked(self.lab_id, self.address, how)

    def unblock_network(self) -> None:
        network.set_blocked(self.lab_id, self.address, None)

    def unplug_cable(self) -> None:
        """The node runs on and nobody reaches it, nor it anybody."""
        network.set_cable(self.lab_id, self.index, connected=False)

    def plug_cable(self) -> None:
        network.set_cable(self.lab_id, self.index, connected=True)

    # Its record

    def _disks(self) -> list[disks.Disk]:
        home = self.home / "disks"
        return [
            disks.Disk(
                path=row["path"],
                size=row["size"],
                image=home / f"{number}.img",
                mount=home / str(number),
            )
            for number, row in enumerate(self._record().get("disks", []))
        ]

    def _disk(self, path: str) -> disks.Disk:
        for disk in self._disks():
            if disk.path == path:
                return disk
        raise LabError(f"{path}: no disk of its own; call limit_disk first")

    def _record(self) -> dict[str, Any]:
        record = read_json(self.home / "node.json")
        if record is None:
            raise LabError(f"{self.name}: this node is gone")
        return record

    def _change(self, **values: Any) -> None:
        write_json(self.home / "node.json", {**self._record(), **values})
