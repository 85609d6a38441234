"""Speculation, images, grammars and experts in RAM: chosen, pinned, and what they exclude."""

import re
from dataclasses import replace

import pytest

from gpuwright.disk_rules import DISK_MARGIN_BYTES
from gpuwright.host import Host
from gpuwright.launch import launch
from gpuwright.layout import Layout
from gpuwright.load import load_matrix
from gpuwright.plan import Plan
from gpuwright.refusals import Refusal, WantError
from gpuwright.selection import decide
from gpuwright.sketch import read_sketch
from gpuwright.want import Want
from tests.unit.decisions import warnings_of
from tests.unit.sketched import planned_on, refused_on

MATRIX = load_matrix()
LAYOUT = Layout()
TWO = ["RTX 3090", "RTX 3090"]
PLACEHOLDERS = {
    "tokens",
    "draft_tokens",
    "drafter",
    "projector",
    "tool_parser",
    "reasoning_parser",
    "grammar",
    "layers",
    "images",
    "chat_template",
    "adapters",
    "adapters_and_none",
    "lora_rank",
    "lora_files",
    "lora_pairs",
}


def arguments(plan):
    return launch(plan, LAYOUT, "/models/m", "/engines/e").argv


@pytest.mark.parametrize("row", MATRIX.features, ids=lambda row: row.id)
def test_arguments_hold_only_placeholders_that_are_filled(row):
    words = [
        word
        for entries in row.engines.values()
        for entry in entries
        for word in (*entry.arguments, *entry.off_arguments)
    ]
    assert set(re.findall(r"\{([a-z_]+)\}", " ".join(words))) <= PLACEHOLDERS


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llama.cpp"])
@pytest.mark.parametrize("vision", [False, True])
def test_no_placeholder_is_left_on_a_command_line(engine, vision):
    data = {"model": "qwen3.6-27b", "engine": engine, "vision": vision}
    words = arguments(planned_on(["A100 80GB"], data))
    assert not [word for word in words if re.search(r"\{[a-z_]+\}", word)]


def test_the_models_own_layers_draft_where_it_has_them():
    plan = planned_on(TWO, {"model": "qwen3.6-27b", "engine": "vllm", "speculative": "mtp:2"})
    assert (plan.speculation.method, plan.speculation.tokens) == ("mtp", 2)
    assert plan.speculation.drafter is None
    assert '{"method":"mtp","num_speculative_tokens":2}' in arguments(plan)


def test_gemma_drafts_with_its_assistant():
    plan = planned_on(TWO, {"model": "gemma-4-31b", "engine": "vllm", "speculative": "mtp"})
    assert plan.speculation.drafter == "gemma-4-31b-assistant"
    assert any("gemma-4-31b-assistant" in word for word in arguments(plan))
    assert any(term.name == "drafter" for term in plan.memory.terms)


def test_a_draft_takes_context_from_the_cache():
    data = {"model": "qwen3.6-27b", "engine": "vllm"}
    without = planned_on(["RTX 5090"], {**data, "speculative": "off"})
    drafting = planned_on(["RTX 5090"], {**data, "speculative": "mtp"})
    assert drafting.max_model_len < without.max_model_len


def test_a_model_without_a_drafter_is_refused_where_one_is_pinned():
    refusal = refused_on(TWO, {"model": "llama-3.1-8b-instruct", "speculative": "dflash"})
    assert any("a drafter of it in the catalogue, found none" in line for line in refusal.reasons)


def test_turboquant_is_refused_beside_a_draft():
    data = {"model": "qwen3.6-27b", "engine": "vllm", "kv_cache_dtype": "turboquant_4bit_nc"}
    assert planned_on(TWO, {**data, "speculative": "off"}).kv_cache_dtype == "turboquant_4bit_nc"
    refusal = refused_on(TWO, {**data, "speculative": "mtp"})
    assert any("degenerate in silence" in line for line in refusal.reasons)


def test_images_need_a_model_that_takes_them():
    refusal = refused_on(TWO, {"model": "qwen3-0.6b", "vision": True})
    assert "vision: needs a model that takes images, found qwen3-0.6b" in refusal.reasons


def test_a_projector_stands_beside_a_gguf_file():
    plan = planned_on(
        ["A100 80GB"], {"model": "qwen3.6-27b", "engine": "llama.cpp", "vision": True}
    )
    assert plan.projector is not None
    assert f"{LAYOUT.checkpoint_dir(plan.projector)}/MODEL.gguf" in arguments(plan)


