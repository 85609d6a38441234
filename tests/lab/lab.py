"""A lab: some nodes on one bridge, owned by a process, and gone without a trace when it is."""

import ipaddress
import os
import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.lab import base, caches, container, machine, network, ready
from tests.lab.hub import Hub
from tests.lab.machine import LabError, directory, locked, read_json, write_json
from tests.lab.node import Node

NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")
FIRST_INDEX = 10


def labs_home() -> Path:
    return directory() / "labs"


def records() -> dict[int, dict[str, Any]]:
    """What is written down of every lab, by id."""
    found = {}
    for home in sorted(labs_home().glob("*")):
        if home.name.isdigit():
            found[int(home.name)] = read_json(home / "lab.json") or {}
    return found


def owner_lives(record: dict[str, Any]) -> bool:
    """Whether the process that opened the lab is still the one under that number."""
    return bool(record) and machine.process_started(record["pid"]) == record["started"]


def clear(lab_id: int) -> None:
    """Take down everything of one lab, whole or half there, found by our names and places only."""
    for name in container.machines(f"{network.bridge_name(lab_id)}-"):
        container.kill(name)
        container.remove_groups(name)
    home = labs_home() / str(lab_id)
    for node_home in home.glob("nodes/*"):
        record = read_json(node_home / "node.json")
        if record is not None:
            caches.harvest_archives(record["suite"], node_home / "archives")
    network.close_lab(lab_id, directory())
    if home.exists():
        machine.remove_tree(home)


def clear_leftovers() -> list[int]:
    """Clear the labs whose process died and that nobody asked to keep; returns their ids."""
    cleared = []
    machine.empty_trash()
    with locked(directory() / "lock"):
        known = records()
        dead = {i for i, record in known.items() if not owner_lives(record) and not keeps(record)}
        # A bridge says which directory it belongs to; one of ours that has no record is left over.
        for lab_id in sorted(dead | (set(network.labs_of(directory())) - set(known))):
            clear(lab_id)
            cleared.append(lab_id)
    return cleared


def keeps(record: dict[str, Any]) -> bool:
    return bool(record.get("keep"))


