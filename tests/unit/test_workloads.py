"""What a service is for decides what comes first among plans that fit."""

import pytest

from gpuwright.catalogue import find
from gpuwright.feature_rows import FeatureKind
from gpuwright.load import load_matrix
from tests.unit.decisions import planned, why_not

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
    assert lost == "fits; it has less of what the workload prefers"


def test_compression_takes_one_card_where_it_holds_the_context():
    want = {"model": "qwen3.6-35b-a3b"}
    assert len(planned("2x3090-nvlink", want | {"workload": "max-compression"}).gpus) == 1
    assert len(planned("2x3090-nvlink", want).gpus) == 2


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
