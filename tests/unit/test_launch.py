import json
from dataclasses import replace

import pytest

from gpuwright.hazard_rows import PARAMETERS
from gpuwright.launch import ENGINES, launch, model_path_of
from gpuwright.layout import Layout
from gpuwright.load import load_matrix
from gpuwright.plan import Plan, PlannedCheckpoint, Speculation
from tests.unit.decisions import planned
from tests.unit.plans import FILE, PLAN
from tests.unit.sketched import planned_on, refused_on

LAYOUT = Layout()


def started(plan: Plan):
    return launch(plan, LAYOUT, "/models/m.gguf", "/opt/engine")


def value(start, flag):
    return start.argv[start.argv.index(flag) + 1]


def test_llama_server_on_the_cpu_says_all_that_the_plan_decided():
    plan = planned("cpu-debian12", {"served_model_name": "small", "port": 9000})
    start = started(plan)
    assert start.argv[0] == "/opt/engine/bin/llama-server"
    assert value(start, "--model") == "/models/m.gguf"
    assert value(start, "--alias") == "small"
    assert value(start, "--host") == "127.0.0.1"
    assert value(start, "--port") == "9000"
    # The engine divides its context over its slots.
    assert value(start, "--ctx-size") == str(plan.max_model_len * plan.max_num_seqs)
    assert value(start, "--parallel") == str(plan.max_num_seqs)
    assert "--n-gpu-layers" not in start.argv
    assert value(start, "--threads") == "2"
    assert start.environment == {}


def test_llama_server_is_given_a_pinned_context_as_it_is():
    plan = planned("cpu-debian12", {"max_model_len": 1000, "max_num_seqs": 3})
    assert value(started(plan), "--ctx-size") == "3000"


def test_llama_server_on_cards_takes_every_layer_and_is_told_how_many_each_holds():
    plan = planned("2x3090-pcie", {"model": "qwen3.6-27b", "engine": "llama.cpp", "gpus": [0, 1]})
    start = started(plan)
    assert value(start, "--n-gpu-layers") == "all"
    assert value(start, "--flash-attn") == "on"
    assert value(start, "--split-mode") == "layer"
    # 64 layers, then the one that drafts and the output, which has the weight of two.
    assert value(start, "--tensor-split") == "33,33"


def test_the_fork_is_told_in_its_own_words_and_reads_its_keys_from_a_file():
    pins = {"model": "qwen3.6-27b", "engine": "ik_llama.cpp", "release": "0.1.5"}
    start = started(planned_on(["RTX 3090"], pins))
    assert value(start, "--webui") == "none"
    assert value(start, "--context-shift") == "off"
    assert value(start, "--n-gpu-layers") == "999"
    assert value(start, "--api-key-file") == "/run/gpuwright-llm/keys"
    assert start.before[:2] == ("/bin/sh", "-c")
    assert not {"--fit", "--no-ui", "--offline"} & set(start.argv)


def test_a_server_told_to_keep_no_prompts_keeps_none():
    asked = {"model": "qwen3.6-27b", "engine": "llama.cpp"}
    kept, none = (
        started(planned("1x3090", {**asked, "prefix_caching": pinned})) for pinned in (True, False)
    )
    assert value(kept, "--cache-ram") == "2048"
    assert "--no-cache-prompt" not in kept.argv
    assert "--no-cache-prompt" in none.argv
    assert [value(none, flag) for flag in ("--cache-ram", "--ctx-checkpoints")] == ["0", "0"]


def test_saved_states_are_bounded_only_for_models_that_have_them():
    hybrid = started(planned("cpu-debian12", {"model": "qwen3.6-27b"}))
    assert 1 <= int(value(hybrid, "--ctx-checkpoints")) <= 8
    assert "--ctx-checkpoints" not in started(planned("cpu-debian12")).argv


def test_vllm_gets_its_own_spellings():
    pins = {"checkpoint": "qwen3.6-27b-int4-autoround", "engine": "vllm"}
    start = started(planned("1x3090", pins))
    assert value(start, "--attention-backend") == "FLASHINFER"
    assert value(start, "--kv-cache-dtype") == "fp8_e4m3"
    assert value(start, "--reasoning-parser") == "qwen3"
    assert "--disable-custom-all-reduce" not in start.argv