def test_without_images_vllm_leaves_the_encoder_out():
    words = arguments(planned_on(TWO, {"model": "qwen3.6-27b", "engine": "vllm"}))
    assert words[words.index("--limit-mm-per-prompt") + 1] == '{"image":0,"video":0}'


def test_a_grammar_backend_is_one_that_the_engine_has():
    data = {"model": "qwen3.6-27b", "engine": "vllm"}
    plan = planned_on(TWO, {**data, "structured_output": "guidance"})
    assert '{"backend":"guidance"}' in arguments(plan)
    refusal = refused_on(TWO, {**data, "structured_output": "llguidance"})
    assert any("needs xgrammar or guidance" in line for line in refusal.reasons)


def test_a_grammar_backend_that_no_engine_has_is_bad_input():
    with pytest.raises(
        WantError, match="structured_output: 'xgramar' is unknown; nearest: xgrammar"
    ):
        planned_on(TWO, {"model": "qwen3.6-27b", "structured_output": "xgramar"})


OFFLOAD = {"model": "gpt-oss-120b", "engine": "llama.cpp"}


def test_experts_stay_in_ram_where_the_card_does_not_hold_them():
    plan = planned_on(["RTX 3090"], OFFLOAD, memory_gib=96)
    layers = plan.parameters["cpu_expert_layers"]
    assert "expert-offload" in plan.features
    words = arguments(plan)
    assert words[words.index("--n-cpu-moe") + 1] == str(layers)


def test_more_cards_leave_fewer_experts_to_the_cpu():
    one = planned_on(["RTX 3090"], OFFLOAD, memory_gib=96)
    two = planned_on(TWO, OFFLOAD, memory_gib=96)
    assert len(two.gpus) == 2
    assert two.parameters["cpu_expert_layers"] < one.parameters["cpu_expert_layers"]


def test_experts_do_not_go_to_a_ram_that_does_not_hold_them():
    refusal = refused_on(["RTX 3090"], OFFLOAD, memory_gib=24)
    assert any(line.startswith("RAM: experts") for line in refusal.reasons)


def test_experts_stay_on_the_cards_where_that_is_pinned():
    refusal = refused_on(["RTX 3090"], {**OFFLOAD, "expert_offload": False}, memory_gib=96)
    assert not any("RAM" in line for line in refusal.reasons)


# Cards of several kinds


MIXED = ["RTX 5090", "RTX 3080 10GB", "GTX 1080"]


def test_layers_are_split_by_free_memory_over_cards_that_the_build_has_code_for():
    data = {"model": "qwen3.6-27b", "checkpoint": "qwen3.6-27b-q8_k_xl"}
    plan = planned_on(MIXED, data)
    assert [gpu.name for gpu in plan.gpus] == [
        "NVIDIA GeForce RTX 5090",
        "NVIDIA GeForce RTX 3080",
    ]
    first, second = (int(word) for word in plan.parameters["tensor_split"].split(","))
    assert first > second


def test_tensors_are_split_over_unequal_cards_only_where_both_pins_say_so():
    data = {"model": "qwen3.6-27b", "engine": "vllm", "gpus": [0, 1]}
    mixed = ["RTX 3090", "RTX 5070 Ti"]
    assert any("cards of one kind" in line for line in refused_on(mixed, data).reasons)
    plan = planned_on(mixed, {**data, "tensor_parallel_size": 2, "max_num_seqs": 1})
    assert plan.tensor_parallel_size == 2
    assert any("unequal cards" in line for line in warnings_of(plan))


BROUGHT = {
    "chat_template": "/srv/chat.jinja",
    "lora": {"tone": "/srv/lora/tone", "law": "/srv/lora/law"},
    "max_lora_rank": 64,
}


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        (
            "vllm",
            "--chat-template /srv/chat.jinja --enable-lora --max-loras 2 --max-lora-rank 64 "
            "--lora-modules tone=/srv/lora/tone law=/srv/lora/law",
        ),
        (
            "sglang",
            "--chat-template /srv/chat.jinja --enable-lora --max-loras-per-batch 3 "
            "--max-lora-rank 64 --lora-paths tone=/srv/lora/tone law=/srv/lora/law",
        ),
        (
            "llama.cpp",
            "--chat-template-file /srv/chat.jinja --lora /srv/lora/tone,/srv/lora/law "
            "--lora-init-without-apply",
        ),
    ],
)
def test_what_an_operator_brings_is_said_to_the_engine(engine, words):
    plan = planned_on(["A100 80GB"], {"model": "llama-3.1-8b", "engine": engine, **BROUGHT})
    assert words in " ".join(arguments(plan))
    if engine != "llama.cpp":
        assert plan.memory.bytes_of("LoRA adapters") > 0


