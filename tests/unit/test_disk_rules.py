"""What an engine that is made on the node adds to what its disks must take."""

from gpuwright.plan import Plan
from tests.unit.decisions import GIB, decided, planned, refused

CARDS = {"model": "smollm2", "engine": "llama.cpp"}


def free(gib):
    """A change to a node: all that we write lies on one filesystem, with so much left."""

    def change(node):
        for disk in node["disks"].values():
            disk["mount"], disk["free_bytes"] = "/", int(gib * GIB)

    return change


def test_what_stands_beside_a_model_needs_room_too():
    wanted = {"model": "qwen3.6-27b", "checkpoint": "qwen3.6-27b-iq4_xs", "engine": "llama.cpp"}
    images = wanted | {"vision": True}
    projector = 0.94e9 / GIB
    least = next(tenth / 10 for tenth in range(1000) if fits(wanted, free(tenth / 10)))
    (reason,) = {each for each in refused("1x3090", images, free(least)).reasons if "disk" in each}
    assert "qwen3.6-27b-iq4_xs and qwen3.6-27b-mmproj and " in reason
    assert planned("1x3090", images, free(least + projector)).projector == "qwen3.6-27b-mmproj"


def fits(wanted, change):
    return isinstance(decided("1x3090", wanted, change), Plan)


def test_a_build_for_cards_needs_room_for_its_toolkit_packed_and_unpacked():
    wheels, unpacked = 530_616_886, 901_219_579

    def on_one(gib, **ours):
        def change(node):
            for disk in node["disks"].values():
                disk["mount"], disk["free_bytes"] = "/", int(gib * GIB)
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
