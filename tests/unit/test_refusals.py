"""What a refusal says of each candidate, and that what it offers leads to a plan."""

import pytest

from gpuwright.host import Host
from gpuwright.load import load_matrix
from gpuwright.plan import Plan
from gpuwright.refusals import Refusal
from gpuwright.selection import decide
from gpuwright.want import Want
from tests.unit.decisions import GIB, decided, planned, refused
from tests.unit.sketched import decided_on, refused_on
from tools.golden import WANTS, document, rigs

MATRIX = load_matrix()


@pytest.mark.parametrize("rig", rigs())
def test_every_reason_against_a_candidate_has_a_row_and_what_was_needed_and_found(rig):
    host = Host.from_document(document(rig))
    for data in WANTS.values():
        for each in decide(host, Want.from_data(data), MATRIX).why_not:
            if each.reason.startswith(("fits", "not looked at")):
                continue
            assert None not in (each.needed, each.found, each.row), each


def test_a_hazard_says_what_meets_it_and_what_to_take_instead():
    wanted = {"model": "gemma-4-26b", "checkpoint": "gemma-4-26b-a4b-int4-autoround"}
    refusal = refused("1x3090", wanted)
    found = [each for each in refusal.why_not if (each.row or "").startswith("hazards ")]
    assert found
    rows = {f"hazards {row.id}": row for row in MATRIX.hazards}
    for each in found:
        assert each.needed == rows[each.row].instead
        assert "experts misfit yes" in each.found


def test_memory_that_is_short_names_the_figures_that_it_was_reckoned_with():
    refusal = refused("1x3060", {"model": "gemma-4-31b", "engine": "vllm"})
    rows = {each.row for each in refusal.why_not if "can be had" in each.reason}
    assert "memory_terms vllm-0.26" in rows
    assert rows <= {f"memory_terms {row.id}" for row in MATRIX.memory_terms}


# What is offered


@pytest.mark.parametrize("rig", rigs())
@pytest.mark.parametrize("model", ["qwen3.6-27b", "llama-3.1-8b-instruct", "gpt-oss-120b"])
def test_the_cpu_is_offered_only_where_it_serves(rig, model):
    decision = decided(rig, {"model": model})
    if isinstance(decision, Refusal) and any("gpus: none" in each for each in decision.remedies):
        assert isinstance(decided(rig, {"model": model, "gpus": "none"}), Plan)


def test_the_cpu_is_not_offered_for_weights_that_it_does_not_load():
    wanted = {"model": "llama-3.1-8b-instruct", "checkpoint": "llama-3.1-8b-instruct-bf16"}
    refusal = refused_on(["GTX 1080 Ti"], wanted, driver="580")
    assert any(each.row == "llama.cpp-b11434" for each in refusal.why_not)
    assert not any("gpus: none" in each for each in refusal.remedies)


def test_the_context_that_is_offered_is_the_longest_that_has_a_plan():
    wanted = {"model": "qwen3.6-27b", "engine": "vllm", "max_model_len": 262144}
    refusal = refused("1x3090", wanted)
    (offer,) = [each for each in refusal.remedies if each.startswith("max_model_len")]
    tokens = int("".join(filter(str.isdigit, offer)))
    assert planned("1x3090", wanted | {"max_model_len": tokens}).max_model_len == tokens


def test_a_driver_is_offered_only_where_it_would_do():
    refusal = refused_on(["Tesla P40"], {"model": "qwen3.6-27b", "engine": "vllm"}, driver="470")
    assert not any("driver" in each for each in refusal.remedies)
    refusal = refused_on(["RTX 5090"], {"model": "qwen3.6-27b"}, driver="550.163.01")
    assert "a driver >= 570" in refusal.remedies or "driver >= 580" in refusal.remedies


def test_what_no_newest_release_serves_is_asked_of_the_older_ones():
    refusal = refused("1x3060", {"model": "gemma-4-31b", "engine": "vllm"})
    assert not any("is newer" in each.reason for each in refusal.why_not)
    releases = {each.candidate.split(",")[0] for each in refusal.why_not}
    assert {"vllm 0.33.0 cu130", "vllm 0.19.1 cu128"} <= releases


def test_a_full_card_says_how_much_others_hold():
    refusal = decided_on(["RTX 3090"], {"model": "qwen3.6-27b"}, free_memory_gib=2, memory_gib=32)
    assert isinstance(refusal, Refusal)
    assert any("that others hold" in each for each in refusal.remedies)


def test_a_disk_that_is_too_small_says_what_is_needed_and_free():
    def little(node):
        for disk in node["disks"].values():
            disk["free_bytes"] = 3 * GIB

    refusal = refused("1x3090", {"model": "qwen3.6-27b"}, little)
    short = [each for each in refusal.why_not if each.reason.startswith("disk ")]
    assert short
    assert all(each.found == "3.00 GiB" and each.row for each in short)


def test_a_pinned_cache_that_a_release_has_not_is_said_before_anything_about_weights():
    wanted = {"model": "qwen3.8-27b", "engine": "exllamav3", "kv_cache_dtype": "fp8"}
    refusal = refused("1x3090", wanted | {"checkpoint": "qwen3.8-27b-exl3"})
    assert refusal.reasons == (
        "cache of exllamav3 1.6.5: needs f16 or q8_0 or q4_0, found fp8_e4m3",
    )


@pytest.mark.parametrize("card", ["RTX 4090", "L4", "RTX 6000 Ada", "H100"])
def test_llama_is_served_in_fp8_where_the_card_computes_it(card):
    plan = decided_on([card], {"model": "llama-3.1-8b-instruct"})
    assert (plan.quantization, plan.engine) == ("fp8", "sglang")
