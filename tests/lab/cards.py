"""Nodes that look as if they had cards: NVIDIA's management library, played by a stand-in."""

from pathlib import Path

from tests.lab.node import Node
from tests.nvml import rigs

LIBRARIES = "usr/lib/x86_64-linux-gnu"


def put_cards(node: Node, folder: Path, scenario: str) -> None:
    """Let the node's driver answer as `scenario` says; what is compiled lies in `folder`."""
    for library in rigs.build(folder / "library").iterdir():
        put_library(node, library)
    node.run("touch /dev/nvidia0 /dev/nvidia1 /dev/nvidiactl /dev/nvidia-uvm")
    change_cards(node, scenario)


def put_library(node: Node, library: Path) -> None:
    target = node.root / LIBRARIES / library.name
    target.unlink(missing_ok=True)  # ldconfig makes such links, too
    if library.is_symlink():
        target.symlink_to(library.readlink())
    else:
        target.write_bytes(library.read_bytes())
    node.run("ldconfig")


def change_cards(node: Node, scenario: str) -> None:
    (node.root / "etc/nvml-scenario").write_text(scenario)
