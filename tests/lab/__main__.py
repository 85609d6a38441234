"""The lab by hand: up, down, list, ssh, hub, clean."""

import argparse
import os
import shlex
import sys
import time
from pathlib import Path

from tests.lab import base, lab, machine
from tests.lab.lab import Lab
from tests.lab.machine import LabError, say
from tests.lab.node import Node, RemoteError

# The lab that `up` opens; nodes of another are named LAB/NODE.
DEFAULT = "default"


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0, or 1 with one line that says what is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab", description=__doc__)
    words = parser.add_subparsers(dest="word", required=True)
    up = words.add_parser("up", help="boot a node, or switch it on again")
    up.add_argument("name")
    up.add_argument("--suite", choices=base.SUITES, default=base.SUITES[0])
    up.add_argument("--user", nargs="?", const="ops", help="add a login with sudo")
    up.add_argument("--ccache", action="store_true", help="share the compiler cache")
    up.add_argument("--sources", action="store_true", help="share the sources directory")
    down = words.add_parser("down", help="remove a node, with the last one its lab, or a kept lab")
    down.add_argument("name", help="NODE, LAB/NODE for one outside the default lab, or LAB")
    words.add_parser("list", help="every lab and node")
    clean = words.add_parser("clean", help="remove what dead labs left behind")
    clean.add_argument("--kept", action="store_true", help="kept labs, too, whoever uses them")
    clean.add_argument("--all", action="store_true", help="kept labs and those of live processes")
    clean.add_argument("--caches", action="store_true", help="base trees and caches, too")
    ssh = words.add_parser("ssh", help="log in, or run a command")
    ssh.add_argument("name")
    ssh.add_argument("command", nargs=argparse.REMAINDER)
    hub = words.add_parser("hub", help="serve ORG/NAME folders as a model hub, until interrupted")
    hub.add_argument("folder", type=Path)
    hub.add_argument("--packages", type=Path, help="a folder to serve as a package index")
    asked = parser.parse_args(argv)
    try:
        COMMANDS[asked.word](asked)
    except (LabError, RemoteError) as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _up(asked: argparse.Namespace) -> None:
    try:
        place = Lab.find(DEFAULT)
    except LabError:
        place = Lab(DEFAULT, keep=True)
    node = place.boot(asked.name, asked.suite, ccache=asked.ccache, sources=asked.sources)
    if asked.user and node.run(["id", asked.user], check=False).returncode != 0:
        node.add_user(asked.user)
    print(f"{node.name} {node.suite} {node.address} {shlex.join(node.ssh_argv)} {node.address}")


def _find(name: str) -> tuple[Lab, Node]:
    place, _, node = name.rpartition("/")
    found = Lab.find(place or DEFAULT)
    return found, found.node(node)


def _down(asked: argparse.Namespace) -> None:
    """A node by its name, or a whole kept lab by its own; a lab that a process owns is its own."""
    kept = {record.get("name") for record in lab.records().values() if lab.keeps(record)}
    if asked.name in kept:
        Lab.find(asked.name).close()
        return
    place, node = _find(asked.name)
    node.destroy()
    if place.name in kept and not place.nodes():
        place.close()


def _list(_: argparse.Namespace) -> None:
    for lab_id, record in lab.records().items():
        if not record:
            continue
        owner = f"process {record['pid']}" if lab.owner_lives(record) else "kept"
        if not lab.owner_lives(record) and not lab.keeps(record):
            owner = "left over"
        print(f"{record['name']}  {lab.network.subnet(lab_id)}  {owner}")
        for node in Lab.find(record["name"]).nodes():
            state = "running" if node.is_running else "off"
            print(f"  {node.name}  {node.suite}  {node.address}  {state}")


def _ssh(asked: argparse.Namespace) -> None:
    _, node = _find(asked.name)
    os.execvp("ssh", [*node.ssh_argv, f"root@{node.address}", *asked.command])


def _clean(asked: argparse.Namespace) -> None:
    cleared = lab.clear_leftovers()
    with machine.locked(machine.directory() / "lock"):
        for lab_id, record in lab.records().items():
            if asked.all or (asked.kept and not lab.owner_lives(record)):
                lab.clear(lab_id)
                cleared.append(lab_id)
    if asked.caches:
        if lab.records():
            raise LabError("caches: a lab still runs upon them")
        machine.remove_tree(machine.directory() / "cache")
    say(f"removed {len(cleared)} lab{'' if len(cleared) == 1 else 's'}")


def _hub(asked: argparse.Namespace) -> None:
    with Lab.find(DEFAULT).hub() as served:
        for repository in served.add_folder(asked.folder):
            print(f"{repository.id} at {repository.commit}: {len(repository.files)} files")
        if asked.packages:
            print(f"package index: {served.serve_packages(asked.packages)}")
        print(f"HF_ENDPOINT={served.url}", flush=True)
        while True:
            time.sleep(3600)


COMMANDS = {"up": _up, "down": _down, "list": _list, "ssh": _ssh, "hub": _hub, "clean": _clean}

if __name__ == "__main__":
    sys.exit(main())
