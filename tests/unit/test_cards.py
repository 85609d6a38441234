"""Which build, weights and cards a plan takes, by driver, capability, memory and links."""

import copy
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwright.host import Host
from gpuwright.launch import launch
from gpuwright.layout import Layout
from gpuwright.load import load_matrix
from gpuwright.plan import Plan
from gpuwright.refusals import Refusal, WantError
from gpuwright.selection import decide
from gpuwright.site import UNTOLD_BYTES, ram_memory
from gpuwright.want import Want
from tests.unit.decisions import GIB, decided, planned, refused, setting, warnings_of, why_not
from tests.unit.sketched import decided_on
from tools.golden import WANTS, document, golden

RIG_CARDS = [
    "GTX 1080 Ti",
    "Tesla P40",
    "Tesla T4",
    "RTX 3060 12GB",
    "RTX 3090",
    "RTX 4060 Ti 16GB",
    "RTX 4090",
    "RTX 5090",
    "A100 PCIe 80GB",
    "H100 PCIe",
]

# Drivers, cards and wheels


def test_a_driver_too_old_for_cuda_13_gets_the_release_for_12_8():
    plan = planned("1x3090-driver-550", {"model": "gemma-4-26b"})
    assert (plan.engine, plan.release, plan.build_tag) == ("vllm", "0.19.1", "cu128")
    assert why_not(plan, "vllm 0.33.0 cu130") == (
        "CUDA 13.0 runtime: needs driver >= 580, found 550.163.01"
    )


def test_a_pinned_release_that_the_driver_cannot_run_is_refused_with_the_driver_to_have():
    refusal = refused("1x3090-driver-550", {"engine": "vllm", "release": "0.33.0"})
    assert refusal.reasons == ("CUDA 13.0 runtime: needs driver >= 580, found 550.163.01",)
    assert refusal.remedies == ("driver >= 580",)


def test_what_binaries_hold_for_another_architecture_counts_there():
    held = "9.0, 10.0, 10.3, 11.0, 12.0, 12.1"
    refusal = refused("1x3090", {"engine": "sglang"}, setting("os", "architecture", to="aarch64"))
    assert (
        f"binaries: hold code for compute capability {held}, NVIDIA GeForce RTX 3090 has 8.6"
        in refusal.reasons
    )
    assert planned("1x3090", {"engine": "sglang"}).release == "0.5.23"


def test_a_driver_version_that_is_unknown_is_a_reason():
    refusal = refused("1x3090", {"engine": "vllm"}, setting("gpus", "driver_version", to=None))
    assert "driver version: needs >= 580, found unknown" in refusal.reasons


def card(**changes):
    def change(node):
        node["gpus"]["devices"][0].update(changes)

    return change


def test_refuses_a_card_that_the_binaries_hold_no_code_for():
    change = card(compute_capability="7.0", name="Tesla V100", pci_id="10de:1db1")
    refusal = refused("1x3090", {"engine": "sglang"}, change)
    assert any("Tesla V100 has 7.0" in reason for reason in refusal.reasons)


def test_an_old_card_gets_the_build_for_the_older_cuda():
    change = card(compute_capability="7.0", name="Tesla V100", pci_id="10de:1db1")
    plan = planned("1x3090", {"model": "qwen3.6-27b", "cuda_repository": True}, change)
    assert (plan.engine, plan.build_tag) == ("llama.cpp", "cuda12")


def test_a_card_without_a_row_is_planned_and_said_to_be_unlisted():
    plan = planned("l40g-unlisted", {"model": "qwen3.6-27b"})
    assert any("NVIDIA L40G) has no row in gpus/" in line for line in warnings_of(plan))


def test_a_card_of_unknown_capability_is_refused():
    refusal = refused("1x3090", {"model": "qwen3.6-27b"}, card(compute_capability=None))
    assert "NVIDIA GeForce RTX 3090: needs a compute capability, found unknown" in refusal.reasons


