"""Pins, routing and what must hold for any decision."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwright.host import Host
from gpuwright.load import load_matrix
from gpuwright.plan import Plan
from gpuwright.refusals import HostError, WantError
from gpuwright.selection import decide
from gpuwright.want import Want
from tests.unit.decisions import decided, planned, refused
from tests.unit.test_host import PATHS, WRONG, put
from tools.golden import WANTS, document, rigs

# Pins


def test_an_unknown_model_names_the_nearest():
    with pytest.raises(WantError, match=r"model: 'qwen3\.6-28b' is unknown; nearest: qwen3\.6-27b"):
        decided("1x3090", {"model": "qwen3.6-28b"})


def test_every_unknown_name_is_reported_at_once():
    with pytest.raises(WantError) as caught:
        decided("1x3090", {"engine": "vlm", "kv_cache_dtype": "fp7", "workload": "chatt"})
    assert [fault.split(":")[0] for fault in caught.value.faults] == [
        "engine",
        "kv_cache_dtype",
        "workload",
    ]


@pytest.mark.parametrize("name", ["gemma-4-26B-A4B-it", "google/gemma-4-26B-A4B-it", "GEMMA-4-26B"])
def test_models_answer_to_their_aliases_in_any_case(name):
    assert planned("1x3090", {"model": name}).model == "gemma-4-26b-a4b"


def test_pins_are_honoured():
    plan = planned(
        "1x3090",
        {
            "model": "qwen3.6-27b",
            "engine": "llama.cpp",
            "checkpoint": "qwen3.6-27b-iq4_xs",
            "kv_cache_dtype": "q4_0",
            "max_model_len": 131072,
            "max_num_seqs": 1,
            "served_model_name": "mine",
        },
    )
    assert plan.checkpoint == "qwen3.6-27b-iq4_xs"
    assert plan.kv_cache_dtype == "q4_0"
    assert (plan.max_model_len, plan.max_num_seqs) == (131072, 1)
    assert plan.served_model_name == "mine"
    assert any("[llama.cpp-4bit-cache-recall]" in line for line in plan.warnings)


def test_a_pinned_context_that_does_not_fit_is_refused_with_the_one_that_would():
    refusal = refused("1x3090", {"model": "qwen3.6-27b", "engine": "vllm", "max_model_len": 262144})
    assert refusal.remedies == ("max_model_len of at most 64,256 tokens",)


def test_a_context_beyond_the_models_own_is_refused():
    refusal = refused("cpu-debian12", {"model": "smollm2", "max_model_len": 16384})
    assert "max_model_len: needs at most 8,192, found 16,384" in refusal.reasons


def test_a_pinned_engine_that_does_not_load_the_model_is_refused():
    refusal = refused("1x3090", {"model": "smollm2", "engine": "vllm"})
    assert (
        "smollm2-135m-instruct: needs a checkpoint that vllm loads (safetensors), found gguf"
        in refusal.reasons
    )


def test_a_pinned_old_release_is_taken_although_a_newer_one_runs():
    plan = planned("1x3090", {"model": "qwen3.6-27b", "engine": "vllm", "release": "0.19.1"})
    assert plan.release == "0.19.1"


def test_a_cache_dtype_of_another_engine_is_refused():
    refusal = refused("1x3090", {"engine": "vllm", "kv_cache_dtype": "q8_0"})
    assert any(reason.startswith("cache of vllm 0.33.0: needs ") for reason in refusal.reasons)


def test_tensor_parallel_size_and_pinned_cards_must_agree():
    with pytest.raises(WantError, match="2 over 1 pinned cards"):
        decided("2x3090-nvlink", {"gpus": [0], "tensor_parallel_size": 2})


# Routing


def test_low_memory_work_goes_to_llama_cpp():
    plan = planned("1x3090", {"model": "qwen3.6-27b", "workload": "compression"})
    assert plan.engine == "llama.cpp"


def test_a_hybrid_on_one_24_gb_card_goes_to_llama_cpp():
    plan = planned("1x3090", {"model": "qwen3.6-27b"})
    assert plan.engine == "llama.cpp"
    assert plan.max_model_len >= 32768
    pinned = planned("1x3090", {"model": "qwen3.6-27b", "engine": "vllm"})
    assert any("[vllm-hybrid-on-one-small-card]" in line for line in pinned.warnings)
    assert planned("1x3090", {"model": "gemma-4-26b"}).engine == "vllm"


def test_sglang_is_not_taken_for_hybrids_on_ampere_unless_it_is_pinned():
    assert planned("2x3090-nvlink", {"model": "qwen3.6-27b", "workload": "chat"}).engine == "vllm"
    pinned = planned("2x3090-nvlink", {"model": "qwen3.6-27b", "engine": "sglang"})
    assert any("[sglang-hybrids-on-ampere]" in line for line in pinned.warnings)


@given(st.sampled_from(rigs()), st.sampled_from(PATHS), WRONG, st.sampled_from(list(WANTS)))
def test_any_host_has_a_plan_or_a_refusal(rig, path, value, want):
    if path[:2] == ("gpus", "devices") and not document(rig)["gpus"]["devices"]:
        return
    try:
        host = Host.from_document(put(document(rig), path, value))
    except HostError:
        return
    decision = decide(host, Want.from_data(WANTS[want]), load_matrix())
    if isinstance(decision, Plan):
        assert decision.memory.margin_bytes >= 0
    else:
        assert decision.reasons


def test_the_same_question_has_the_same_answer():
    for data in ({}, {"model": "gemma-4-26b"}):
        assert decided("3090-and-4090", data) == decided("3090-and-4090", data)
