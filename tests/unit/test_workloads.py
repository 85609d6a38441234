"""What a service is for decides what comes first among plans that fit."""

import re

import pytest

from gpuwright.catalogue import find
from gpuwright.feature_rows import FeatureKind
from gpuwright.load import load_matrix
from gpuwright.pace import DRAFTED
from gpuwright.ranking import LEAST_MERIT
from gpuwright.refusals import Refusal
from tests.unit.decisions import planned, why_not
from tests.unit.sketched import decided_on, planned_on

MATRIX = load_matrix()
WORDS = (
    "chat",
    "agents",
    "rag",
    "structured",
    "single-user-latency",
    "long-context",
    "throughput",
    "max-compression",
)


def test_the_eight_workloads_are_there_in_the_pages_order():
    assert tuple(row.id for row in MATRIX.workloads) == WORDS


@pytest.mark.parametrize(
    ("alias", "workload"),
    [("compression", "max-compression"), ("low-vram", "max-compression"), ("JSON", "structured")],
)
def test_people_call_workloads_otherwise_too(alias, workload):
    found = find(MATRIX.workloads, alias)
    assert found is not None
    assert found.id == workload


def test_one_person_who_waits_gets_a_draft_and_those_who_share_prompts_keep_their_cache():
    for engine in ("vllm", "llama.cpp"):
        want = {"model": "qwen3.6-27b", "engine": engine}
        waiting = planned("2x3090-nvlink", want | {"workload": "single-user-latency"})
        assert waiting.speculation is not None, engine
        assert waiting.speculation.method == "mtp"
        assert planned("2x3090-nvlink", want | {"workload": "agents"}).speculation is None
    drafting = planned(
        "2x3090-nvlink",
        {"model": "qwen3.6-27b", "engine": "vllm", "workload": "single-user-latency"},
    )
    assert drafting.parameters["prefix_caching"] is False
    assert drafting.max_num_seqs == 1


def test_throughput_takes_more_requests_before_finer_weights_of_the_same_format():
    plan = planned("2x3090-nvlink", {"model": "qwen3.6-27b", "workload": "throughput"})
    assert plan.quantization == "int4"
    lost = why_not(plan, "vllm 0.33.0 cu130, qwen3.6-27b-fp8, GPU 0+1")
    less = "it has less of what the workload prefers: "
    assert lost.endswith(less + "weights in the format to take on the card")
    same = why_not(plan, "vllm 0.33.0 cu130, qwen3.6-27b-int4-autoround, GPU 0+1")
    held = re.search(rf"{less}requests at once: (\d+), not (\d+)$", same)
    assert held is not None, same
    assert int(held[1]) < int(held[2])


def test_an_engine_that_is_not_the_first_of_its_route_says_which_would_be():
    want = {"model": "gpt-oss-20b"}
    second = planned_on(["RTX 4090"], want)
    assert second.engine == "vllm"
    assert any(
        each.startswith("vllm for chat: sglang would come first (SGLang is reasonable on Ada")
        for each in second.reasons
    )
    first = planned_on(["RTX 3090"], want)
    assert any(each.startswith("vllm for chat: on Ampere") for each in first.reasons)


def test_a_hazard_that_ranks_a_plan_behind_is_named():
    plan = planned("1x3090", {"model": "qwen3.6-27b", "max_model_len": 8192})
    lost = [each.reason for each in plan.why_not if "is better avoided" in each.reason]
    rows = {row.id for row in MATRIX.hazards}
    assert lost
    assert all(set(each.rpartition(": ")[2].split(", ")) <= rows for each in lost)


def test_compression_takes_one_card_where_it_holds_the_context():
    want = {"model": "qwen3.6-35b-a3b"}
    assert len(planned("2x3090-nvlink", want | {"workload": "max-compression"}).gpus) == 1
    assert len(planned("2x3090-nvlink", want).gpus) == 2


@pytest.mark.parametrize("card", ["H100 80GB", "RTX 3090"])
def test_a_small_model_leaves_the_other_cards_of_a_large_box_free(card):
    small = planned_on([card] * 8, {"model": "qwen3-0.6b"})
    assert len(small.gpus) == 1
    # More cards are taken for a longer context, and no more than it asks for.
    long, short = (
        planned_on([card] * 8, {"model": "llama-3.1-8b", "max_model_len": tokens})
        for tokens in (131072, 8192)
    )
    assert 8 > len(long.gpus) >= len(short.gpus) == 1