def test_refuses_a_python_that_the_wheels_are_not_for_and_no_row_brings():
    node = copy.deepcopy(document("1x3090"))
    node["python"]["version"] = "3.14.0"
    host, want = Host.from_document(node), Want.from_data({"engine": "sglang"})
    assert isinstance(decide(host, want, load_matrix()), Plan)
    refusal = decide(host, want, replace(load_matrix(), pythons=()))
    assert isinstance(refusal, Refusal)
    assert "Python: needs 3.11 or 3.12, found 3.14.0" in refusal.reasons


def test_refuses_a_c_library_that_is_too_old():
    refusal = refused("1x3090", {"engine": "sglang"}, setting("glibc", to="2.31"))
    assert "glibc: needs >= 2.34, found 2.31" in refusal.reasons


def test_a_c_library_may_be_too_old_for_the_binaries_of_one_architecture_alone():
    asked, old = {"engine": "vllm"}, setting("glibc", to="2.31")
    assert "glibc: needs >= 2.34, found 2.31" in refused("gb10", asked, old).reasons
    assert planned("1x3090", asked, old).release == "0.33.0"


def test_nvfp4_is_chosen_where_the_card_computes_it():
    assert planned("5090", {"model": "qwen3.6-27b"}).quantization == "nvfp4"
    assert planned("2x3090-pcie", {"model": "qwen3.6-27b"}).quantization == "int4"


def test_a_pinned_cache_that_the_engines_own_backends_lack_takes_one_that_has_it():
    wanted = {"model": "gemma-4-26b", "engine": "vllm", "kv_cache_dtype": "fp8"}
    plan = planned("1x3090", wanted)
    assert (plan.attention_backend, plan.kv_cache_dtype) == ("flashinfer", "fp8_e4m3")
    assert (
        "attention backend flashinfer: holds the pinned fp8_e4m3 cache, and vllm takes it only "
        "if told to"
    ) in plan.reasons
    argv = launch(plan, Layout(), "MODEL", "ENGINE").argv
    assert argv[argv.index("--attention-backend") + 1] == "FLASHINFER"


def test_a_cache_that_nobody_pins_never_leads_to_a_backend_that_the_engine_would_not_take():
    plan = planned("1x3090", {"model": "gemma-4-26b", "engine": "vllm"})
    assert any("by itself" in each for each in plan.reasons)


def test_experts_that_do_not_divide_are_refused_on_ampere():
    wanted = {"model": "gemma-4-26b", "checkpoint": "gemma-4-26b-a4b-int4-autoround"}
    refusal = refused("1x3090", wanted)
    assert any("divide by the group size" in reason for reason in refusal.reasons)
    assert planned("4090", wanted)


# Several cards


def test_equal_cards_share_a_model_by_tensor_parallelism():
    plan = planned("2x3090-nvlink", {"model": "qwen3.6-27b"})
    assert plan.tensor_parallel_size == 2
    assert plan.max_model_len == 262144
    assert [gpu.index for gpu in plan.gpus] == [0, 1]
    assert "custom_all_reduce" not in plan.parameters


def test_links_that_are_unknown_count_as_none():
    plan = planned("2x3090-pcie", {"model": "qwen3.6-27b"})
    assert plan.parameters["custom_all_reduce"] is False
    assert any("[pcie-custom-all-reduce]" in line for line in warnings_of(plan))


def test_unequal_cards_are_not_mixed_by_tensor_parallelism():
    plan = planned("3090-and-4090", {"model": "qwen3.6-27b"})
    assert plan.tensor_parallel_size == 1
    refusal = refused("3090-and-4090", {"engine": "vllm", "gpus": [0, 1]})
    assert any("needs cards of one kind" in reason for reason in refusal.reasons)


def test_llama_cpp_splits_layers_over_unequal_cards():
    plan = planned("3090-and-4090", {"model": "qwen3.6-27b", "engine": "llama.cpp", "gpus": [0, 1]})
    assert len(plan.gpus) == 2
    assert plan.tensor_parallel_size == 1
    assert plan.parameters["tensor_split"].count(",") == 1


