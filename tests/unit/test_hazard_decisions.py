"""Hazards in whole decisions: what they refuse, change or warn about on sketched rigs."""

import pytest

from gpuwright.host import Host
from gpuwright.load import load_matrix
from gpuwright.plan import Plan
from gpuwright.refusals import Refusal
from gpuwright.selection import decide
from gpuwright.sketch import read_sketch
from gpuwright.want import Want

MATRIX = load_matrix()
TWO = {"gpus": ["RTX 3090", "RTX 3090"]}
ONE = {"gpus": ["RTX 3090"]}
QWEN = {"model": "qwen3.6-27b"}
LLAMA = {"model": "llama-3.1-8b"}
FP8 = QWEN | {"engine": "vllm", "checkpoint": "qwen3.6-27b-fp8"}


def decided(sketch, want):
    document, _ = read_sketch(sketch, MATRIX)
    return decide(Host.from_document(document), Want.from_data(want), MATRIX)


def planned(sketch, want):
    plan = decided(sketch, want)
    assert isinstance(plan, Plan), plan.reasons
    return plan


def warned(plan):
    return {warning.hazard: warning for warning in plan.warnings}


@pytest.mark.parametrize(
    ("sketch", "want", "because"),
    [
        (
            TWO,
            {"model": "gemma-4-26b", "engine": "sglang", "attention_backend": "flashinfer"},
            "neither flashinfer nor fa3",
        ),
        (
            TWO,
            QWEN
            | {"engine": "vllm", "checkpoint": "qwen3.6-27b-fp8", "kv_cache_dtype": "fp8_e5m2"},
            "raises on an fp8_e5m2 cache",
        ),
        (
            {"gpus": ["RTX PRO 6000"], "environment": "wsl2"},
            QWEN | {"engine": "vllm"},
            "16 GiB of these cards",
        ),
        (
            {"gpus": ["RTX 2080 Ti", "RTX 2080 Ti"]},
            {"model": "gemma-4-26b", "engine": "vllm"},
            "96 KiB of shared memory",
        ),
        (
            {"gpus": ["RTX 5090"]},
            QWEN
            | {
                "engine": "vllm",
                "checkpoint": "qwen3.6-27b-nvfp4",
                "kv_cache_dtype": "turboquant_4bit_nc",
            },
            "no needle at any depth",
        ),
    ],
    ids=["gemma-flashinfer", "e5m2", "wsl", "turing", "turboquant-recall"],
)
def test_a_hazard_refuses_what_it_describes(sketch, want, because):
    answer = decided(sketch, want)
    assert isinstance(answer, Refusal)
    assert any(because in reason for reason in answer.reasons), answer.reasons


@pytest.mark.parametrize(
    ("sketch", "want", "hazard", "parameters"),
    [
        (TWO, QWEN | {"engine": "vllm"}, "pcie-custom-all-reduce", {"custom_all_reduce": False}),
        (
            {"gpus": ["RTX 5090", "RTX 5090"]},
            QWEN | {"engine": "vllm"},
            "nccl-peer-access-on-geforce",
            {"nccl_peer_access": False},
        ),
        (
            TWO | {"environment": "kvm"},
            QWEN | {"engine": "vllm"},
            "nccl-peer-access-in-a-guest",
            {"nccl_peer_access": False},
        ),
        (
            TWO,
            QWEN | {"engine": "vllm", "speculative": "mtp"},
            "vllm-prefix-cache-with-mtp-on-hybrids",
            {"prefix_caching": False},
        ),
        (
            {"gpus": ["RTX 5090", "RTX 5090"]},
            FP8,
            "vllm-fp8-gemm-on-12.x",
            {"flashinfer_fp8_gemm": False},
        ),
        (
            TWO,
            QWEN | {"engine": "sglang"},
            "sglang-hybrid-graphs-on-small-cards",
            {"graph_batch_cap": 4},
        ),
        (
            TWO,
            FP8 | {"kv_cache_dtype": "fp8"},
            "vllm-fp8-weights-graph-hang-on-ampere",
            {"eager": True},
        ),
    ],
    ids=["all-reduce", "geforce", "guest", "prefix", "gemm", "graphs", "eager"],
)
def test_a_hazard_changes_a_default_and_says_so(sketch, want, hazard, parameters):
    plan = planned(sketch, want)
    assert warned(plan)[hazard].applied
    assert plan.parameters.items() >= parameters.items()