def test_a_template_is_called_as_its_engine_knows_one():
    pins = {"model": "llama-3.1-8b", "chat_template": "/srv/chat.txt"}
    assert planned_on(["A100 80GB"], {**pins, "engine": "vllm"})
    refusal = refused_on(["A100 80GB"], {**pins, "engine": "sglang"})
    assert any("needs a file whose name ends with .jinja" in line for line in refusal.reasons)


def test_an_engine_without_adapters_is_refused_with_its_reason():
    pins = {"model": "llama-3.1-8b", "engine": "tensorrt-llm", "lora": BROUGHT["lora"]}
    refusal = refused_on(["H100"], pins, python="3.12")
    assert "no option that names adapters" in refusal.sentence()


def test_adapters_and_drafts_stand_side_by_side_where_the_engine_lets_them():
    pins = {"model": "gemma-4-31b", "engine": "sglang", "speculative": "mtp"}
    assert planned_on(["H100", "H100"], pins).speculation
    refusal = refused_on(["H100", "H100"], {**pins, "lora": BROUGHT["lora"]})
    assert "Gemma 4's assistant" in refusal.sentence()


@pytest.mark.parametrize(
    ("engine", "flag", "limit"),
    [
        ("vllm", "--limit-mm-per-prompt", '{"image":3,"video":0}'),
        ("sglang", "--limit-mm-data-per-request", '{"image":3,"video":0}'),
    ],
)
def test_a_prompt_holds_as_many_images_as_are_wanted(engine, flag, limit):
    pins = {"model": "qwen3.6-27b", "engine": engine, "vision": True, "images_per_prompt": 3}
    words = arguments(planned_on(["A100 80GB"], pins))
    assert words[words.index(flag) + 1] == limit


def pinned_but(*unpinned: str):
    """The matrix with files for every checkpoint but these."""
    (files,) = (row.files for model in MATRIX.models for row in model.checkpoints if row.files)

    def pinned(row):
        return row if row.id in unpinned else replace(row, files=files, unpinned=None)

    models = [
        replace(model, checkpoints=tuple(pinned(row) for row in model.checkpoints))
        for model in MATRIX.models
    ]
    return replace(MATRIX, models=tuple(models))


def decided_by(matrix, wanted, gpus=(), store_bytes=None):
    """The decision; `store_bytes` are free of a disk that holds the model store alone."""
    sketch = {"gpus": list(gpus), "memory_gib": 256}
    document = read_sketch(sketch, matrix)[0]
    want = Want.from_data(wanted)
    if store_bytes is not None:
        disk = {"mount": "/store", "free_bytes": store_bytes}
        document["disks"][want.layout.model_store] |= disk
    return decide(Host.from_document(document), want, matrix)


def planned_by(matrix, wanted, gpus=(), store_bytes=None):
    plan = decided_by(matrix, wanted, gpus, store_bytes)
    assert isinstance(plan, Plan), plan.sentence()
    return plan


@pytest.mark.parametrize(
    ("wanted", "beside"),
    [
        ({"model": "qwen3.6-27b", "vision": True}, ["qwen3.6-27b-mmproj"]),
        ({"model": "qwen3.6-27b"}, []),
        ({"model": "gemma-4-31b", "speculative": "mtp"}, ["gemma-4-31b-mtp-gguf"]),
    ],
)
def test_a_plan_brings_the_checkpoints_that_stand_beside_its_model(wanted, beside):
    plan = planned_by(pinned_but(), wanted)
    assert plan.not_applicable is None
    assert [each.id for each in plan.checkpoints] == [plan.checkpoint, *beside]
    assert all(each.files == plan.files for each in plan.beside)
    for each in beside:
        plan = planned_by(pinned_but(each), wanted)
        assert plan.not_applicable.startswith(f"checkpoint {each} is not pinned: ")
        assert plan.not_applicable.endswith(f"`python -m tools.pin {each}` records it")
        assert planned_by(MATRIX, wanted).not_applicable.count(" is not pinned: ") == 2


