"""llama.cpp for cards on nodes that look like 3090 boxes: compiled by a toolkit of wheels, proven.

No card is there, so the driver's library is one in which nothing can be computed, and the service
itself cannot start: what served before must serve on.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpuwright.layout import Layout
from tests.cuda.rig import stub_driver
from tests.lab.cards import LIBRARIES, put_cards, put_library
from tests.lab.lab import Lab
from tests.lab.node import Node
from tests.lab.serving import Run, inventory, run
from tests.lab.warm import MODEL, boot_warm
from tests.nvml import rigs
from tools.standins import build_runtime

pytestmark = pytest.mark.slow

LAYOUT = Layout()
UNIT = "gpuwright-llm.service"
ON_CPU = {"model": MODEL, "gpus": "none"}
ON_CARD = {"model": MODEL, "engine": "llama.cpp"}


@dataclass
class Box:
    """A node with a driver of which no card answers, and with CUDA's own runtime."""

    node: Node
    folder: Path

    def see_cards(self) -> None:
        """From here on programs find the cards of the scenario, and nothing more of them."""
        (toolkit,) = self.node.root.glob("opt/gpuwright/toolkits/cuda-*")
        library = build_runtime(self.folder / "runtime", toolkit / "include")
        put_library(self.node, library)
        preloaded = self.node.root / "etc/ld.so.preload"
        preloaded.write_text(f"/{LIBRARIES}/{library.name}\n")

    def serves(self) -> int:
        """The service's process, which answers."""
        self.node.run("curl -fsS http://127.0.0.1:8080/health")
        return int(self.node.run(f"systemctl show -p MainPID --value {UNIT}").stdout)

    def engines(self) -> dict[str, dict[str, Any]]:
        """Stamps of the builds for cards."""
        found = {}
        for path in self.node.root.glob("opt/gpuwright/engines/*/gpuwright.json"):
            stamp = json.loads(path.read_text())
            if "-DGGML_CUDA=ON" in stamp["cmake_args"]:
                found[path.parent.name] = stamp
        return found


def boot(lab: Lab, name: str, folder: Path) -> Box:
    node = boot_warm(lab, name, sources=True)
    put_cards(node, folder, rigs.ONE_3090)
    put_library(node, stub_driver(folder))
    return Box(node, folder)


def served(folder: Path, *boxes: tuple[Box, dict[str, Any]], check: bool = True) -> Run:
    hosts = [(box.node, {"gpuwright": want}) for box, want in boxes]
    return run(inventory(folder / "hosts.py", hosts), check=check, timeout=4 * 3600)


@pytest.fixture(scope="module")
def box(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    folder = tmp_path_factory.mktemp("one")
    made = boot(lab, "cuda-a", folder)
    served(folder, (made, ON_CPU))
    yield made
    made.node.destroy()


def test_a_build_that_sees_no_card_is_refused_and_what_served_serves_on(box: Box) -> None:
    before = box.serves()
    done = served(box.folder, (box, ON_CARD), check=False)
    assert done.status != 0
    assert "the built llama-server sees 0 cards of 1" in done.text
    assert box.serves() == before
    assert not box.engines()
    assert not list(box.node.root.glob("opt/gpuwright/engines/*.partial*"))
    assert not list(box.node.root.glob("var/cache/gpuwright/build/*"))


def test_a_build_that_lists_the_cards_stands_and_a_start_without_them_changes_nothing(
    box: Box,
) -> None:
    box.see_cards()
    done = served(box.folder, (box, ON_CARD), check=False)
    assert done.status != 0
    (stamp,) = box.engines().values()
    assert ["RTX 3090" in device for device in stamp["devices"]] == [True]
    libraries = {name for name in stamp["files"] if ".so" in name}
    assert libraries == {f"bin/{name}.so.13" for name in ("libcudart", "libcublas", "libcublasLt")}
    # Links to the toolkit's, which take no room of their own.
    (engine,) = box.engines()
    for name in libraries:
        assert (box.node.root / LAYOUT.engines[1:] / engine / name).stat().st_nlink > 1
    # No card computes, so the model does not answer, and what served is put back.
    assert "what served before serves again" in done.text
    box.serves()
    assert served(box.folder, (box, ON_CPU)).changed == []


def test_an_equal_node_takes_the_build_with_its_libraries_and_compiles_nothing(
    box: Box, lab: Lab, tmp_path: Path
) -> None:
    other = boot(lab, "cuda-b", tmp_path)
    (engine,) = box.engines()
    # Its runtime's stand-in is that of the first node: it has no toolkit to be compiled with.
    put_library(other.node, box.node.root / LIBRARIES / "libcards.so")
    (other.node.root / "etc/ld.so.preload").write_text(f"/{LIBRARIES}/libcards.so\n")
    served(tmp_path, (box, ON_CARD), (other, ON_CARD), check=False)
    (taken,) = other.engines()
    assert taken == engine

    def files(node: Node) -> str:
        return node.run(f"cd {LAYOUT.engines}/{engine} && sha256sum bin/*").stdout

    assert files(other.node) == files(box.node)
    assert other.engines()[engine]["devices"] == box.engines()[engine]["devices"]
    lacking = other.node.run("command -v cmake ninja g++-12; ls /opt/gpuwright/toolkits; true")
    assert lacking.stdout.split() == []
    other.node.destroy()