def test_the_longest_context_comes_before_finer_weights():
    want = {"model": "qwen3.6-27b", "engine": "llama.cpp"}
    long = planned("1x3090", want | {"workload": "long-context"})
    chat = planned("1x3090", want)
    assert long.max_model_len > chat.max_model_len
    assert long.max_num_seqs == 1


def test_before_ampere_llama_cpp_comes_first():
    plan = planned("2x2080-ti", {"model": "qwen3.6-27b"})
    assert plan.engine == "llama.cpp"


def test_a_workload_names_ways_to_draft_and_nothing_else():
    drafts = {row.id for row in MATRIX.features if row.kind is FeatureKind.SPECULATION}
    assert drafts >= {name for row in MATRIX.workloads for name in row.speculation}
    assert any(row.speculation for row in MATRIX.workloads)


# What a workload asks for, whatever the model


def test_a_dense_model_that_bandwidth_makes_slow_comes_after_one_of_few_active_weights():
    for workload in ("chat", "single-user-latency", "agents"):
        plan = planned_on(["GB10"], {"workload": workload})
        model, _ = MATRIX.checkpoint(plan.checkpoint)
        assert model.architecture.active_parameters_millions, workload
        assert any("it allows the 20" in reason for reason in plan.reasons)
    slow = [each.reason for each in plan.why_not if "too many bytes" in each.reason]
    assert slow


def test_without_a_card_weights_are_as_coarse_as_it_takes_to_read_them_from_ram_in_time():
    dense = {"model": "qwen3.6-27b"}
    chat = planned_on("none", dense)
    assert any("of the least slow, the finest" in reason for reason in chat.reasons)
    assert any(each.startswith("RAM: read at 76 GB/s") for each in chat.assumed)
    patient = planned_on("none", dense | {"workload": "long-context"})
    sizes = [MATRIX.checkpoint(each.checkpoint)[1].max_bytes or 0 for each in (chat, patient)]
    assert sizes[0] < sizes[1]
    assert not any(each.startswith("RAM: ") for each in patient.assumed)


def paces(plan):
    return [each for each in plan.reasons if "tokens a second for one request" in each]


def test_the_pace_with_a_draft_is_the_one_that_is_compared():
    want = {"model": "qwen3.6-27b", "engine": "llama.cpp", "checkpoint": "qwen3.6-27b-q4_k_m-mtp"}
    plain = planned_on(["RTX 3090"], want | {"speculative": "off"})
    drafting = planned_on(["RTX 3090"], want | {"speculative": "mtp:3"})
    looking = planned_on(["RTX 3090"], want | {"speculative": "ngram:3"})
    end = "by the bandwidth of the card{}: it allows the 20 that chat asks for"
    start = "at most 54 tokens a second for one request"
    assert paces(plain) == [f"{start}, {end.format('')}"]
    assert paces(drafting) == [
        f"{start} without drafts, {end.format(f', taken for {54 * DRAFTED} with them')}"
    ]
    assert paces(looking) == [f"{start} without drafts, {end.format('')}"]


def test_a_cpu_is_promised_no_pace():
    assert paces(planned_on("none", {"model": "smollm2"})) == []
    slow = paces(planned_on("none", {"model": "qwen3.6-27b"}))
    assert len(slow) == 1
    assert slow[0].endswith("by the RAM: below the 20 that chat asks for")


def test_a_pace_that_the_smallest_published_size_allows_counts_as_reached():
    plan = planned_on(["RTX 3060 12 GB"] * 2, {"model": "qwen3.6-27b"})
    _, checkpoint = MATRIX.checkpoint(plan.checkpoint)
    assert checkpoint.min_bytes is not None
    assert checkpoint.max_bytes is not None
    # 360 GB/s read the one size more than 20 times a second, the other not.
    assert 20 * checkpoint.min_bytes < 360 * 10**9 < 20 * checkpoint.max_bytes


def test_a_card_with_bandwidth_takes_the_better_model_dense_as_it_is():
    plan = planned_on(["RTX PRO 6000 Blackwell Workstation Edition"], {"workload": "chat"})
    assert plan.model == max(MATRIX.models, key=lambda row: (row.merit < 95) * row.merit).id