class Lab:
    """Open a new lab, clearing what dead ones left. Leaving `with` closes it, unless `keep`.

    A kept lab outlives its process; Lab.find(name) picks it up again.
    """

    def __init__(self, name: str | None = None, *, keep: bool = False) -> None:
        ok, reason = machine.available()
        if not ok:
            raise LabError(reason)
        if name is not None and not NAME.fullmatch(name):
            raise LabError(f"name: lower-case letters, digits and dashes, not {name!r}")
        machine.ensure_packages()
        clear_leftovers()
        self.keep = keep
        with locked(directory() / "lock"):
            taken = records()
            if name is not None and any(record.get("name") == name for record in taken.values()):
                raise LabError(f"{name}: a lab of that name is there already")
            self.id = next(
                (i for i in range(network.MAX_LABS) if i not in taken and network.is_free(i)), -1
            )
            if self.id < 0:
                raise LabError(f"all {network.MAX_LABS} subnets of labs are in use")
            self.name = name or network.bridge_name(self.id)
            self.home.mkdir(parents=True)
            self.record = {
                "name": self.name,
                "keep": keep,
                "pid": os.getpid(),
                "started": machine.process_started(os.getpid()),
                "token": uuid.uuid4().hex,
            }
            write_json(self.home / "lab.json", self.record)
            key = self.home / "key"
            machine.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", self.name, "-f", key)
            network.open_lab(self.id, directory())

    @classmethod
    def find(cls, name: str) -> Self:
        """The running lab of that name; leaving `with` does not close a lab that was found."""
        for lab_id, record in records().items():
            if record.get("name") == name:
                lab = cls.__new__(cls)
                lab.id, lab.name, lab.keep, lab.record = lab_id, name, True, record
                return lab
        raise LabError(f"{name}: there is no such lab")

    @staticmethod
    def available() -> tuple[bool, str]:
        """Whether a lab can be had on this machine, and if not the reason in one line."""
        return machine.available()

    @property
    def home(self) -> Path:
        return labs_home() / str(self.id)

    @property
    def address(self) -> str:
        """This machine as the nodes see it."""
        return network.address(self.id, 1)

    @property
    def subnet(self) -> ipaddress.IPv4Network:
        return network.subnet(self.id)

    def boot(
        self,
        name: str,
        suite: str = "bookworm",
        *,
        apt_cache: bool = True,
        ccache: bool = False,
        sources: bool = False,
        binds: dict[str, str | Path] | None = None,
    ) -> Node:
        """A node of that name, running: made if it is not there, switched on if it is off.

        ccache, sources: share the lab's compiler cache and sources directory, which the node then
        has as mount points. binds: further directories, path in the node to path on this machine.
        """
        if not NAME.fullmatch(name):
            raise LabError(f"name: lower-case letters, digits and dashes, not {name!r}")
        home = self.home / "nodes" / name
        with locked(self.home / "locks" / name):
            if read_json(home / "node.json") is None:
                self._make(home, suite, apt_cache, ccache, sources, binds or {})
            node = Node(home)
            if node.suite != suite:
                raise LabError(f"{name}: is there already, with {node.suite}")
            node.power_on()
        return node

    def _make(
        self,
        home: Path,
        suite: str,
        apt_cache: bool,
        ccache: bool,
        sources: bool,
        binds: dict[str, str | Path],
    ) -> None:
        tree = base.ensure(suite, bases_in_use())
        targets = {target: str(Path(source).resolve()) for target, source in binds.items()}
        if ccache:
            targets[caches.CCACHE] = str(caches.shared("ccache"))
        if sources:
            targets[caches.SOURCES] = str(caches.shared("sources"))
        with locked(self.home / "lock"):
            machine.remove_tree(home)
            home.mkdir(parents=True)
            used = {int(path.read_text()) for path in home.parent.glob("*/index")}
            index = next(i for i in range(FIRST_INDEX, 250) if i not in used)
            (home / "index").write_text(str(index))
        if apt_cache:
            caches.seed_archives(suite, home / "archives")
            targets[caches.ARCHIVES] = str(home / "archives")
        record = {"lab_id": self.id, "index": index, "suite": suite, "base": str(tree)}
        write_json(home / "draft.json", {**record, "binds": targets})
        # The record appears last: a node that was broken off before is made anew.
        draft = Node(home, "draft.json")
        ready.mount_tree(draft)
        ready.prepare(draft)
        (home / "draft.json").rename(home / "node.json")

    def boot_all(self, names: list[str], suite: str = "bookworm", **options: Any) -> list[Node]:
        """Boot several nodes side by side; options as for boot."""
        with ThreadPoolExecutor(max_workers=8) as pool:
            return list(pool.map(lambda name: self.boot(name, suite, **options), names))

    def node(self, name: str) -> Node:
        """A node that is there, running or off."""
        return Node(self.home / "nodes" / name)

    def nodes(self) -> list[Node]:
        return [Node(path.parent) for path in sorted(self.home.glob("nodes/*/node.json"))]

    def hub(self) -> Hub:
        """A new model hub, file server and package index that this lab's nodes reach."""
        return Hub(self.address, network.address(self.id, 2))

    def close(self) -> None:
        """Take the lab down; nothing of it stays but the caches. Closing twice does nothing."""
        with locked(directory() / "lock"):
            # The id may belong to another lab by then.
            if read_json(self.home / "lab.json") == self.record:
                clear(self.id)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self.keep:
            self.close()


def bases_in_use() -> set[Path]:
    """Base trees that some node lies upon, running or off."""
    found = [read_json(path) for path in labs_home().glob("*/nodes/*/*.json")]
    return {Path(record["base"]) for record in found if record is not None}
