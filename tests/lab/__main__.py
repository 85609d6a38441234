"""The lab by hand: up, down, list, ssh, clean."""

import argparse
import os
import shlex
import sys

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
    down = words.add_parser("down", help="remove a node; the last one takes the lab with it")
    down.add_argument("name")
    words.add_parser("list", help="every lab and node")
    clean = words.add_parser("clean", help="remove leftovers and kept labs")
    clean.add_argument("--all", action="store_true", help="labs that a process runs, too")
    clean.add_argument("--caches", action="store_true", help="base trees and caches, too")
    ssh = words.add_parser("ssh", help="log in, or run a command")
    ssh.add_argument("name")
    ssh.add_argument("command", nargs=argparse.REMAINDER)
    asked = parser.parse_args(argv)
    try:
        return int(COMMANDS[asked.word](asked) or 0)
    except (LabError, RemoteError) as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1


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
    place, node = _find(asked.name)
    node.destroy()
    if place.name == DEFAULT and not place.nodes():
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
            if asked.all or not lab.owner_lives(record):
                lab.clear(lab_id)
                cleared.append(lab_id)
    if asked.caches:
        if lab.records():
            raise LabError("caches: a lab still runs upon them")
        machine.remove_tree(machine.directory() / "cache")
    say(f"removed {len(cleared)} lab{'' if len(cleared) == 1 else 's'}")


COMMANDS = {"up": _up, "down": _down, "list": _list, "ssh": _ssh, "clean": _clean}

if __name__ == "__main__":
    sys.exit(main())