def test_refuses_a_tensor_parallel_size_that_does_not_divide():
    def change(node):
        node["gpus"]["devices"] = [
            copy.deepcopy(node["gpus"]["devices"][0]) | {"index": i, "uuid": f"GPU-{i}"}
            for i in range(3)
        ]

    wanted = {"model": "qwen3.6-27b", "engine": "vllm", "tensor_parallel_size": 3}
    refusal = refused("1x3090", wanted, change)
    assert (
        "qwen3.6-27b over cards: needs a tensor parallel size that divides 4 KV heads, found 3"
        in refusal.reasons
    )


def test_pinned_cards_are_the_ones_used():
    plan = planned("2x3090-nvlink", {"model": "qwen3.6-27b", "gpus": [1]})
    assert [gpu.index for gpu in plan.gpus] == [1]


def test_a_pinned_card_that_is_not_there_is_named():
    with pytest.raises(WantError, match="'7' is not on this node, which has 0"):
        decided("1x3090", {"gpus": [7]})


def test_memory_that_others_hold_is_not_planned():
    free_card = planned("1x3090", {"model": "qwen3.6-27b"})
    desktop = planned("1x3090-desktop", {"model": "qwen3.6-27b"})
    taken = free_card.memory.available_bytes - desktop.memory.available_bytes
    assert taken == 1536 * 2**20


def test_a_plan_holds_still_while_its_service_runs():
    idle = planned("1x3090", {"model": "qwen3.6-27b"})

    def running(node):
        device = node["gpus"]["devices"][0]
        device["processes"] = [{"pid": 5, "used_bytes": 21 * GIB}]
        device["memory_free_bytes"] -= 21 * GIB
        node["memory"]["available_bytes"] = 9 * GIB
        node["ours"]["service"] = {
            "unit": "gpuwright-llm.service",
            "active": "active",
            "main_pid": 5,
        }

    assert planned("1x3090", {"model": "qwen3.6-27b"}, running) == idle


def test_a_card_that_others_fill_is_refused_with_what_they_hold():
    def change(node):
        device = node["gpus"]["devices"][0]
        device["processes"] = [{"pid": 9, "used_bytes": 20 * GIB}]

    refusal = refused("1x3090", {"engine": "vllm", "model": "gemma-4-26b"}, change)
    assert any("20.00 GiB held by others" in reason for reason in refusal.reasons)
    assert any("without the 20.00 GiB that others hold" in each for each in refusal.remedies)


@pytest.mark.parametrize("want", WANTS)
def test_a_desktop_beside_our_service_leaves_the_plan_as_it_is(want):
    assert golden("1x3090-desktop-serving", want) == golden("1x3090-desktop", want)


def running(*pids):
    return {"unit": "gpuwright-llm.service", "active": "active", "main_pid": 5, "pids": list(pids)}


def in_use(*, held, processes, service=None, virtualization="none"):
    """A 3090 of whose memory `held` MiB are in use beside the driver's own."""

    def change(node):
        device = node["gpus"]["devices"][0]
        device["memory_free_bytes"] -= held * 2**20
        device["processes"] = processes
        node["virtualization"] = virtualization
        node["ours"]["service"] = service

    return change


def process(pid, used):
    return {"pid": pid, "used_bytes": used and used * 2**20, "kind": "compute"}


QWEN = {"model": "qwen3.6-27b"}


@pytest.mark.parametrize("virtualization", ["none", "lxc", "wsl", "docker"])
@pytest.mark.parametrize("used", [None, 20000])
@pytest.mark.parametrize("desktop", [[], [process(9, 1024)], [process(9, None)], None])
def test_a_plan_never_changes_because_our_service_runs(virtualization, used, desktop):
    """At worst there is a refusal where nobody can say what a plan may take."""
    others = 1024 if desktop else 0
    both = None if desktop is None else [*desktop, process(5, used)]
    idle, serving = (
        decided("1x3090", QWEN, change)
        for change in (
            in_use(held=others, processes=desktop, virtualization=virtualization),
            in_use(
                held=others + 20000,
                processes=both,
                service=running(5),
                virtualization=virtualization,
            ),
        )
    )
    told = not desktop or (desktop[0]["used_bytes"] and used)
    if told or virtualization != "none":
        assert isinstance(idle, Plan)
        assert isinstance(serving, Plan)
    if isinstance(idle, Plan) and isinstance(serving, Plan):
        assert serving == idle


