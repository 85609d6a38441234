"""Memory plans: terms beside the cache, and what must hold for any model and engine."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwright.memory import by_token, coarse, llama_cpp, sglang, vllm, vllm_terms
from gpuwright.memory.request import GIB, DeviceMemory, DraftMemory, Fit
from gpuwright.memory.terms import MIB, Point
from gpuwright.model_rows import LayerGroup
from gpuwright.refusals import Needs, OutOfMemory
from tests.unit.memory_models import (
    FULL,
    GEMMA_12B,
    GEMMA_31B,
    LLAMA_8B,
    QWEN_27B,
    QWEN_235B,
    QWEN_A3B,
    TERMS,
    kv,
    model,
    request,
)

FITS = [vllm.fit, sglang.fit, llama_cpp.fit, coarse.fit]
fits = st.sampled_from(FITS)
memories = st.integers(min_value=GIB, max_value=96 * GIB)
architectures = st.sampled_from(
    [QWEN_27B, QWEN_A3B, GEMMA_31B, GEMMA_12B, LLAMA_8B, model("smollm2-135m-instruct")]
)
near_the_edge = st.integers(min_value=4 * GIB, max_value=8 * GIB)
contexts = st.sampled_from([None, 2048, 8192, 32768])
DRAFTER = DraftMemory(
    weights_bytes=GIB, groups=(LayerGroup(kind=FULL, layers=3, kv_heads=4, head_size=128),)
)
options = st.fixed_dictionaries(
    {},
    optional={
        "draft_tokens": st.integers(min_value=0, max_value=8),
        "draft": st.sampled_from([None, DRAFTER, replace(DRAFTER, groups=None)]),
        "prefix_caching": st.booleans(),
        "state_bytes": st.sampled_from([2, 4]),
        "vision": st.booleans(),
        "must_draft": st.booleans(),
        "max_num_batched_tokens": st.sampled_from([512, 2048, 8192]),
        "terms": st.sampled_from([TERMS["vllm-0.26"], TERMS["vllm-before-0.21"], TERMS["coarse"]]),
    },
)


def test_sglang_pool_holds_the_tokens_that_the_engine_printed():
    per_token = by_token.all_layers_bytes_per_token(QWEN_235B, kv("bf16"), 4)
    assert per_token == 2 * 24064
    assert round(367404 * per_token / 2 / GIB, 2) == 8.23


def test_sglang_pool_is_what_the_static_share_leaves():
    assert sglang.pool_bytes(free_after_weights=10 * GIB, total=24 * GIB, static_share=0.75) == (
        4 * GIB
    )


@given(fits, architectures, memories, options)
def test_a_plan_that_fits_leaves_2_percent_of_its_device(fit, architecture, available, more):
    answer = fit(request(architecture, "bf16", available, **more))
    if isinstance(answer, Fit):
        assert answer.figures.reserve_bytes * 100 >= available * 2
        assert all(term.bytes >= 0 for term in answer.memory.terms)
        assert answer.max_num_seqs >= 1
    else:
        assert answer.needed_bytes > 0


@pytest.mark.parametrize("fit", FITS)
@given(architecture=architectures, available=near_the_edge, context=contexts, more=options)
def test_what_is_short_needs_more_than_can_be_had(fit, architecture, available, context, more):
    answer = fit(request(architecture, "bf16", available, max_model_len=context, **more))
    if not isinstance(answer, Fit):
        assert answer.needed_bytes > answer.available_bytes


@pytest.mark.parametrize("fit", FITS)
@given(architecture=architectures, available=near_the_edge, context=contexts, more=options)
def test_a_context_that_can_be_pinned_is_found_where_none_is_named(
    fit, architecture, available, context, more
):
    asked = request(architecture, "bf16", available, **(more | {"must_draft": True}))
    pinned = fit(replace(asked, max_model_len=context))
    if not isinstance(pinned, Fit) or pinned.below_advice:
        return
    found = fit(asked)
    assert isinstance(found, Fit), found.sentence()
    assert found.max_model_len >= (context or 0)


def test_a_draft_that_nobody_pinned_is_refused_before_its_spare_is_touched():
    more = {"draft_tokens": 3, "draft": DRAFTER, "weights_bytes": 20 * GIB}
    short = llama_cpp.fit(request(GEMMA_31B, "q8_0", 24 * GIB, **more))
    assert isinstance(short, OutOfMemory)
    assert "1.00 GiB beside the draft" in short.sentence()
    assert short.needed_bytes > short.available_bytes
    asked = request(GEMMA_31B, "q8_0", 24 * GIB, must_draft=True, **more)
    planned = llama_cpp.fit(asked)
    most = llama_cpp.fit(replace(asked, max_model_len=262144)).largest_context_tokens
    assert most == short.largest_context_tokens
    assert planned.max_model_len == max(each for each in asked.contexts() if each <= most)
    assert planned.below_advice
    assert "GiB are advised" in planned.warnings[0]


@given(
    st.sampled_from([*FITS, coarse.fit_with_experts_in_ram]),
    st.lists(memories, min_size=1, max_size=4),
    st.integers(min_value=0, max_value=128 * GIB),
    st.integers(min_value=GIB, max_value=80 * GIB),
    st.none() | st.sampled_from([2048, 32768]),
    options,
)
def test_every_device_of_a_plan_keeps_2_percent(fit, rooms, ram, weights, context, more):
    asked = request(
        QWEN_A3B,
        "q8_0" if fit is llama_cpp.fit else "bf16",
        GIB,
        **more,
        weights_bytes=weights,
        expert_bytes=weights * 7 // 8,
        offload=True,
        ram_bytes=ram,
        ram_available_bytes=ram,
        max_model_len=context,
    )
    devices = tuple(
        DeviceMemory(name=f"GPU {index}", total_bytes=room, available_bytes=room * 15 // 16)
        for index, room in enumerate(rooms)
    )
    answer = fit(replace(asked, devices=devices))
    if not isinstance(answer, Fit):
        return
    outside = answer.figures.reserve_bytes - answer.memory.margin_bytes
    assert [each.where for each in answer.devices] == [each.name for each in devices]
    for each in answer.devices:
        assert (each.margin_bytes + outside) * 100 >= each.available_bytes * 2
    layers = answer.cpu_expert_layers
    if layers:
        assert weights * 7 // 8 * layers // QWEN_A3B.layers * 100 <= ram * 98


@given(fits, architectures, memories, memories, options)
def test_more_memory_never_gives_less_context(fit, architecture, one, other, more):
    small, large = (
        fit(request(architecture, "bf16", size, **more)) for size in sorted((one, other))
    )
    if isinstance(small, Fit):
        assert isinstance(large, Fit)
        assert small.max_model_len <= large.max_model_len


@given(fits, architectures, memories, options)
def test_a_second_card_never_gives_less_context(fit, architecture, available, more):
    one, two = (
        fit(request(architecture, "bf16", available, count, weights_bytes=16 * GIB, **more))
        for count in (1, 2)
    )
    if isinstance(one, Fit):
        assert isinstance(two, Fit)
        assert one.max_model_len <= two.max_model_len


@pytest.mark.parametrize("fit", FITS)
def test_a_pinned_context_that_does_not_fit_names_one_that_does(fit):
    asked = request(QWEN_27B, "bf16", 12 * GIB, max_model_len=262144)
    short = fit(asked)
    assert isinstance(short, OutOfMemory)
    assert short.needed_bytes > short.available_bytes
    best = short.largest_context_tokens
    assert best is not None
    assert isinstance(fit(replace(asked, max_model_len=best, max_num_seqs=1)), Fit)


def test_a_pinned_number_of_requests_is_refused_rather_than_lowered():
    short = vllm.fit(request(QWEN_27B, "bf16", 24 * GIB, max_num_seqs=512))
    assert isinstance(short, OutOfMemory)
    assert "512 requests" in short.sentence()


@pytest.mark.parametrize("fit", FITS)
def test_a_device_of_which_nothing_is_left_is_a_shortage(fit):
    asked = request(LLAMA_8B, "bf16", 24 * GIB)
    for device in (
        DeviceMemory(name="GPU", total_bytes=0, available_bytes=0),
        DeviceMemory(name="GPU", total_bytes=24 * GIB, available_bytes=0),
    ):
        short = fit(replace(asked, devices=(device,)))
        assert isinstance(short, OutOfMemory)
        assert short.needed_bytes > 0


def term(fit, name):
    return sum(each.bytes for each in fit.memory.terms if each.name == name)


@given(fits, architectures, memories, options)
def test_the_figures_of_a_plan_are_those_of_its_terms(fit, architecture, available, more):
    answer = fit(request(architecture, "bf16", available, **more))
    if not isinstance(answer, Fit):
        return
    figures = answer.figures
    assert figures.weights_bytes == term(answer, "weights")
    assert figures.kv_cache_bytes == term(answer, "KV cache")
    assert figures.reserve_bytes >= 0
    assert figures.bytes_per_token > 0
    assert figures.kv_cache_tokens >= answer.max_model_len
    assert figures.max_concurrency >= 1
    if figures.num_blocks is not None:
        assert figures.num_blocks > 0
        assert figures.kv_cache_bytes % figures.num_blocks == 0


def test_before_0_21_graphs_come_on_top_of_the_share():
    before, after = (
        vllm.fit(
            request(
                LLAMA_8B, "bf16", 24 * GIB, weights_bytes=15 * GIB, terms=TERMS[name], share=0.9
            )
        )
        for name in ("vllm-before-0.21", "vllm-0.21")
    )
    graphs = term(before, "CUDA graphs")
    assert graphs == term(after, "CUDA graphs") > 0
    more = before.figures.num_blocks - after.figures.num_blocks
    assert more == pytest.approx(graphs / (16 * 131072), abs=1)


def test_a_hybrid_that_drafts_keeps_3_gib_for_prompts_whatever_the_batch():
    small, whole, drafting = (
        vllm.fit(
            request(QWEN_27B, "fp8_e4m3", 40 * GIB, max_num_batched_tokens=batch, draft_tokens=k)
        )
        for batch, k in ((2048, 0), (8192, 0), (2048, 3))
    )
    assert [term(each, "prompt workspace") / MIB for each in (small, whole, drafting)] == [
        768,
        3072,
        3072,
    ]


def test_images_and_a_drafter_take_their_part_of_a_card():
    plain, more = (
        vllm.fit(request(LLAMA_8B, "bf16", 40 * GIB, **each))
        for each in ({}, {"vision": True, "draft": DRAFTER, "draft_tokens": 3})
    )
    assert term(more, "drafter") == GIB
    assert term(more, "activations") == term(plain, "activations") + 1844 * MIB
    assert term(more, "CUDA graphs") == term(plain, "CUDA graphs") + 2048 * MIB
    assert more.figures.num_blocks < plain.figures.num_blocks


def test_a_drafter_whose_layers_nobody_read_costs_a_part_of_the_pool():
    known, unread = (
        vllm.fit(request(QWEN_27B, "bf16", 48 * GIB, draft_tokens=5, draft=draft))
        for draft in (replace(DRAFTER, groups=()), replace(DRAFTER, groups=None))
    )
    # A drafter that attends the model's cache has no graphs of its own either.
    graphs = term(unread, "CUDA graphs") - term(known, "CUDA graphs")
    assert graphs == TERMS["vllm-0.26"].draft_graphs_mib * MIB
    lost = 1 - unread.figures.kv_cache_bytes / (known.figures.kv_cache_bytes - graphs)
    assert lost == pytest.approx(0.22, abs=0.01)


def test_a_pinned_context_takes_a_smaller_reserve_where_it_fits_no_other_way():
    def fitted(**pins):
        return vllm.fit(request(QWEN_27B, "fp8_e4m3", 32 * GIB, draft_tokens=3, **pins))

    free = fitted()
    most = fitted(max_model_len=1 << 24).largest_context_tokens
    pinned = fitted(max_model_len=most)
    assert isinstance(fitted(max_model_len=most + 4096), OutOfMemory)
    assert (free.below_advice, pinned.below_advice) == (False, True)
    assert pinned.figures.reserve_bytes < free.figures.reserve_bytes
    assert any("outside the pool" in line for line in pinned.warnings)
    assert not any("outside the pool" in line for line in free.warnings)


@pytest.mark.parametrize(
    ("fit", "terms", "room"), [(vllm.fit, "vllm-0.26", 23), (sglang.fit, "sglang", 24)]
)
def test_a_pinned_draft_takes_a_smaller_reserve_where_it_fits_no_other_way(fit, terms, room):
    def fitted(**pins):
        pins |= {"weights_bytes": 18 * GIB, "draft_tokens": 3, "terms": TERMS[terms]}
        return fit(request(QWEN_27B, "fp8_e4m3", room * GIB, **pins))

    assert isinstance(fitted(), OutOfMemory)
    planned = fitted(must_draft=True)
    assert planned.below_advice
    assert "GiB are advised" in planned.warnings[0]


def test_a_pinned_context_has_fewer_tokens_a_step_where_windows_need_it():
    def fitted(**pins):
        return vllm.fit(request(GEMMA_31B, "bf16", 32 * GIB, max_num_batched_tokens=4096, **pins))

    most = fitted(max_model_len=1 << 18).largest_context_tokens
    fewer = fitted(max_model_len=most + 4096, steps_may_shrink=True)
    assert isinstance(fitted(max_model_len=most + 4096), OutOfMemory)
    assert fewer.parameters["max_num_batched_tokens"] in (1024, 2048)
    assert (
        fitted(max_model_len=2048, steps_may_shrink=True).parameters["max_num_batched_tokens"]
        == 4096
    )


def test_a_measured_term_is_straight_between_points_and_flat_outside():
    terms = replace(TERMS["vllm-0.26"], activation=(Point(at=100, mib=10), Point(at=200, mib=30)))
    sizes = [terms.activation_bytes(tokens) // MIB for tokens in (1, 100, 150, 200, 10**6)]
    assert sizes == [10, 10, 20, 30, 30]


def test_sglang_graphs_follow_the_requests_and_leave_the_card_comfortable():
    few, many = (
        sglang.fit(
            request(LLAMA_8B, "bf16", 32 * GIB, terms=TERMS["sglang"], target_num_seqs=count)
        )
        for count in (4, 256)
    )
    assert term(many, "workspace") - term(few, "workspace") == (5120 - 308) * MIB
    assert few.warnings == ()
    assert few.memory.margin_bytes >= 0.06 * 32 * GIB


def test_sglang_sets_states_aside_before_its_cache():
    fit = sglang.fit(request(QWEN_27B, "bf16", 40 * GIB, state_bytes=2, max_num_seqs=4))
    assert term(fit, "linear states") == 5 * fit.figures.state_bytes_per_sequence
    assert fit.parameters["linear_state_slots"] == 5


def test_a_coarse_plan_says_that_it_is_one():
    fit = coarse.fit(request(LLAMA_8B, "bf16", 48 * GIB, terms=TERMS["coarse"]))
    assert coarse.UNVERIFIED in fit.warnings
    left = 48 * GIB - term(fit, "weights") - term(fit, "workspace")
    assert term(fit, "KV cache") == pytest.approx(left * 0.9, abs=131072)


def test_experts_in_ram_leave_the_dense_part_on_the_card():
    terms = TERMS["coarse-experts-in-ram"]
    asked = request(
        QWEN_A3B,
        "bf16",
        24 * GIB,
        terms=terms,
        weights_bytes=70 * GIB,
        expert_bytes=64 * GIB,
        ram_available_bytes=100 * GIB,
    )
    fit = coarse.fit_with_experts_in_ram(asked)
    assert term(fit, "weights") == 6 * GIB
    short = coarse.fit_with_experts_in_ram(replace(asked, ram_available_bytes=60 * GIB))
    assert isinstance(short, OutOfMemory)
    assert short.where == "RAM"
    dense = coarse.fit_with_experts_in_ram(replace(asked, expert_bytes=0))
    assert isinstance(dense, Needs)


@pytest.mark.parametrize("fit", [vllm.fit, sglang.fit, coarse.fit])
def test_a_model_without_a_formula_is_planned_where_it_was_measured(fit):
    asked = request(model("deepseek-v4-flash"), "nvfp4", 200 * GIB, engine="vllm")
    answer = fit(asked)
    if fit is vllm.fit:
        assert answer.figures.bytes_per_token == 4700
        assert answer.figures.num_blocks is None
        answer = fit(replace(asked, kv=kv("bf16")))
    assert isinstance(answer, Needs)


@pytest.mark.parametrize(("tokens", "printed_gib"), [(30_000, 6.66), (121_344, 7.7)])
def test_an_fp8_cache_of_deepseek_takes_what_two_reports_printed(tokens, printed_gib):
    pool = vllm_terms.layout(
        request(model("deepseek-v4-flash"), "fp8_e4m3", 96 * GIB, engine="vllm")
    )
    assert pool.need(tokens) == pytest.approx(printed_gib * GIB, rel=0.003)


def test_a_cache_that_is_pinned_to_a_share_takes_no_other():
    fit = vllm.fit(request(LLAMA_8B, "bf16", 80 * GIB, share=0.5))
    assert fit.parameters["gpu_memory_utilization"] == "0.50"
    assert fit.memory.needed_bytes <= 40 * GIB