def test_hazards_reach_the_command_line():
    plan = planned("2x3090-pcie", {"model": "qwen3.6-27b"})
    assert "--disable-custom-all-reduce" in started(plan).argv


def test_sglang_gets_its_own_spellings():
    plan = planned("2x3090-nvlink", {"model": "qwen3.6-27b", "engine": "sglang"})
    start = started(plan)
    assert value(start, "--tp-size") == "2"
    assert value(start, "--attention-backend") == "flashinfer"
    assert int(value(start, "--max-mamba-cache-size")) == plan.max_num_seqs + 1


@pytest.mark.parametrize("engine", ["llama.cpp", "vllm", "sglang"])
def test_no_key_stands_on_a_command_line(engine):
    plan = planned("2x3090-nvlink", {"model": "qwen3.6-27b", "engine": engine})
    assert not [word for word in started(plan).argv if "key" in word.lower()]


def test_llama_servers_key_comes_from_the_environment_file():
    assert started(planned("cpu-debian12")).secret_names == ("LLAMA_API_KEY",)


# TensorRT-LLM's backend stands in a configuration file.
SPELLING = ("llama.cpp", "vllm", "sglang")
SPELLED = [row for row in load_matrix().attention_backends if row.engine in SPELLING]


@pytest.mark.parametrize("row", SPELLED, ids=lambda row: row.id)
def test_every_attention_backend_can_be_spelled(row):
    plan = planned("2x3090-nvlink", {"model": "qwen3.6-27b", "engine": row.engine})
    start = started(replace(plan, attention_backend=row.backend))
    if row.engine != "llama.cpp":
        assert value(start, "--attention-backend").casefold() in {
            name.casefold() for name in (row.backend, *row.aliases)
        }


SWITCHES = sorted({key for key, kind in PARAMETERS.items() if kind is bool} - {"prefix_caching"})


@pytest.mark.parametrize("parameter", SWITCHES)
def test_every_switch_that_a_hazard_may_turn_changes_the_start(parameter):
    plan = planned("2x3090-nvlink", {"model": "qwen3.6-27b", "engine": "vllm"})
    settings = [
        started(replace(plan, parameters=plan.parameters | {parameter: value}))
        for value in (True, False)
    ]
    assert settings[0] != settings[1]


@pytest.mark.parametrize(
    ("release", "flag"),
    [("0.5.23", "--cuda-graph-max-bs-decode"), ("0.5.10.post1", "--cuda-graph-max-bs")],
)
def test_sglang_is_told_how_many_requests_its_graphs_are_for(release, flag):
    plan = planned("2x3090-nvlink", {"model": "qwen3.6-27b", "engine": "vllm"})
    settings = {"chunked_prefill_tokens": 2048, "mem_fraction_static": "0.80", "graph_batch_cap": 4}
    plan = replace(plan, engine="sglang", release=release, parameters=settings)
    assert value(started(plan), flag) == "4"


@pytest.mark.parametrize(
    ("rig", "wanted", "flag"),
    [
        ("2x3090-nvlink", True, "--enable-prefix-caching"),
        ("2x3090-nvlink", False, "--disable-prefix-caching"),
        ("3090-driver-570", True, "--enable-prefix-caching"),
        ("3090-driver-570", False, "--no-enable-prefix-caching"),
    ],
)
def test_prefix_caching_is_said_to_vllm_either_way_as_its_release_does(rig, wanted, flag):
    data = {"model": "llama-3.1-8b", "engine": "vllm", "prefix_caching": wanted}
    assert flag in started(planned(rig, data)).argv


def served_by(engine, **parameters):
    """A plan of any engine on two cards, whatever it would decide itself."""
    plan = planned("2x3090-nvlink", {"model": "qwen3.6-27b", "engine": "vllm"})
    settings = {"threads": 1, "gpu_layers": "all", "flash_attention": "on", "prompt_cache_mib": 0}
    settings |= {"chunked_prefill_tokens": 2048, "mem_fraction_static": "0.80"}
    settings = plan.parameters | settings | parameters
    release = {"tensorrt-llm": "1.4.0rc1", "sglang": "0.5.23"}.get(engine, plan.release)
    return replace(plan, engine=engine, release=release, parameters=settings, feature_arguments=())


