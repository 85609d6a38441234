"""llama.cpp: figures of public logs, layers over cards, experts in RAM."""

from bisect import bisect_right
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwright.memory import llama_cpp, llama_cpp_rates
from gpuwright.memory.request import GIB, MIB, DeviceMemory, DraftMemory, Fit, comfort_bytes
from gpuwright.memory.split import layer_split
from gpuwright.model_rows import LayerGroup
from gpuwright.refusals import OutOfMemory
from tests.unit.memory_models import (
    FULL,
    GEMMA_12B,
    LLAMA_8B,
    QWEN_27B,
    QWEN_A3B,
    kv,
    model,
    request,
)


def test_llama_cpp_context_from_128k_to_256k_costs_2944_mib():
    rates = llama_cpp_rates.rates(QWEN_27B, kv("q4_0"))
    token = llama_cpp_rates.draft_token_bytes(QWEN_27B, kv("q4_0"), ())

    def cost(tokens):
        return rates.cache(tokens, 1) + rates.buffers(tokens)

    delta = cost(262144) - cost(131072)
    assert delta == 2944 * MIB
    assert delta + rates.draft(token, 262144) - rates.draft(token, 131072) == 3584 * MIB


def test_llama_cpp_keeps_saved_states_within_an_eighth_of_the_ram():
    size = llama_cpp_rates.checkpoint_bytes(llama_cpp_rates.rates(QWEN_27B, kv("f16")))
    assert size == 153944064
    for ram in (8 * GIB, 24 * GIB, 256 * GIB):
        kept = llama_cpp_rates.context_checkpoints(size, 2, ram)
        assert 0 < kept <= 8
        assert kept * 2 * size <= ram // 8
    nothing = llama_cpp_rates.checkpoint_bytes(llama_cpp_rates.rates(LLAMA_8B, kv("f16")))
    assert llama_cpp_rates.context_checkpoints(nothing, 2, 24 * GIB) == 0


def test_llama_cpp_logits_of_the_27b_take_485_mib():
    assert llama_cpp_rates.rates(QWEN_27B, kv("f16")).buffers(0) // MIB == 485


def test_llama_cpp_reckons_with_what_the_engine_makes_of_a_context():
    asked, rounded = (
        llama_cpp.fit(request(LLAMA_8B, "f16", 24 * GIB, max_model_len=tokens))
        for tokens in (1000, 1024)
    )
    assert (asked.max_model_len, rounded.max_model_len) == (1000, 1024)
    assert asked.memory == rounded.memory


