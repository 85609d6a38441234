"""A pin is honoured by what the engine is told or by what the plan keeps for it, or it is refused:
no engine takes two different pins for one and the same."""

from itertools import combinations

import pytest

from gpuwright.launch import ENGINES, launch
from gpuwright.layout import Layout
from gpuwright.load import load_matrix
from gpuwright.pins import check_pins
from gpuwright.plan import Plan
from gpuwright.refusals import WantError
from gpuwright.want import KEYS, Want
from tests.unit.sketched import decided_on

CARDS = ["A100 80GB", "A100 80GB"]
MODELS = {"tensorrt-llm": "gemma-4-31b"}
PLACES = [*((engine, CARDS) for engine in ENGINES), ("llama.cpp", "none"), ("vllm", "none")]
MAY = {"expert_offload"}
"""Of these a value says what may be done, and nothing has to be where the cards hold it all."""
NAMES = {"model", "engine", "release", "build_tag", "checkpoint"}
"""These say which plan it is: a plan says them back, and pins them again (test_cli.py)."""
OF_THE_NODE = {
    *("service", "share_gpus", "model_store", "extra_models", "cuda_repository", "python_index"),
    *("python_extra_indexes", "python_find_links", "python_offline", "python_mirror", "hub"),
    *("hub_token_file", "ca_bundle", "proxy", "start_timeout_seconds", "cache", "keep_engines"),
}
"""No engine is told of these: they say how it and its model are brought, and started."""
VALUES = {
    "attention_backend": ("flash_attn", "flashinfer", "triton", "ggml", "trtllm", "cpu_attn"),
    "kv_cache_dtype": ("bf16", "f16", "fp8_e4m3", "fp8_e5m2", "q8_0", "q4_0"),
    "max_model_len": (4096, 8192),
    "max_num_seqs": (1, 2),
    "max_num_batched_tokens": (4096, 8192),
    "speculative": ("off", "mtp", "mtp:2", "mtp:4", "ngram:2", "ngram:5"),
    "prefix_caching": (True, False),
    "structured_output": ("xgrammar", "guidance", "llguidance", "outlines"),
    "vision": (True, False),
    "images_per_prompt": (2, 64),
    "chat_template": ("/srv/a.jinja", "/srv/b.jinja"),
    "lora": ({"a": "/srv/a"}, {"b": "/srv/b"}),
    "max_lora_rank": (32, 64),
    "expert_offload": (True, False),
    "gpus": ([0], [1]),
    "tensor_parallel_size": (1, 2),
    "workload": ("chat", "max-compression"),
    "bind": ("127.0.0.1", "0.0.0.0"),
    "port": (8080, 8081),
    "served_model_name": ("one", "two"),
}
BESIDE = {
    "images_per_prompt": {"vision": True},
    "max_lora_rank": {"lora": {"a": "/srv/a"}},
}


def test_every_key_of_a_want_is_one_of_these():
    assert {*VALUES, *NAMES, *OF_THE_NODE} == {*KEYS}


def told(engine, gpus, key, value):
    """What the engine is told and what is kept for it; None where the pin is refused."""
    data = {"model": MODELS.get(engine, "qwen3.6-27b"), "engine": engine, key: value}
    data |= BESIDE.get(key, {})
    try:
        check_pins(Want.from_data(data), load_matrix())
        plan = decided_on(gpus, data, python="3.12", memory_gib=256)
    except WantError:
        return None
    if not isinstance(plan, Plan):
        return None
    start = launch(plan, Layout(), "/models/m", "/engines/e")
    return start.argv, start.environment, start.before, plan.memory


@pytest.mark.parametrize("key", [key for key in VALUES if key not in MAY])
@pytest.mark.parametrize(("engine", "gpus"), PLACES, ids=lambda each: str(each)[:12])
def test_no_engine_takes_two_different_pins_for_the_same(engine, gpus, key):
    found = {str(value): told(engine, gpus, key, value) for value in VALUES[key]}
    for (one, first), (other, second) in combinations(found.items(), 2):
        assert first is None or first != second, f"{key}: {one} is served as {other}"


@pytest.mark.parametrize("engine", ["llama.cpp", "ik_llama.cpp", "tensorrt-llm"])
def test_an_engine_that_counts_no_images_takes_no_limit_of_them(engine):
    assert told(engine, CARDS, "images_per_prompt", 64) is None


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_an_engine_that_counts_images_is_told_how_many(engine):
    argv = told(engine, CARDS, "images_per_prompt", 64)[0]
    assert '{"image":64,"video":0}' in argv