@pytest.mark.parametrize("engine", [engine for engine in ENGINES if "llama" not in engine])
def test_what_compiles_keeps_it_for_its_next_start_and_asks_no_network(engine):
    plan = served_by(engine)
    environment = started(plan).environment
    kept = LAYOUT.kernels(engine, plan.release)
    for name in (
        "HOME",
        "CUDA_CACHE_PATH",
        "TRITON_CACHE_DIR",
        "TORCHINDUCTOR_CACHE_DIR",
        "FLASHINFER_WORKSPACE_BASE",
        "XDG_CACHE_HOME",
    ):
        assert f"{environment[name]}/".startswith(f"{kept}/"), name
    for name, value in environment.items():
        if value.startswith("/") and name != "PATH":
            assert f"{value}/".startswith((f"{kept}/", "/run/gpuwright-llm/")), name
    assert environment["PATH"].startswith("/opt/engine/bin:")
    assert environment["HF_HUB_OFFLINE"] == environment["TRANSFORMERS_OFFLINE"] == "1"
    assert environment["DO_NOT_TRACK"] == "1"
    assert environment["NCCL_SOCKET_IFNAME"] == environment["GLOO_SOCKET_IFNAME"] == "lo"


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_sees_its_cards_alone_and_by_uuid(engine):
    plan = served_by(engine, nccl_peer_access=False)
    environment = started(plan).environment
    assert environment["CUDA_VISIBLE_DEVICES"] == ",".join(gpu.uuid for gpu in plan.gpus)
    assert environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert environment["NCCL_P2P_DISABLE"] == "1"


def test_a_release_that_reads_no_uuid_is_told_indexes_on_the_bus():
    plan = served_by("vllm", cards_by_index=True)
    environment = started(plan).environment
    assert environment["CUDA_VISIBLE_DEVICES"] == ",".join(str(gpu.index) for gpu in plan.gpus)
    assert environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        ("llama.cpp", "--metrics"),
        ("ik_llama.cpp", "--metrics"),
        ("sglang", "--enable-metrics"),
        ("tensorrt-llm", "enable_iter_perf_stats"),
        # It has them unless it is told to leave its statistics out.
        ("vllm", None),
    ],
)
def test_every_engine_counts_what_it_does(engine, told):
    start = started(served_by(engine))
    words = " ".join((*start.argv, *start.before))
    assert told in words if told else "--disable-log-stats" not in words


def test_no_engine_is_left_out_of_what_is_asked_of_all():
    assert set(ENGINES) == {"llama.cpp", "ik_llama.cpp", "vllm", "sglang", "tensorrt-llm"}


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_has_a_command(engine):
    plan = served_by(engine)
    start = started(plan)
    assert start.argv[0].startswith("/opt/engine/bin/")
    assert str(plan.port) in start.argv


@pytest.mark.parametrize(
    ("card", "engine", "dtype", "word"),
    [
        ("RTX 3090", "vllm", "bf16", "bfloat16"),
        ("RTX 3090", "vllm", "f16", "float16"),
        ("RTX 2080 Ti 22 GB", "vllm", "f16", "float16"),
        ("RTX 3090", "sglang", "bf16", "bfloat16"),
    ],
)
def test_a_cache_of_16_bits_and_the_model_are_of_one_type(card, engine, dtype, word):
    wanted = {"model": "llama-3.1-8b", "engine": engine, "kv_cache_dtype": dtype}
    argv = launch(planned_on([card], wanted), Layout(), "MODEL", "ENGINE").argv
    assert argv[argv.index("--dtype") + 1] == word


def test_a_cache_of_8_bits_leaves_the_type_of_the_model_to_its_checkpoint():
    wanted = {"model": "llama-3.1-8b", "engine": "vllm", "kv_cache_dtype": "fp8"}
    assert "--dtype" not in launch(planned_on(["RTX 4090"], wanted), Layout(), "M", "E").argv