def test_where_speed_is_set_aside_a_slow_model_is_taken():
    assert planned_on(["GB10"], {"workload": "max-compression"}).model == "qwen3.8-27b"


def test_who_waits_alone_gets_the_format_that_reads_least_even_where_finer_weights_have_room():
    plan = planned_on(["A100 80GB"], {"model": "llama-3.1-8b", "workload": "single-user-latency"})
    assert plan.quantization == "int4"
    assert planned_on(["A100 80GB"], {"model": "llama-3.1-8b"}).quantization == "bf16"


def test_who_waits_alone_gets_the_finest_weights_that_write_at_the_wished_pace():
    want = {"model": "qwen3.6-27b", "engine": "llama.cpp"}
    workload = find(MATRIX.workloads, "single-user-latency")
    model = find(MATRIX.models, "qwen3.6-27b")
    assert workload is not None
    assert model is not None
    wished = workload.wished_tokens_per_second
    alone = planned_on(["RTX 3090"] * 2, want | {"workload": "single-user-latency"})
    shared = planned_on(["RTX 3090"] * 2, want)
    sizes = {row.id: row.min_bytes or 0 for row in model.weights}
    # 936 GB/s, one card after the other.
    paces = {name: 936 * 10**9 // size for name, size in sizes.items() if size}
    assert paces[alone.checkpoint] * 2 >= wished > paces[shared.checkpoint] * 2
    assert alone.speculation is not None
    assert alone.speculation.method == "mtp"
    # Finer, and with no layers that draft for it.
    undrafted = "qwen3.6-27b-q5_k_s"
    assert wished > paces[undrafted] > paces[shared.checkpoint]
    lost = why_not(alone, f"llama.cpp b11434 cuda13, {undrafted}, GPU 0+1")
    assert lost.endswith("it has less of what the workload prefers: 60 tokens a second")
    # Where no weights write so fast, none are coarser for it.
    slow = planned_on(["Tesla P40"] * 2, want | {"workload": "single-user-latency"})
    patient = planned_on(["Tesla P40"] * 2, want)
    assert slow.quantization == patient.quantization


def test_throughput_takes_a_model_that_leaves_room_for_a_batch():
    plan = planned_on(["RTX 3090"], {"workload": "throughput"})
    least = next(row for row in MATRIX.workloads if row.id == "throughput").least_num_seqs
    assert plan.max_num_seqs >= least
    assert any("fewer requests at once" in each.reason for each in plan.why_not)


@pytest.mark.parametrize("card", ["RTX 4060", "RTX 3060", "RTX 4060 Ti 16 GB"])
@pytest.mark.parametrize("workload", WORDS)
def test_a_small_card_is_not_given_a_toy_where_more_fits(card, workload):
    plan = planned_on([card], {"workload": workload})
    model, _ = MATRIX.checkpoint(plan.checkpoint)
    assert model.merit >= LEAST_MERIT


def test_agents_are_given_a_parser_of_tool_calls():
    for card in ("RTX 3090", "RTX 5090", "H100", "GB10", "RTX 4060"):
        assert "tool-calls" in planned_on([card], {"workload": "agents"}).features


def test_a_batch_is_made_room_for_by_the_cache_before_the_model_is_given_up():
    plan = planned_on(["RTX 3060"], {"workload": "throughput"})
    assert (plan.model, plan.kv_cache_dtype) == ("llama-3.1-8b-instruct", "fp8_e4m3")
    assert plan.max_num_seqs == 64


@pytest.mark.parametrize("workload", ["chat", "long-context"])
@pytest.mark.parametrize("model", [row.id for row in MATRIX.models])
def test_of_ram_that_is_the_card_s_memory_nothing_is_taken_twice(model, workload):
    plan = decided_on(["GB10"], {"model": model, "workload": workload, "engine": "llama.cpp"})
    if isinstance(plan, Refusal):
        assert "GPU 0 (NVIDIA GB10)" in plan.sentence() or "a checkpoint" in plan.sentence()
        return
    assert plan.ram_bytes == 0
    assert "cpu_expert_layers" not in plan.parameters
    assert plan.memory.bytes_of("prompt cache") > 0
    assert plan.memory.bytes_of("weights") == MATRIX.checkpoint(plan.checkpoint)[1].max_bytes