def test_where_processes_cannot_be_told_apart_a_desktops_share_is_left_free():
    alone = planned("1x3090", QWEN)
    for processes, virtualization in ((None, "none"), ([], "wsl"), ([process(5, 9000)], "lxc")):
        change = in_use(held=1400, processes=processes, virtualization=virtualization)
        memory = planned("1x3090", QWEN, change).memory
        assert alone.memory.available_bytes - memory.available_bytes == UNTOLD_BYTES


@pytest.mark.parametrize(
    ("processes", "virtualization", "most"),
    [([], "none", "0.69"), ([process(9, None)], "none", "0.69"), (None, "none", "2.19")],
)
def test_use_that_a_running_service_would_hide_is_refused(processes, virtualization, most):
    change = in_use(held=3072, processes=processes, virtualization=virtualization)
    refusal = refused("1x3090", QWEN, change)
    assert (
        f"GPU 0 (NVIDIA GeForce RTX 3090): needs at most {most} GiB in use by what the driver "
        "gives no size of, found 3.43 GiB"
    ) in refusal.reasons
    assert any("GPU 0 stopped" in remedy for remedy in refusal.remedies)


def test_use_that_no_process_accounts_for_is_not_planned_in_either_state():
    idle = in_use(held=4096, processes=[process(9, 1024)])
    serving = in_use(
        held=4096 + 9000, processes=[process(9, 1024), process(5, 9000)], service=running(5)
    )
    plan = planned("1x3090", QWEN, idle)
    assert plan == planned("1x3090", QWEN, serving)
    taken = planned("1x3090", QWEN).memory.available_bytes - plan.memory.available_bytes
    assert 3072 * 2**20 < taken <= 4096 * 2**20


def test_a_card_that_others_fill_to_the_brim_is_refused():
    change = in_use(held=24100, processes=[process(9, 24100)])
    for engine in ("vllm", "sglang", "llama.cpp"):
        refusal = refused("1x3090", QWEN | {"engine": engine}, change)
        assert any("0.00 GiB can be had" in reason for reason in refusal.reasons)


@pytest.mark.parametrize("size", [0, None])
def test_a_card_without_a_size_is_refused(size):
    refusal = refused("1x3090", QWEN, card(memory_total_bytes=size))
    assert "NVIDIA GeForce RTX 3090: needs a memory size, found unknown" in refusal.reasons


def test_a_pinned_tensor_parallel_size_is_honoured_or_refused():
    refusal = refused("cpu-debian12", {"tensor_parallel_size": 2})
    assert any(reason.endswith("found the CPU alone") for reason in refusal.reasons)
    refusal = refused("1x3090", {"engine": "llama.cpp", "tensor_parallel_size": 2})
    assert any("which splits layers" in reason for reason in refusal.reasons)


# What a plan leaves free


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.sampled_from(RIG_CARDS), min_size=0, max_size=3),
    st.sampled_from([16, 48, 96, 256]),
    st.sampled_from(["qwen3.6-27b", "qwen3.6-35b-a3b", "gemma-4-31b", "gpt-oss-120b", "auto"]),
    st.sampled_from([None, "vllm", "sglang", "llama.cpp", "tensorrt-llm"]),
    st.sampled_from([None, 16384, 131072]),
)
def test_every_device_of_any_rigs_plan_keeps_2_percent(cards, ram, model, engine, context):
    data = {"model": model, "engine": engine, "max_model_len": context}
    said = {key: value for key, value in data.items() if value not in (None, "auto")}
    plan = decided_on(cards, said, memory_gib=ram)
    if not isinstance(plan, Plan):
        return
    outside = plan.figures["reserve_bytes"] - plan.memory.margin_bytes
    assert len(plan.devices) == max(1, len(plan.gpus))
    for each in plan.devices:
        assert (each.margin_bytes + outside) * 100 >= each.available_bytes * 2
    if plan.on_gpu:
        assert plan.ram_bytes * 100 <= ram_memory(ram * GIB).available_bytes * 98