def test_an_engine_is_told_what_a_model_needs_of_it():
    wanted = {"model": "deepseek-v4-flash", "engine": "vllm"}
    argv = launch(planned_on(["B200", "B200"], wanted), Layout(), "MODEL", "ENGINE").argv
    assert argv[argv.index("--block-size") + 1] == "256"
    assert argv[argv.index("--tokenizer-mode") + 1] == "deepseek_v4"


def test_a_server_that_knows_no_key_serves_its_own_node_alone():
    wanted = {"model": "llama-3.1-8b", "engine": "tensorrt-llm"}
    assert planned_on(["H100"], wanted, python="3.12").loopback
    refusal = refused_on(["H100"], {**wanted, "bind": "0.0.0.0"}, python="3.12")
    assert "a server that asks for a key" in refusal.sentence()
    assert "bind: 127.0.0.1" in refusal.sentence()


def test_a_model_that_is_called_as_its_directory_is_gets_a_link_of_that_name():
    wanted = {"model": "llama-3.1-8b", "engine": "tensorrt-llm", "served_model_name": "tiny"}
    new, old = (
        started(planned_on(["H100"], {**wanted, **pin}, python="3.12"))
        for pin in ({}, {"release": "1.2.1"})
    )
    assert value(new, "--served_model_name") == "tiny"
    assert new.argv[1] == "/models/m.gguf"
    assert "--served_model_name" not in old.argv
    assert old.argv[1] == "/run/gpuwright-llm/model/tiny"
    assert old.before[-2:] == ("/models/m.gguf", "tiny")


def test_a_name_that_no_directory_can_have_is_refused_where_the_directory_is_the_name():
    wanted = {"model": "llama-3.1-8b", "engine": "tensorrt-llm", "served_model_name": "org/tiny"}
    assert planned_on(["H100"], wanted, python="3.12").served_model_name == "org/tiny"
    refusal = refused_on(["H100"], {**wanted, "release": "1.2.1"}, python="3.12")
    assert "needs a name without /" in refusal.sentence()


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_cards_without_nvlink_reduce_by_nccl_whatever_the_engine(engine):
    over, beside = (started(served_by(engine, custom_all_reduce=own)) for own in (True, False))
    if engine == "tensorrt-llm":
        assert json.loads(beside.before[-1])["allreduce_strategy"] == "NCCL"
        assert "allreduce_strategy" not in json.loads(over.before[-1])
    else:
        assert set(beside.argv) - set(over.argv) == {"--disable-custom-all-reduce"}


@pytest.mark.parametrize(
    ("engine", "files", "path"),
    [
        ("llama.cpp", ("d.gguf",), "/d.gguf"),
        ("ik_llama.cpp", ("README.md", "q4/d-00002-of-00002.gguf", "q4/d-00001-of-00002.gguf"),
         "/q4/d-00001-of-00002.gguf"),
        ("llama.cpp", (), "/MODEL.gguf"),
        ("vllm", ("config.json", "model.safetensors"), ""),
    ],
)  # fmt: skip
def test_an_engine_is_given_a_checkpoint_as_it_lies_in_the_store(engine, files, path):
    checkpoint = PlannedCheckpoint(
        id="second", files=tuple(replace(FILE, path=name) for name in files)
    )
    place = f"{LAYOUT.checkpoint_dir('second')}{path}"
    plan = replace(
        PLAN,
        engine=engine,
        checkpoint="second",
        files=checkpoint.files,
    )
    assert model_path_of(plan, LAYOUT) == place
    drafting = replace(
        planned("cpu-debian12", {}),
        beside=(checkpoint,),
        speculation=Speculation(method="draft-model", tokens=4, drafter="second"),
        projector="second",
        feature_arguments=("--draft", "{drafter}", "--images", "{projector}"),
    )
    if engine == "llama.cpp":
        start = started(drafting)
        assert (value(start, "--draft"), value(start, "--images")) == (place, place)
