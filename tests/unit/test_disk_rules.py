"""What an engine that is made on the node adds to what its disks must take."""

import pytest

from gpuwright.host import Host
from gpuwright.load import load_matrix
from gpuwright.plan import Plan
from gpuwright.selection import decide
from gpuwright.sketch import read_sketch
from gpuwright.want import Want
from tests.unit.decisions import GIB, decided, planned, refused

MATRIX = load_matrix()
CARDS = {"model": "smollm2", "engine": "llama.cpp"}


PACKAGES = ("/usr", "/var/cache/apt/archives")


def free(gib):
    """A change to a node: all that is written lies on one filesystem, with so much left."""

    def change(node):
        for path in (*node["disks"], *PACKAGES):
            node["disks"][path] = {"mount": "/", "free_bytes": int(gib * GIB)}

    return change


def test_what_stands_beside_a_model_needs_room_too():
    wanted = {"model": "qwen3.6-27b", "checkpoint": "qwen3.6-27b-iq4_xs", "engine": "llama.cpp"}
    images = wanted | {"vision": True}
    projector = 0.94e9 / GIB
    least = next(tenth / 10 for tenth in range(1000) if fits(wanted, free(tenth / 10)))
    reasons = [each for each in refused("1x3090", images, free(least)).reasons if "disk" in each]
    (reason,) = {each for each in reasons if "packages of a toolkit" not in each}
    assert "qwen3.6-27b-iq4_xs and qwen3.6-27b-mmproj and " in reason
    assert planned("1x3090", images, free(least + projector)).projector == "qwen3.6-27b-mmproj"


def fits(wanted, change):
    return isinstance(decided("1x3090", wanted, change), Plan)


def test_a_build_for_cards_needs_room_for_its_toolkit_packed_and_unpacked():
    wheels, unpacked = 530_616_886, 901_219_579

    def on_one(gib, **ours):
        def change(node):
            free(gib)(node)
            node["ours"] |= ours

        return change

    parts = "its source and toolkit and the unpacked toolkit and the build and the engine"
    assert any(parts in each for each in refused("1x3090", CARDS, on_one(3.6)).reasons)
    assert planned("1x3090", CARDS, on_one(4))
    toolkit = "/opt/gpuwright/toolkits/cuda-13.3.1-x86_64-b6d83150865f"
    stamp = {f"{toolkit}/gpuwright.json": {"key": "b6d83150865f"}}
    assert planned("1x3090", CARDS, on_one(3.9 - unpacked / GIB, stamps=stamp))
    assert refused("1x3090", CARDS, on_one(3.9 - (unpacked + wheels) / GIB, stamps=stamp))
    left = {f"{toolkit}.partial": unpacked}
    assert planned("1x3090", CARDS, on_one(3.9 - unpacked / GIB, partials=left))


SGLANG = {"model": "llama-3.1-8b", "engine": "sglang", "release": "0.5.10.post1"}
NVCC = {"executable": "/usr/bin/nvcc", "kind": "nvcc", "version": "12.4.131"}


@pytest.mark.parametrize("data", [SGLANG, CARDS])
def test_packages_of_a_toolkit_need_room_where_the_compiler_does_not_stand(data):
    fetched, installed = 1_889_000_000, 5_034_000_000

    def node(gib, **more):
        document, _ = read_sketch(
            {"gpus": ["RTX 3090"], "distro": "debian-13", "driver": "550.163"}, MATRIX
        )
        document["disks"] |= {
            path: {"mount": "/usr", "free_bytes": int(gib * GIB)} for path in PACKAGES
        }
        return decide(Host.from_document(document | more), Want.from_data(data), MATRIX)

    least = (fetched + installed) / GIB + 1
    assert isinstance(node(least + 0.1), Plan)
    reasons = [each for each in node(least - 0.1).reasons if each.startswith("disk /usr below")]
    assert any("packages of a toolkit and what they install" in each for each in reasons)
    assert isinstance(node(1.1, compilers=[NVCC]), Plan)
