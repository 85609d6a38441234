import re

from gpuwright.decision_json import decision_as_data
from gpuwright.explain import explain_host, explain_plan, explain_refusal, list_models
from gpuwright.host import Host
from gpuwright.load import load_matrix
from gpuwright.want import Want
from tests.unit.decisions import planned, refused
from tools.golden import document


def test_a_memory_table_adds_up_to_what_is_needed():
    plan = planned("1x3090", {"model": "gemma-4-26b"})
    lines = explain_plan(plan).splitlines()
    start = lines.index(f"memory of {plan.memory.where}") + 1
    table = lines[start : lines.index("", start)]
    shown = [float(line.split(" GiB")[0].split()[-1]) for line in table]
    terms, (needed, available, free) = shown[:-3], shown[-3:]
    assert abs(sum(terms) - needed) <= 0.005 * (len(terms) + 1)
    assert abs(available - needed - free) <= 0.011


def test_cards_that_hold_unequal_parts_are_shown_one_by_one():
    data = {"model": "qwen3.6-27b", "engine": "llama.cpp", "gpus": [0, 1]}
    shown = explain_plan(planned("5090-and-3080", data))
    each = shown[shown.index("memory of each card") :].split("\n\n")[0].splitlines()[1:]
    assert [line.split(":")[0] for line in each] == [
        "  - GPU 0 (NVIDIA GeForce RTX 5090)",
        "  - GPU 1 (NVIDIA GeForce RTX 3080)",
    ]
    alike = explain_plan(planned("2x3090-pcie", {"model": "qwen3.6-27b", "engine": "vllm"}))
    assert "memory of each card" not in alike


def test_requests_that_do_not_all_fit_whole_are_said_to_share_the_cache():
    wants = {"model": "qwen3.6-27b", "workload": "throughput", "engine": "vllm"}
    plan = planned("5090", wants)
    cached = plan.figures["kv_cache_tokens"]
    assert cached < plan.max_model_len * plan.max_num_seqs
    assert f" at once, which share {cached:,} tokens of cache\n" in explain_plan(plan)
    plan = planned("5090", wants | {"engine": "llama.cpp"})
    assert "which share" not in explain_plan(plan)


def test_a_format_is_told_where_it_keeps_an_engine_from_a_checkpoint():
    found = {each.candidate: each for each in planned("8x-h100", {"model": "glm-4.5-air"}).why_not}
    said = {
        name.split()[0]: each.reason for name, each in found.items() if "known to" in each.reason
    }
    assert said["sglang"].endswith("known to load, found those of tensorrt-llm, vllm")
    assert said["exllamav3"].endswith("(safetensors, not exl3)")


def test_a_brief_plan_keeps_its_warnings_and_leaves_out_the_others():
    plan = planned("2x3090-pcie", {"model": "qwen3.6-27b"})
    brief = explain_plan(plan, brief=True)
    assert "\n\n" not in brief
    assert all(f"  warnings: {warning.sentence()}" in brief for warning in plan.warnings)
    assert "why not" not in brief
    assert plan.not_applicable in brief


def test_every_candidate_that_lost_is_shown():
    plan = planned("2x3090-pcie", {"model": "qwen3.6-27b"})
    shown = explain_plan(plan)
    assert all(f"  - {each.candidate}: {each.reason}" in shown for each in plan.why_not)


def test_a_refusal_shows_candidates_and_remedies():
    refusal = refused("1x3090-driver-550", {"engine": "vllm", "release": "0.33.0"})
    shown = explain_refusal(refusal)
    assert "  - vllm 0.33.0 cu130: CUDA 13.0 runtime: needs driver >= 580" in shown
    assert "what would help\n  - driver >= 580" in shown


def test_a_one_line_refusal_is_short_and_names_what_would_help():
    refusal = refused("1x3090", {"model": "qwen3.6-27b", "max_model_len": 262144, "engine": "vllm"})
    assert len(refusal.reasons) > 4
    line = refusal.sentence()
    assert "\n" not in line
    assert line.count("GPU 0 (") <= 4
    assert f"; and {len(refusal.reasons) - 4} more" in line
    assert "What would help: max_model_len" in line


def test_a_host_shows_what_others_hold_of_its_card():
    host = Host.from_document(document("1x3090-desktop"))
    assert "24.00 GiB, 1.50 GiB held by others, row rtx-3090" in explain_host(host, load_matrix())


def test_a_broken_card_shows_its_status():
    host = Host.from_document(document("3090-no-driver"))
    assert "GPU      no_driver: no NVIDIA kernel module is loaded" in explain_host(
        host, load_matrix()
    )


def test_the_list_of_models_says_which_are_pinned():
    lines = {line.split()[0]: line for line in list_models(load_matrix()).splitlines()}
    assert lines["smollm2-135m-instruct-q4_1"].endswith("(pinned)")
    assert lines["qwen3.6-27b-fp8"].endswith("not pinned)")


def test_json_says_what_each_card_of_a_plan_holds():
    want = {"model": "qwen3.6-27b", "engine": "llama.cpp", "gpus": [0, 1]}
    plan = planned("5090-and-3080", want)
    memory = decision_as_data(plan, Want.from_data(want))["memory"]
    large, small = memory["devices"]
    assert large["where"] == "GPU 0 (NVIDIA GeForce RTX 5090)"
    assert large["weights_bytes"] > small["weights_bytes"] > 0
    assert large["kv_cache_bytes"] > small["kv_cache_bytes"] > 0
    for each in (large, small):
        assert each["available_bytes"] - each["needed_bytes"] == each["free_bytes"]
        assert each["reserve_bytes"] >= each["available_bytes"] // 50
    fullest = {key: memory[key] for key in large}
    assert fullest in (large, small)


def test_one_of_a_thing_is_not_many():
    want = {"model": "qwen3.6-27b", "engine": "llama.cpp", "gpus": [0], "max_num_seqs": 1}
    told = explain_plan(planned("5090-and-3080", want))
    assert "1 slot" in told
    assert not re.findall(r"(?<![\w.,:-])1 (?:slot|request|layer|card|checkpoint)s\b", told)
