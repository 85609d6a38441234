"""What LoRA adapters take: counted in vLLM's CPU build (tests/engines_cpu), monotone beyond it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwright.architecture import Architecture, LayerGroup, LayerKind
from gpuwright.load import load_matrix
from gpuwright.memory.lora import LoraRoom, unknown_shape
from tests.unit.decisions import planned, setting
from tests.unit.sketched import planned_on, refused_on

MATRIX = load_matrix()
KNOWN = [row.architecture for row in MATRIX.models if unknown_shape(row.architecture) is None]
# What vLLM's CPU build of 0.32.0 kept for two places of rank 16, of tiny models of these shapes.
FULL = Architecture(
    attention_heads=6,
    hidden_size=256,
    intermediate_size=128,
    vocabulary=64,
    groups=(LayerGroup(kind=LayerKind.FULL, layers=7, kv_heads=3, head_size=192),),
)
HYBRID = Architecture(
    attention_heads=4,
    hidden_size=256,
    vocabulary=64,
    moe_layers=6,
    experts=4,
    expert_size=64,
    shared_experts=1,
    shared_expert_size=64,
    groups=(
        LayerGroup(kind=LayerKind.FULL, layers=3, kv_heads=2, head_size=128),
        LayerGroup(kind=LayerKind.LINEAR, layers=3, key_heads=4, value_heads=16, head_size=128),
    ),
)
ENDS = 2 * (64 + 256) * 2 * 16 * 2
"""Of the embedding and the head, for which the second has no adapters."""


@pytest.mark.parametrize(
    ("architecture", "counted"), [(FULL, 2_564_096), (HYBRID, 4_752_000 + ENDS)]
)
def test_room_is_what_was_counted(architecture, counted):
    assert LoraRoom(places=2, rank=16).on_device(architecture, 1) == counted


@given(
    st.sampled_from(KNOWN),
    st.integers(1, 16),
    st.sampled_from([8, 16, 64]),
    st.sampled_from([1, 2, 4]),
    st.booleans(),
)
def test_room_grows_with_places_and_rank_and_shrinks_with_devices(
    architecture, places, rank, size, everywhere
):
    room = LoraRoom(places=places, rank=rank, everywhere=everywhere)
    taken = room.on_device(architecture, size)
    assert 0 < taken <= room.on_device(architecture, 1)
    # Half of each pair of matrices at least is on every device.
    assert taken * size >= room.on_device(architecture, 1)
    assert replace(room, places=places + 1).on_device(architecture, size) > taken
    assert replace(room, rank=2 * rank).on_device(architecture, size) == 2 * taken
    assert replace(room, everywhere=True).on_device(architecture, size) >= taken


def test_latent_attention_has_no_known_width():
    latent = LayerGroup(kind=LayerKind.MLA, layers=2, latent_size=512, rope_size=64)
    assert "mla attention" in unknown_shape(replace(FULL, groups=(latent,))).sentence()
    assert "no dense width" in unknown_shape(replace(FULL, intermediate_size=0)).sentence()
    assert unknown_shape(FULL) is None


LLAMA = {"model": "llama-3.1-8b"}
ADAPTERS = {f"a{count}": f"/srv/lora/{count}" for count in range(8)}


@pytest.mark.parametrize(("engine", "places"), [("vllm", 8), ("sglang", 9)])
def test_adapters_take_context_from_the_cache(engine, places):
    wanted = LLAMA | {"engine": engine, "kv_cache_dtype": "bf16"}
    without = planned_on(["RTX 3090"], wanted)
    plan = planned_on(["RTX 3090"], wanted | {"lora": ADAPTERS, "max_lora_rank": 64})
    architecture = next(row for row in MATRIX.models if row.id == plan.model).architecture
    room = LoraRoom(places=places, rank=64, everywhere=engine == "sglang")
    assert plan.memory.bytes_of("LoRA adapters") == room.on_device(architecture, 1)
    assert plan.figures["kv_cache_tokens"] < without.figures["kv_cache_tokens"]


def test_adapters_that_leave_no_room_are_refused_with_the_card():
    wanted = LLAMA | {"engine": "vllm", "lora": ADAPTERS, "max_lora_rank": 512}
    refusal = refused_on(["RTX 3090"], wanted)
    assert any(line.startswith("GPU 0 (NVIDIA GeForce RTX 3090)") for line in refusal.reasons)


def test_llama_cpp_loads_adapters_as_they_are():
    entry = {"type": "file", "bytes": 3 << 30, "resolved": "/srv/a.gguf", "barred": None}
    adapter = {"format": "gguf", "rank": None, "base": None, "beyond": []}
    wanted = LLAMA | {"engine": "llama.cpp", "lora": {"a": "/srv/a.gguf"}}
    looked = setting("named", to={"/srv/a.gguf": entry | {"adapter": adapter}})
    with_it = planned("1x3090", wanted, looked).memory.bytes_of("weights")
    without = planned("1x3090", {k: v for k, v in wanted.items() if k != "lora"})
    assert with_it - without.memory.bytes_of("weights") == 3 << 30


def test_an_adapter_is_not_called_as_the_model_is():
    wanted = {"lora": {"Llama-3.1-8B-Instruct": "/srv/a"}, "engine": "vllm"}
    refusal = refused_on(["RTX 3090"], LLAMA | wanted)
    assert any("needs a name of its own" in line for line in refusal.reasons)
