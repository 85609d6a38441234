"""Pins, routing and what must hold for any decision."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpuwright.host import Host
from gpuwright.launch import launch
from gpuwright.layout import Layout
from gpuwright.load import load_matrix
from gpuwright.plan import Plan
from gpuwright.refusals import HostError, Refusal, WantError
from gpuwright.selection import decide
from gpuwright.sketch import read_sketch
from gpuwright.want import Want
from tests.unit.decisions import GIB, decided, planned, refused, setting, warnings_of
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
    assert any("[llama.cpp-4bit-cache-recall]" in line for line in warnings_of(plan))


def test_a_pinned_context_that_does_not_fit_is_refused_with_the_one_that_would():
    pins = {"checkpoint": "qwen3.6-27b-int4-autoround", "engine": "vllm"}
    refusal = refused("1x3090", pins | {"max_model_len": 262144})
    assert refusal.remedies == ("max_model_len of at most 95,488 tokens",)
    assert planned("1x3090", pins | {"max_model_len": 95488}).max_model_len == 95488
    refused("1x3090", pins | {"max_model_len": 95488 + 512})


def test_a_context_beyond_the_models_own_is_refused():
    refusal = refused("cpu-debian12", {"model": "smollm2", "max_model_len": 16384})
    assert "max_model_len: needs at most 8,192, found 16,384" in refusal.reasons


@pytest.mark.parametrize("tokens", [256, 257, 1000, 4095, 8191])
@pytest.mark.parametrize(
    ("rig", "model", "engine"),
    [
        ("cpu-debian12", "smollm2", "llama.cpp"),
        ("2x3090-nvlink", "qwen3.6-27b", "llama.cpp"),
        ("2x3090-nvlink", "qwen3.6-27b", "vllm"),
        ("2x3090-nvlink", "qwen3.6-27b", "sglang"),
    ],
)
def test_a_pinned_context_is_planned_to_the_token(rig, model, engine, tokens):
    plan = planned(rig, {"model": model, "engine": engine, "max_model_len": tokens})
    assert plan.max_model_len == tokens
    assert f"{tokens:,} tokens: pinned" in plan.reasons


@pytest.mark.parametrize("engine", ["llama.cpp", "vllm", "sglang"])
def test_a_pinned_number_of_requests_is_planned_exactly(engine):
    pins = {"model": "qwen3.6-27b", "engine": engine, "max_num_seqs": 7, "max_model_len": 2048}
    assert planned("2x3090-nvlink", pins).max_num_seqs == 7


def test_more_requests_than_llama_cpp_has_sequences_are_refused():
    pins = {"model": "smollm2", "max_num_seqs": 257, "max_model_len": 512}
    reasons = refused("cpu-debian12", pins).reasons
    assert any("max_num_seqs: needs at most 256, found 257" in reason for reason in reasons)
    assert planned("cpu-debian12", pins | {"max_num_seqs": 256}).max_num_seqs == 256


def test_more_requests_than_one_step_of_vllm_holds_are_refused_with_how_many_it_does():
    pins = {"engine": "vllm", "model": "gemma-4-26b", "max_num_seqs": 2049}
    refusal = refused("1x3090", pins)
    reason = "max_num_seqs: needs at most 2,048, the tokens of one step for chat, found 2,049"
    assert reason in refusal.reasons


def test_a_pinned_engine_that_does_not_load_the_model_is_refused():
    refusal = refused("1x3090", {"model": "smollm2", "engine": "vllm"})
    assert refusal.reasons[0] == (
        "smollm2-135m-instruct: needs a checkpoint that vllm is known to load, found those of "
        "ik_llama.cpp, llama.cpp (gguf, not safetensors)"
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
    assert any("[vllm-hybrid-on-one-small-card]" in line for line in warnings_of(pinned))
    assert planned("1x3090", {"model": "gemma-4-26b"}).engine == "vllm"


def test_sglang_is_not_taken_for_hybrids_on_ampere_unless_it_is_pinned():
    assert planned("2x3090-nvlink", {"model": "qwen3.6-27b", "workload": "chat"}).engine == "vllm"
    pinned = planned("2x3090-nvlink", {"model": "qwen3.6-27b", "engine": "sglang"})
    assert any("[sglang-hybrids-on-ampere]" in line for line in warnings_of(pinned))


# Refusals


def test_who_asks_for_any_model_on_a_node_without_a_card_hears_of_the_smallest_alone():
    refusal = refused("cpu-debian12", {}, setting("memory", "total_bytes", to=GIB))
    assert refusal.sentence() == (
        "no model of the catalogue fits this node: RAM: weights, buffers and 1 x 2,048 tokens "
        "needs 0.42 GiB, 0.00 GiB can be had; device: needs an NVIDIA GPU, found none"
    )
    assert len([line for line in refusal.why_not if "RAM" in line.reason]) > 1


@settings(deadline=None)
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


@pytest.mark.parametrize("size", [0, 1, 2**20, 2**31])
@pytest.mark.parametrize("want", ["auto", "smollm2", "qwen3.6-27b"])
def test_little_memory_is_a_refusal_and_no_traceback(size, want):
    for rig, path in (("cpu-debian12", ("memory",)), ("1x3090", ("gpus", "devices", 0))):
        key = "total_bytes" if path == ("memory",) else "memory_total_bytes"
        refused_or_planned = decided(rig, WANTS[want], setting(*path, key, to=size))
        assert isinstance(refused_or_planned, Plan) or refused_or_planned.reasons


# What moves by itself


def served(rig, want, total_bytes):
    """What the node would serve and how it would start, without the figures of the plan."""
    decision = decided(rig, want, setting("memory", "total_bytes", to=total_bytes))
    if isinstance(decision, Refusal):
        return None
    start = launch(decision, Layout(), "/models/m", "/opt/engine")
    return (decision.checkpoint, decision.kv_cache_dtype, start)


AT_A_STEP = {("cpu-debian12", "qwen3.6-35b-a3b"), ("cpu-debian12", "qwen3.6-27b")}
"""Where a longer context or a larger file just fits: both are steps, so somewhere each begins."""


@settings(deadline=None, max_examples=25)
@given(
    st.sampled_from(["cpu-debian12", "1x3090"]),
    st.sampled_from(list(WANTS)),
    st.integers(min_value=-64 * 2**20, max_value=64 * 2**20),
)
def test_a_few_mib_of_ram_more_or_less_change_nothing(rig, want, moved):
    assume((rig, want) not in AT_A_STEP)
    total = document(rig)["memory"]["total_bytes"]
    assert served(rig, WANTS[want], total + moved) == served(rig, WANTS[want], total)


def test_the_small_models_plan_changes_at_few_sizes_of_ram_which_machines_do_not_have():
    sizes = range(4 * GIB, 34 * GIB, GIB // 2)
    plans = [(size, served("cpu-debian12", {"model": "smollm2"}, size)) for size in sizes]
    changes = [size // GIB for (_, one), (size, other) in pairwise(plans) if one != other]
    assert changes == [6, 10, 14, 18, 22, 26, 30]


@pytest.mark.parametrize("nominal", [4, 8, 16, 24, 32, 48, 64, 96, 128, 256])
@pytest.mark.parametrize("kept_percent", [2, 3])
def test_ram_as_machines_have_it_is_at_no_boundary_of_the_small_model(nominal, kept_percent):
    total = nominal * GIB * (100 - kept_percent) // 100
    around = {
        repr(served("cpu-debian12", {"model": "smollm2"}, total + moved * 2**20))
        for moved in (-64, -32, 0, 32, 64)
    }
    assert len(around) == 1


def test_the_same_question_has_the_same_answer():
    for data in ({}, {"model": "gemma-4-26b"}):
        assert decided("3090-and-4090", data) == decided("3090-and-4090", data)


def test_a_release_that_cannot_be_applied_does_not_stand_before_one_that_can():
    pins = {"model": "smollm2", "engine": "ik_llama.cpp"}
    newest, older = (row for row in load_matrix().releases if row.engine == "ik_llama.cpp")
    assert not any(tag.applicable for tag in newest.build_tags)
    tags = tuple(
        replace(tag, applicable=True, not_applicable=None) if tag.tag == "cuda13" else tag
        for tag in older.build_tags
    )
    matrix = load_matrix()
    changed = replace(
        matrix,
        releases=tuple(
            replace(row, build_tags=tags) if row is older else row for row in matrix.releases
        ),
    )
    want = Want.from_data(pins)
    document, _ = read_sketch({"gpus": ["RTX 3090"]}, matrix, want.layout)
    node = Host.from_document(document)
    assert decide(node, want, matrix).release == newest.release
    assert decide(node, want, changed).release == older.release


def test_a_cache_that_was_measured_is_taken_by_a_release_that_has_it_alone():
    matrix = load_matrix()
    old, new = (matrix.engine_release("vllm", each) for each in ("0.19.1", "0.33.0"))
    taken_over = replace(
        new,
        kv_cache_dtypes=old.kv_cache_dtypes,
        auto_kv_cache_dtypes=old.auto_kv_cache_dtypes,
        auto_order=old.auto_order,
    )
    releases = tuple(taken_over if row is new else row for row in matrix.releases)
    host = Host.from_document(document("4x-pro-6000"))
    plan = decide(host, Want.from_data({}), replace(matrix, releases=releases))
    assert plan.engine != "vllm" or plan.kv_cache_dtype in old.kv_cache_dtypes
