"""What an engine that is made on the node adds to what its disks must take."""

from tests.unit.decisions import GIB, planned, refused

CARDS = {"model": "smollm2", "engine": "llama.cpp"}


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
