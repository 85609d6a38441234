"""Whatever word of the matrix a plan says, its release's parser takes it, and no place is left
open: every release with a record, with every attention backend, cache, feature and model."""

import json
import re
from dataclasses import replace
from functools import cache

import pytest

from gpuwright.feature_rows import FeatureSupport
from gpuwright.features import filled, support_of
from gpuwright.flag_lint import lint
from gpuwright.launch import launch
from gpuwright.layout import Layout
from gpuwright.load import load_matrix
from gpuwright.plan import PlannedCheckpoint, Speculation
from gpuwright.records import load_record, recorded
from gpuwright.versions import within
from tests.unit.decisions import planned

MATRIX = load_matrix()
RECORDED = recorded()
OPEN = re.compile(r"\{[a-z_]+\}")
SETTINGS = {
    "threads": 8,
    "gpu_layers": "all",
    "flash_attention": "on",
    "prompt_cache_mib": 2048,
    "context_checkpoints": 2,
    "tensor_split": "32,33",
    "max_num_batched_tokens": 2048,
    "gpu_memory_utilization": "0.90",
    "chunked_prefill_tokens": 2048,
    "mem_fraction_static": "0.80",
    "graph_batch_cap": 4,
    "linear_state_slots": 5,
    "custom_all_reduce": False,
    "nccl_peer_access": False,
    "eager": True,
}
WORDS = {
    "tokens": "3",
    "draft_tokens": "4",
    "layers": "8",
    "images": "2",
    "chat_template": "/srv/chat.jinja",
    "adapters": "1",
    "adapters_and_none": "2",
    "lora_rank": "32",
    "lora_files": "/srv/a",
    "lora_pairs": "a=/srv/a",
}


@cache
def plan(engine, release):
    found = planned("2x3090-nvlink", {"model": "qwen3.6-27b", "engine": "vllm"})
    backend = next(row.backend for row in backends(engine, release))
    (dtype, *_) = MATRIX.engine_release(engine, release).kv_cache_dtypes
    return replace(
        found,
        engine=engine,
        release=release,
        attention_backend=backend,
        kv_cache_dtype=dtype,
        parameters=SETTINGS,
        feature_arguments=(),
        speculation=Speculation(method="eagle3", tokens=3, drafter="a-drafter"),
        projector="a-projector",
        beside=tuple(PlannedCheckpoint(id=name, files=()) for name in ("a-drafter", "a-projector")),
    )


def backends(engine, release):
    rows = [row for row in MATRIX.attention_backends if row.engine == engine]
    return [row for row in rows if within(release, row.releases)]


def faults(plan):
    """What the release's parser would refuse of the plan's command, and places left open."""
    start = launch(plan, Layout(), "/models/m", "/opt/engine")
    first = next(i for i, word in enumerate(start.argv) if word.startswith("--"))
    found = lint(start.argv[first:], load_record(plan.engine, plan.release).flags)
    everything = (*start.argv, *start.environment.values(), *start.before)
    return [*found, *(word for word in everything if OPEN.search(word))]


def served(engine, release):
    """Models of which the release can be given weights."""
    for model in MATRIX.models:
        ranges = [row.engines.get(engine) for row in model.checkpoints if row.engines]
        if any(wanted is not None and within(release, wanted) for wanted in ranges):
            yield model


@pytest.mark.parametrize(("engine", "release"), RECORDED)
def test_every_attention_backend_is_one_that_the_parser_knows(engine, release):
    rows = backends(engine, release)
    assert rows
    for row in rows:
        assert faults(replace(plan(engine, release), attention_backend=row.backend)) == [], row.id


@pytest.mark.parametrize(("engine", "release"), RECORDED)
def test_every_cache_is_one_that_the_parser_knows(engine, release):
    for dtype in MATRIX.engine_release(engine, release).kv_cache_dtypes:
        assert faults(replace(plan(engine, release), kv_cache_dtype=dtype)) == [], dtype


@pytest.mark.parametrize(("engine", "release"), RECORDED)
def test_every_feature_of_every_model_is_one_that_the_parser_knows(engine, release):
    row, tried = MATRIX.engine_release(engine, release), 0
    for model in served(engine, release):
        parsers = {f"{kind}_parser": word for kind, word in model.parsers.get(engine, {}).items()}
        for feature in MATRIX.features:
            support = support_of(feature, row, model, "8.6")
            if not isinstance(support, FeatureSupport):
                continue
            for grammar in support.words or ("",):
                words = WORDS | parsers | {"grammar": grammar}
                for arguments in (support.arguments, support.off_arguments):
                    if any(re.search(r"\{\w+_parser\}", word) for word in filled(arguments, words)):
                        continue  # No parser is known for the model: the feature is not used.
                    asked = replace(
                        plan(engine, release), feature_arguments=filled(arguments, words)
                    )
                    assert faults(asked) == [], (model.id, feature.id, grammar)
                    tried += 1
    assert tried > 20


@pytest.mark.parametrize(("engine", "release"), RECORDED)
def test_what_a_model_itself_demands_is_known_to_the_parser(engine, release):
    for model in served(engine, release):
        arguments = model.arguments.get(engine, ())
        assert faults(replace(plan(engine, release), feature_arguments=arguments)) == [], model.id


def test_tensorrt_llm_is_told_in_its_file_what_has_no_flag():
    for feature in MATRIX.features:
        for support in feature.engines.get("tensorrt-llm", ()):
            words = WORDS | {"grammar": next(iter(support.words), ""), "tool_parser": "qwen3"}
            asked = replace(
                plan("vllm", "0.33.0"),
                engine="tensorrt-llm",
                release="1.4.0rc1",
                attention_backend="trtllm",
                kv_cache_dtype="fp8_e4m3",
                feature_arguments=filled(support.arguments, words),
            )
            start = launch(asked, Layout(), "/models/m", "/opt/engine")
            assert not [word for word in start.argv if OPEN.search(word)]
            said = json.loads(start.before[-1])
            assert said["attn_backend"] == "TRTLLM"
            assert said["kv_cache_config"]["dtype"] == "fp8"
            assert not OPEN.search(start.before[-1]), feature.id
            for word in support.arguments:
                if word.startswith('{"'):
                    assert set(json.loads(OPEN.sub("0", word))) <= set(said)
                else:
                    assert filled((word,), words)[0] in start.argv


TENSORRT_LLM = {
    *("--host", "--port", "--tp_size", "--max_seq_len", "--max_batch_size", "--max_num_tokens"),
    *("--config", "--chat_template", "--reasoning_parser", "--tool_parser", "--log_level"),
}
"""Of its server's options those that a plan may say, as tensorrt_llm/commands/serve.py has them at
00209af149e7774406881a37283dce303571eb11, between 1.2 and 1.3: no release was had to be asked."""


@pytest.mark.parametrize("release", ["1.2.1", "1.4.0rc1"])
def test_tensorrt_llm_is_told_nothing_but_options_that_were_read(release):
    more = set() if release == "1.2.1" else {"--served_model_name"}
    for feature in MATRIX.features:
        for support in feature.engines.get("tensorrt-llm", ()):
            words = WORDS | {"grammar": next(iter(support.words), ""), "tool_parser": "qwen3"}
            asked = replace(
                plan("vllm", "0.33.0"),
                engine="tensorrt-llm",
                release=release,
                attention_backend="trtllm",
                feature_arguments=filled(support.arguments, words),
            )
            argv = launch(asked, Layout(), "/models/m", "/opt/engine").argv
            named = {word for word in argv if word.startswith("-")}
            assert named <= TENSORRT_LLM | more, feature.id
            assert more <= named
