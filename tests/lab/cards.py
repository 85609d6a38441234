"""Nodes that look as if they had cards: NVIDIA's libraries, and PyTorch's answers, played."""

import zipfile
from pathlib import Path

from tests.lab.node import Node
from tests.nvml import rigs
from tools.standins import SOURCES, build_driver

LIBRARIES = "usr/lib/x86_64-linux-gnu"
_SITE = """
import importlib.abc, importlib.util, os, sys

class AfterTorch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
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


def let_torch_see(node: Node, python: str, **card: object) -> None:
    """From here on PyTorch in environments of that Python finds a card, told in upper-case words
    (see tools/standins/torch_cards.py), on which nothing computes."""
    told = {f"STANDIN_{name.upper()}": str(value) for name, value in card.items()}
    played = (SOURCES / "torch_cards.py").read_text()
    place = f"/usr/lib/python{python}/sitecustomize.py"
    # A run that installs that Python's headers may bring its newer packages: they keep off it.
    node.run(["dpkg-divert", "--local", "--rename", "--add", place])
    (node.root / place[1:]).write_text(
        f"PLAYED = {played!r}\n{_SITE}    os.environ.update({told!r})\n"
    )