@pytest.mark.parametrize(
    ("sketch", "want", "hazard"),
    [
        (
            ONE,
            QWEN | {"engine": "llama.cpp", "kv_cache_dtype": "q4_0"},
            "llama.cpp-4bit-cache-recall",
        ),
        (
            ONE | {"driver": "535"},
            LLAMA | {"engine": "vllm"},
            "old-driver-under-cuda12",
        ),
        (ONE | {"environment": "wsl2"}, LLAMA, "wsl-hides-memory"),
        (ONE | {"environment": "lxc"}, LLAMA, "container-libraries-must-match"),
        ({"gpus": ["Tesla P40", "Tesla P40"]}, QWEN, "llama.cpp-on-cards-before-turing"),
        (
            {"gpus": ["H100"], "memory_gib": 32},
            {"model": "gpt-oss-120b"},
            "ram-smaller-than-the-checkpoint",
        ),
    ],
    ids=["4-bit", "driver", "wsl", "lxc", "pascal", "ram"],
)
def test_a_hazard_warns_where_there_is_nothing_to_change(sketch, want, hazard):
    assert not warned(planned(sketch, want))[hazard].applied


def test_a_pin_stays_and_the_hazard_says_that_it_was_not_followed():
    want = QWEN | {"engine": "vllm", "speculative": "mtp", "prefix_caching": True}
    plan = planned(TWO, want)
    assert plan.parameters["prefix_caching"] is True
    assert not warned(plan)["vllm-prefix-cache-with-mtp-on-hybrids"].applied


def test_long_drafts_are_shortened_unless_they_are_pinned():
    long = QWEN | {"engine": "vllm", "speculative": "mtp:5"}
    plan = planned(TWO, long)
    assert plan.speculation is not None
    assert plan.speculation.tokens == 5
    assert not warned(plan)["vllm-draft-faults-on-hybrids"].applied


def test_unified_memory_is_planned_within_its_share():
    plan = planned({"gpus": ["GB10"]}, {"model": "qwen3.6-35b-a3b", "engine": "vllm"})
    assert warned(plan)["unified-memory-share"].applied
    assert float(plan.parameters["gpu_memory_utilization"]) <= 0.82
    assert plan.max_num_seqs <= 8


def test_a_release_past_the_mend_is_not_held_to_it():
    want = {
        "model": "llama-3.1-8b",
        "engine": "vllm",
        "speculative": "ngram",
        "structured_output": "xgrammar",
    }
    assert isinstance(decided(ONE, want | {"release": "0.33.0"}), Plan)
    refused = decided(ONE, want | {"release": "0.19.1"})
    assert isinstance(refused, Refusal)
    assert any("the grammar misses tokens" in reason for reason in refused.reasons)


def test_a_context_that_is_known_to_hold_is_a_ceiling_and_a_longer_pin_is_warned_about():
    mtp = QWEN | {
        "engine": "llama.cpp",
        "checkpoint": "qwen3.6-27b-q4_k_m-mtp",
        "kv_cache_dtype": "q4_0",
        "max_num_seqs": 1,
        "speculative": "mtp",
    }
    free, pinned = planned(ONE, mtp), planned(ONE, mtp | {"max_model_len": 196608})
    assert (free.max_model_len, pinned.max_model_len) == (163840, 196608)
    assert warned(free)["llama.cpp-mtp-fills-up"].applied
    assert not warned(pinned)["llama.cpp-mtp-fills-up"].applied
    assert "163,840 tokens: as much as is known to hold" in free.reasons


def test_a_ceiling_that_a_plan_stays_below_by_itself_is_not_spoken_of():
    """The least of several ceilings is what changed the plan; a pin below it needed none."""
    mtp = QWEN | {
        "engine": "llama.cpp",
        "checkpoint": "qwen3.6-27b-q4_k_m-mtp",
        "max_num_seqs": 1,
        "speculative": "mtp",
    }
    ceilings = ("llama.cpp-mtp-fills-up", "llama.cpp-large-images")
    short = planned(ONE, mtp)
    assert short.max_model_len < 122880
    assert "llama.cpp-mtp-fills-up" not in warned(short)
    pinned = planned(ONE, mtp | {"max_model_len": 8192})
    assert "llama.cpp-mtp-fills-up" not in warned(pinned)
    looking = planned(ONE, mtp | {"kv_cache_dtype": "q4_0", "vision": True})
    held = {row for row in ceilings if row in warned(looking)}
    assert looking.max_model_len == 122880
    assert held == {"llama.cpp-large-images"}
    assert warned(looking)["llama.cpp-large-images"].applied


def test_fewer_requests_than_a_hazard_allows_are_no_reason_to_warn():
    want = {"model": "gpt-oss-120b", "engine": "vllm"}
    row = "vllm-gpt-oss-120b-on-one-card"
    assert row not in warned(planned({"gpus": ["A100 80GB"]}, want))
    many = planned({"gpus": ["A100 80GB"]}, want | {"workload": "throughput"})
    assert warned(many)[row].applied
    assert many.max_num_seqs <= 16
    pinned = planned({"gpus": ["A100 80GB"]}, want | {"max_num_seqs": 32})
    assert not warned(pinned)[row].applied
