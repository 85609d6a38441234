"""Nodes that look as if they had cards: NVIDIA's libraries, and PyTorch's answers, played."""

import shutil
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.lab.node import Node
from tests.nvml import rigs
from tools.standins import SOURCES, build_driver

LIBRARIES = "usr/lib/x86_64-linux-gnu"
_SITE = """
import importlib.abc, importlib.util, os, sys

class AfterTorch(importlib.abc.MetaPathFinder):
    looking = False  # some look for torch, and import it later

    def find_spec(self, name, path=None, target=None):
        if name != "torch" or self.looking:
            return None
        self.looking = True
        spec = importlib.util.find_spec(name)
        self.looking = False
        load = spec.loader.exec_module
        def exec_module(module):
            load(module)
            exec(compile(PLAYED, "torch_cards.py", "exec"), {"__name__": "torch_cards"})
        spec.loader.exec_module = exec_module
        return spec

if sys.prefix != sys.base_prefix:
    sys.meta_path.insert(0, AfterTorch())
"""


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


def header(folder: Path, wheelhouse: Path) -> Path:
    """cuda.h out of the CUDA runtime's wheel."""
    (wheel,) = wheelhouse.glob("nvidia_cuda_runtime*.whl")
    with zipfile.ZipFile(wheel) as opened:
        (name,) = [name for name in opened.namelist() if name.endswith("/include/cuda.h")]
        return Path(opened.extract(name, folder))


def put_driver(node: Node, folder: Path, cuda_h: Path, *, version: int = 13000) -> None:
    """A driver library for that CUDA, in which nothing computes, with a card of 8.6."""
    flags = (f"-DDRIVER_VERSION={version}", '-DCAPABILITY="8.6"')
    put_library(node, build_driver(folder / "driver", cuda_h, *flags) / "libcuda.so.1")


def put_python(node: Node, minors: Sequence[str]) -> str:
    """A copy of the Python that runs this below /opt, with its headers; where it is on the node.
    Skips where it is none of `minors`, or the machine's own."""
    minor, base = ".".join(map(str, sys.version_info[:2])), Path(sys.base_prefix)
    if minor not in minors or base == Path("/usr"):
        pytest.skip(f"needs tests run by a Python {' or '.join(minors)} that is not the system's")
    prefix = f"/opt/python-{minor}"
    unneeded = shutil.ignore_patterns("site-packages", "test", "__pycache__", "share")
    shutil.copytree(base, node.root / prefix[1:], symlinks=True, ignore=unneeded)
    (node.root / "etc/ld.so.conf.d/python.conf").write_text(f"{prefix}/lib\n")
    node.run("ldconfig")
    return prefix


def let_torch_see(node: Node, python: str, prefix: str = "/usr", **card: object) -> None:
    """From here on PyTorch in environments of that Python finds a card, told in upper-case words
    (see tools/standins/torch_cards.py), on which nothing computes."""
    told = {f"STANDIN_{name.upper()}": str(value) for name, value in card.items()}
    played = (SOURCES / "torch_cards.py").read_text()
    place = f"{prefix}/lib/python{python}/sitecustomize.py"
    if prefix == "/usr":
        # A run that installs that Python's headers may bring its newer packages: they keep off it.
        node.run(["dpkg-divert", "--local", "--rename", "--add", place])
    (node.root / place[1:]).write_text(
        f"PLAYED = {played!r}\n{_SITE}    os.environ.update({told!r})\n"
    )