def test_a_preferred_drafter_that_nobody_pinned_falls_away_and_a_pinned_one_is_said():
    drafters = [row.id for model in MATRIX.models for row in model.drafters]
    wanted = {"model": "gemma-4-31b", "workload": "single-user-latency", "engine": "vllm"}
    plan = planned_by(pinned_but(), wanted, ["H100"])
    assert plan.speculation.drafter == "gemma-4-31b-assistant"
    without = planned_by(pinned_but(*drafters), wanted, ["H100"])
    assert (without.not_applicable, without.beside) == (None, ())
    said = "gemma-4-31b-assistant would draft, as single-user-latency prefers, and is not pinned: "
    assert any(line.startswith(said) for line in warnings_of(without))
    assert not any("would draft" in line for line in warnings_of(plan))
    asked = planned_by(pinned_but(*drafters), wanted | {"speculative": "mtp"}, ["H100"])
    assert asked.not_applicable.startswith("checkpoint gemma-4-31b-assistant is not pinned: ")
    # Where the model cannot be applied either, the plan shows what would be served.
    shown = planned_by(MATRIX, wanted, ["H100"])
    assert shown.speculation.drafter == "gemma-4-31b-assistant"


def test_a_preferred_drafter_that_the_disk_does_not_take_falls_away_and_is_said():
    wanted = {"model": "gemma-4-31b", "workload": "single-user-latency", "engine": "vllm"}
    plan, drafter = planned_by(MATRIX, wanted, ["H100"]), "gemma-4-31b-assistant"
    wanted |= {"checkpoint": plan.checkpoint}
    held, beside = (MATRIX.checkpoint(row)[1].disk_bytes for row in (plan.checkpoint, drafter))
    room = held + DISK_MARGIN_BYTES + beside // 2
    without = planned_by(MATRIX, wanted, ["H100"], room)
    assert (without.checkpoint, without.beside) == (plan.checkpoint, ())
    said = f"{drafter} would draft, as single-user-latency prefers, and has no room: disk /store "
    assert [line for line in warnings_of(without) if line.startswith(said)]
    enough = planned_by(MATRIX, wanted, ["H100"], room + beside)
    assert enough.speculation.drafter == drafter
    assert not any("would draft" in line for line in warnings_of(enough))


def test_where_a_pinned_drafter_has_no_room_the_refusal_names_its_row():
    drafter = "gemma-4-31b-assistant"
    wanted = {"model": "gemma-4-31b", "engine": "vllm", "speculative": "mtp"}
    checkpoint = planned_by(MATRIX, wanted, ["H100"]).checkpoint
    wanted |= {"checkpoint": checkpoint}
    held, beside = (MATRIX.checkpoint(row)[1].disk_bytes for row in (checkpoint, drafter))
    for room, row in ((held + beside // 2, drafter), (held // 2, checkpoint)):
        refusal = decided_by(MATRIX, wanted, ["H100"], room + DISK_MARGIN_BYTES)
        assert isinstance(refusal, Refusal)
        short = [each for each in refusal.why_not if each.reason.startswith("disk /store ")]
        assert {each.row for each in short} == {row}


def test_a_model_without_a_projector_is_refused_with_what_has_one_or_needs_none():
    pins = {"model": "gemma-4-12b", "engine": "llama.cpp", "vision": True}
    refusal = refused_on(["RTX 3090"], pins)
    assert refusal.remedies == (
        "another engine, which needs no projector",
        "`model: gemma-4-31b`, which has a projector",
        "a projector of gemma-4-12b in a file of models (`extra_models`)",
    )
    assert planned_on(["RTX 3090"], {**pins, "engine": None})
    assert planned_on(["RTX 3090"], {**pins, "model": "gemma-4-31b"}).projector


def test_a_number_of_draft_tokens_that_no_argument_says_is_refused():
    pins = {"model": "qwen3.6-27b", "engine": "ik_llama.cpp"}
    assert planned_on(TWO, {**pins, "speculative": "ngram"}, driver="570").speculation
    refusal = refused_on(TWO, {**pins, "speculative": "ngram:3"}, driver="570")
    assert "`speculative: ngram`, without their number" in refusal.remedies