def test_llama_cpps_prompt_cache_changes_between_the_sizes_that_machines_have():
    changes = [
        size
        for size in range(GIB, 64 * GIB, GIB // 4)
        if llama_cpp_rates.prompt_cache_bytes(size) != llama_cpp_rates.prompt_cache_bytes(size - 1)
    ]
    assert changes == [size * GIB for size in (2, 6, 10, 14, 18, 22, 26, 30)]


def test_llama_cpp_gives_up_slots_before_a_pinned_context():
    asked = request(QWEN_27B, "f16", 16 * GIB, max_model_len=131072, ram_bytes=64 * GIB)
    fit = llama_cpp.fit(asked)
    assert isinstance(fit, Fit)
    assert (fit.max_model_len, fit.max_num_seqs) == (131072, 1)
    short = llama_cpp.fit(replace(asked, max_num_seqs=2))
    assert isinstance(short, OutOfMemory)
    best = short.largest_context_tokens
    assert isinstance(llama_cpp.fit(replace(asked, max_num_seqs=2, max_model_len=best)), Fit)


def test_llama_cpp_gives_up_slots_before_the_workloads_context():
    roomy = llama_cpp.fit(request(LLAMA_8B, "f16", 48 * GIB))
    tight = llama_cpp.fit(request(LLAMA_8B, "f16", 10 * GIB))
    assert isinstance(roomy, Fit)
    assert isinstance(tight, Fit)
    assert roomy.max_num_seqs == 4
    assert tight.max_num_seqs < 4
    assert tight.max_model_len >= 32768


def term(fit, name):
    return sum(each.bytes for each in fit.memory.terms if each.name == name)


def test_a_draft_of_the_model_keeps_f16_whatever_the_cache():
    plain, drafting = (
        llama_cpp.fit(request(QWEN_27B, "q4_0", 40 * GIB, draft_tokens=k, max_model_len=131072))
        for k in (0, 3)
    )
    slots = drafting.max_num_seqs
    assert term(plain, "draft") == 0
    assert term(drafting, "draft") == 131072 * slots * (4096 + 1024) + 248320 * 512 * 4


def test_a_drafter_and_images_stand_on_the_main_card():
    more = {
        "draft": DraftMemory(
            weights_bytes=GIB, groups=(LayerGroup(kind=FULL, layers=1, kv_heads=8, head_size=64),)
        ),
        "projector_bytes": 930 * MIB,
        "max_model_len": 8192,
    }
    fit = llama_cpp.fit(request(LLAMA_8B, "f16", 24 * GIB, 2, **more))
    assert fit.memory.where == "GPU"
    assert term(fit, "drafter and images") == GIB + 930 * MIB + llama_cpp_rates.IMAGE_BYTES
    assert term(fit, "draft") == 8192 * 4 * (8 * 64 * 2 * 2 + 1024) + 128256 * 512 * 4
    for name, without in (("drafter", "projector_bytes"), ("images", "draft")):
        alone = {key: value for key, value in more.items() if key != without}
        fit = llama_cpp.fit(request(LLAMA_8B, "f16", 24 * GIB, 2, **alone))
        assert term(fit, name) > 0
        assert not term(fit, "drafter and images")


def test_windows_keep_no_more_than_they_see():
    rates = llama_cpp_rates.rates(GEMMA_12B, kv("f16"))
    growth = rates.cache(131072, 1) - rates.cache(65536, 1)
    assert growth == 65536 * 16384
    assert rates.cache(65536, 1) - 65536 * 16384 == 327680 * (1024 + 512)


def test_layers_are_split_by_the_room_of_each_card():
    cards = tuple(
        DeviceMemory(name=name, total_bytes=size * GIB, available_bytes=size * GIB)
        for name, size in (("large", 24), ("small", 8))
    )
    asked = request(QWEN_27B, "q8_0", 24 * GIB, weights_bytes=18 * GIB, devices=cards)
    fit = llama_cpp.fit(asked)
    large, small = fit.devices
    assert (large.where, small.where) == ("large", "small")
    assert large.bytes_of("weights") == pytest.approx(3 * small.bytes_of("weights"), rel=0.1)
    assert large.bytes_of("weights") + small.bytes_of("weights") <= 18 * GIB
    assert fit.memory in fit.devices
    assert fit.max_model_len >= 32768
    small = llama_cpp.fit(replace(asked, devices=cards[1:]))
    assert isinstance(small, OutOfMemory)


def test_what_stands_behind_the_layers_is_the_last_cards():
    output = LLAMA_8B.output_bytes(6560)
    assert output == 128256 * 4096 * 6560 // 8000
    asked = request(
        LLAMA_8B, "f16", 24 * GIB, 2, weights_bytes=8 * GIB, max_model_len=8192, max_num_seqs=1
    )
    layer = (8 * GIB - output) // LLAMA_8B.layers
    first, last = llama_cpp.fit(replace(asked, output_bytes=output)).devices
    # Half of all bytes ends in the 17th of 32 layers, behind its middle.
    assert first.bytes_of("weights") == 17 * layer
    assert last.bytes_of("weights") == 15 * layer + output
    logits = 128256 * 512 * 4
    assert last.bytes_of("compute buffers") - first.bytes_of("compute buffers") == logits


def test_the_models_own_draft_layers_are_the_last_cards():
    first, last = llama_cpp.fit(
        request(QWEN_27B, "q4_0", 24 * GIB, 2, draft_tokens=3, max_model_len=65536)
    ).devices
    assert first.bytes_of("draft") == 0
    assert last.bytes_of("draft") > 0


@given(
    st.lists(st.integers(min_value=1, max_value=GIB), min_size=1, max_size=80),
    st.lists(st.integers(min_value=1, max_value=100), min_size=1, max_size=4),
    st.integers(min_value=0, max_value=4 * GIB),
)
def test_every_layer_stands_on_one_card_and_none_has_more_than_its_part(sizes, rooms, tail):
    counts = layer_split([(1, size) for size in sizes], rooms, tail)
    assert sum(counts) == len(sizes)
    assert min(counts) >= 0
    first = 0
    for index, count in enumerate(counts):
        part = sum(sizes[first : first + count])
        share = (sum(sizes) + tail) * rooms[index] / sum(rooms)
        # A layer at either end may stand on the card by half.
        assert part <= share + max(sizes) + 1
        first += count


def dealt(layers, tensor_split):
    """Layers of each device as the engine deals `layers` and an output behind them: where a layer's
    number, as a part of all, falls in the running sum of the shares."""
    shares = [int(word) for word in tensor_split.split(",")]
    bounds = [sum(shares[: index + 1]) / sum(shares) for index in range(len(shares))]
    counts = [0] * len(shares)
    for layer in range(layers + 1):
        counts[bisect_right(bounds, layer / (layers + 1))] += 1
    return counts


@given(st.lists(st.integers(min_value=6, max_value=48), min_size=2, max_size=4), st.booleans())
def test_the_engine_deals_layers_as_the_plan_has_them(rooms, drafts_inside):
    cards = tuple(
        DeviceMemory(name="GPU", total_bytes=size * GIB, available_bytes=size * GIB)
        for size in rooms
    )
    fit = llama_cpp.fit(request(QWEN_27B, "q8_0", GIB, weights_bytes=6 * GIB, devices=cards))
    layer = 6 * GIB // QWEN_27B.layers
    planned = [each.bytes_of("weights") // layer for each in fit.devices]
    more = QWEN_27B.mtp_layers if drafts_inside else 0
    counts = dealt(QWEN_27B.layers + more, fit.parameters["tensor_split"])
    assert counts[:-1] == planned[:-1]
    assert counts[-1] == planned[-1] + more + 1


def test_a_server_that_keeps_no_prompts_has_no_ram_for_them():
    kept, none = (
        llama_cpp.fit(request(QWEN_27B, "f16", 48 * GIB, ram_bytes=64 * GIB, prefix_caching=on))
        for on in (True, False)
    )
    names = "prompt_cache_mib", "context_checkpoints"
    assert [kept.parameters[name] for name in names] == [2048, 8]
    assert [none.parameters[name] for name in names] == [0, 0]


def offloading(available, ram, count=1, **more):
    return request(
        QWEN_A3B,
        "q8_0",
        available,
        count,
        weights_bytes=23 * GIB,
        expert_bytes=20 * GIB,
        offload=True,
        ram_bytes=ram,
        ram_available_bytes=ram,
        **more,
    )


def test_experts_stay_in_ram_only_where_the_card_does_not_hold_them():
    roomy, tight = (llama_cpp.fit(offloading(size * GIB, 64 * GIB)) for size in (48, 16))
    assert "cpu_expert_layers" not in roomy.parameters
    assert 0 < tight.parameters["cpu_expert_layers"] <= 40
    assert tight.max_model_len >= 32768
    assert term(tight, "weights") < 16 * GIB
    barred = llama_cpp.fit(replace(offloading(16 * GIB, 64 * GIB), offload=False))
    assert isinstance(barred, OutOfMemory)


def test_as_few_layers_as_the_card_needs_leave_their_experts():
    asked = offloading(16 * GIB, 64 * GIB, max_model_len=32768, max_num_seqs=1)
    fit = llama_cpp.fit(asked)
    fewer = fit.parameters["cpu_expert_layers"] - 1
    one = 20 * GIB // 40
    assert term(fit, "weights") == 23 * GIB - one * (fewer + 1)
    free = fit.memory.margin_bytes
    assert free >= comfort_bytes(16 * GIB) > free - one


def test_experts_that_neither_card_nor_ram_holds_are_a_shortage_of_ram():
    short = llama_cpp.fit(offloading(8 * GIB, 8 * GIB))
    assert isinstance(short, OutOfMemory)
    assert short.where == "RAM"
    assert short.needed_bytes > short.available_bytes


def test_cards_share_what_is_left_when_the_first_layers_leave_their_experts():
    fit = llama_cpp.fit(offloading(8 * GIB, 64 * GIB, 2))
    assert isinstance(fit, Fit)
    first, second = (int(count) for count in fit.parameters["tensor_split"].split(","))
    assert first + second == 40 + 1 + QWEN_A3B.mtp_layers
    # The first card has the layers without their experts, so more of them.
    assert first > second


@given(
    st.integers(min_value=4, max_value=40),
    st.integers(min_value=4, max_value=40),
    st.sampled_from([1, 2, 3]),
)
def test_more_memory_never_leaves_more_experts_in_ram(one, other, count):
    small, large = (
        llama_cpp.fit(offloading(size * GIB, 96 * GIB, count, max_model_len=16384))
        for size in sorted((one, other))
    )
    if isinstance(small, Fit):
        assert isinstance(large, Fit)
        kept = [fit.parameters.get("cpu_expert_layers", 0) for fit in (small, large)]
        assert kept[0] >= kept[1]
        for fit in (small, large):
            assert fit.memory.margin_bytes >= 0


def test_a_cache_without_a_formula_costs_what_was_measured():
    deepseek = model("deepseek-v4-flash")
    fit = llama_cpp.fit(request(deepseek, "q8_0", 200 * GIB, max_model_len=65536, max_num_seqs=1))
    assert term(fit, "KV cache") == 65536 * 11776
    assert fit.figures.bytes_per_token == 11776
    refused = llama_cpp.fit(request(deepseek, "q4_0", 200 * GIB))
    assert "measured" in refused.sentence()
