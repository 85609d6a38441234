"""Pools as engines printed them, and what must hold for any model."""

from dataclasses import replace
from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwright.load import load_matrix
from gpuwright.memory import llama_cpp, llama_cpp_rates, sglang, vllm
from gpuwright.memory.layers import kv_bytes_per_token, linear_state_bytes
from gpuwright.memory.pool import CPU_BLOCK_MULTIPLE
from gpuwright.memory.pool import pool as make_pool
from gpuwright.memory.request import GIB, MIB, DeviceMemory, Fit, MemoryRequest
from gpuwright.model_rows import Architecture, LayerGroup, LayerKind
from gpuwright.refusals import OutOfMemory

MATRIX = load_matrix()
TERMS = {row.id: row for row in MATRIX.memory_terms}
FULL, SLIDING, LINEAR, MLA = LayerKind.FULL, LayerKind.SLIDING, LayerKind.LINEAR, LayerKind.MLA


def model(name):
    return next(row.architecture for row in MATRIX.models if row.id == name)


def kv(name):
    return MATRIX.kv_cache_dtype(name)


QWEN_27B = model("qwen3.6-27b")
QWEN_A3B = model("qwen3.6-35b-a3b")
GEMMA_31B = Architecture(
    attention_heads=32,
    hidden_size=5376,
    vocabulary=262144,
    groups=(
        LayerGroup(kind=FULL, layers=10, kv_heads=4, head_size=512),
        LayerGroup(kind=SLIDING, layers=50, kv_heads=16, head_size=256, window=1024),
    ),
)
GEMMA_12B = Architecture(
    attention_heads=16,
    hidden_size=3840,
    vocabulary=262144,
    groups=(
        LayerGroup(kind=FULL, layers=8, kv_heads=1, head_size=512),
        LayerGroup(kind=SLIDING, layers=40, kv_heads=8, head_size=256, window=1024),
    ),
)
LLAMA_8B = Architecture(
    attention_heads=32,
    hidden_size=4096,
    vocabulary=128256,
    groups=(LayerGroup(kind=FULL, layers=32, kv_heads=8, head_size=128),),
)


def printed(pool, gib, tokens, max_model_len):
    """Some pool inside a printed GiB's rounding gives the printed number of tokens."""
    low, high = int((gib - 0.005) * GIB), int((gib + 0.005) * GIB)
    return tokens in {
        pool.tokens(size, max_model_len) for size in range(low, high + 1, pool.block_bytes // 8)
    } | {pool.tokens(low, max_model_len), pool.tokens(high, max_model_len)}


@pytest.mark.parametrize(
    ("architecture", "dtype", "size", "draft", "prefix", "gib", "max_model_len", "tokens"),
    [
        (QWEN_27B, "fp8_e5m2", 2, 3, True, 10.85, 262144, 612157),
        (QWEN_27B, "fp8_e4m3", 2, 3, True, 5.33, 262144, 300220),
        (QWEN_27B, "fp8_e4m3", 2, 0, True, 4.99, 131072, 302921),
        (QWEN_27B, "fp8_e4m3", 2, 3, True, 11.05, 262144, 623873),
        (QWEN_27B, "fp8_e4m3", 2, 3, False, 14.68, 262144, 841541),
        (QWEN_A3B, "fp8_e4m3", 1, 0, True, 5.98, 131072, 567978),
    ],
)
def test_vllm_hybrid_pool_is_what_the_engine_printed(
    architecture, dtype, size, draft, prefix, gib, max_model_len, tokens
):
    pool = make_pool(architecture, kv(dtype), size, draft_tokens=draft, prefix_caching=prefix)
    assert printed(pool, gib, tokens, max_model_len)


@pytest.mark.parametrize(
    ("architecture", "dtype", "draft", "tokens"),
    [
        (QWEN_27B, "bf16", 0, 784),
        (QWEN_27B, "fp8_e4m3", 0, 1568),
        (QWEN_27B, "fp8_e4m3", 3, 1600),
        (QWEN_A3B, "fp8_e4m3", 0, 2096),
    ],
)
def test_vllm_hybrid_block_is_as_long_as_a_state(architecture, dtype, draft, tokens):
    assert make_pool(architecture, kv(dtype), 1, draft_tokens=draft).block_tokens == tokens


def test_vllm_27b_nvfp4_pool_holds_the_requests_that_the_engine_printed():
    pool = make_pool(QWEN_27B, kv("fp8_e4m3"), 1)
    blocks = pool.blocks(int(6.67 * GIB))
    assert blocks == 139
    # Releases before 0.21 printed blocks over groups times block.
    assert blocks // 4 * pool.block_tokens == 53312
    assert floor(blocks / pool.need(32768) * 100) == 514


def test_vllm_sliding_window_pool_is_what_the_engine_printed():
    pool = make_pool(
        GEMMA_31B, kv("int8_per_token_head"), 2, max_num_batched_tokens=4096, fill_pages=True
    )
    assert pool.need(262144) == 9797
    assert 17449 * 262144 // pool.need(262144) == 466892
    assert pool.blocks(int((10.82 - 0.005) * GIB)) <= 17449 <= pool.blocks(int(10.825 * GIB))
    assert printed(pool, 10.82, 466892, 262144)


def test_vllm_sliding_window_pool_with_one_global_head_is_what_the_engine_printed():
    pool = make_pool(GEMMA_12B, kv("bf16"), 2, max_num_batched_tokens=4096)
    assert pool.need(131072) == 5701
    assert printed(pool, 8.16, 384019, 131072)


def test_vllm_full_attention_pool_is_what_the_engine_printed():
    pool = make_pool(LLAMA_8B, kv("bf16"), 1)
    assert pool.block_bytes == 16 * 131072
    assert pool.blocks(int(3.8125 * GIB)) == 1952
    assert pool.blocks(int(2.885 * GIB)) <= 1478 <= pool.blocks(int(2.895 * GIB))


def test_vllm_latent_attention_pool_does_not_divide_by_tensor_parallelism():
    latent = Architecture(
        attention_heads=8,
        hidden_size=512,
        vocabulary=1024,
        groups=(LayerGroup(kind=MLA, layers=2, latent_size=512, rope_size=64),),
    )
    one, two = (make_pool(latent, kv("bf16"), size) for size in (1, 2))
    assert one == two
    assert one.block_tokens == 16
    # 1 GiB over 2 layers of 576 elements in 16 bits: what the CPU build printed.
    assert one.tokens(GIB, 16) == 466032


def test_vllm_cpu_build_rounds_a_hybrid_block_to_its_own_multiple():
    tiny = Architecture(
        attention_heads=4,
        hidden_size=512,
        vocabulary=1024,
        groups=(
            LayerGroup(kind=FULL, layers=2, kv_heads=2, head_size=256),
            LayerGroup(kind=LINEAR, layers=6, key_heads=4, value_heads=8, head_size=128),
        ),
    )
    pool = make_pool(tiny, kv("bf16"), 1, multiple=CPU_BLOCK_MULTIPLE)
    assert pool.block_tokens == 384
    assert pool.blocks(GIB) == 682
    assert pool.need(4096) == 17
    assert pool.tokens(GIB, 4096) == 164321


def test_state_of_a_27b_sequence_is_146_8_mib():
    linear = QWEN_27B.of(LINEAR)[0]
    assert linear_state_bytes(linear, 1) == 3207168
    assert linear_state_bytes(linear, 1) * linear.layers == 153944064


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


def test_sglang_pool_holds_the_tokens_that_the_engine_printed():
    qwen_235b = Architecture(
        attention_heads=64,
        hidden_size=4096,
        vocabulary=151936,
        groups=(LayerGroup(kind=FULL, layers=94, kv_heads=4, head_size=128),),
    )
    per_token = sglang.token_bytes(qwen_235b, kv("bf16"), 4)
    assert per_token == 2 * 24064
    assert round(367404 * per_token / 2 / GIB, 2) == 8.23


def test_sglang_pool_is_what_the_static_share_leaves():
    assert sglang.pool_bytes(free_after_weights=10 * GIB, total=24 * GIB, static_share=0.75) == (
        4 * GIB
    )


architectures = st.sampled_from(
    [QWEN_27B, QWEN_A3B, GEMMA_31B, GEMMA_12B, LLAMA_8B, model("smollm2-135m-instruct")]
)
vllm_dtypes = st.sampled_from(["bf16", "fp8_e4m3", "int8_per_token_head"])
contexts = st.integers(min_value=1, max_value=1 << 20)


@given(architectures, vllm_dtypes, st.sampled_from([1, 2, 4]), contexts, contexts)
def test_a_longer_request_never_needs_fewer_blocks(architecture, dtype, size, one, other):
    pool = make_pool(architecture, kv(dtype), size)
    assert pool.need(min(one, other)) <= pool.need(max(one, other))
    assert pool.need(1) > 0


@given(architectures, vllm_dtypes)
def test_more_cards_never_hold_more_of_a_token_each(architecture, dtype):
    for group in architecture.groups:
        if group.kind is LINEAR:
            sizes = [linear_state_bytes(group, size) for size in (1, 2, 4)]
        else:
            sizes = [kv_bytes_per_token(group, kv(dtype), size) for size in (1, 2, 4)]
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[-1] > 0


def request(architecture, dtype, available, count=1, **more):
    device = DeviceMemory(name="GPU", total_bytes=available, available_bytes=available)
    values = {
        "architecture": architecture,
        "kv": kv(dtype),
        "weights_bytes": 4 * GIB,
        "devices": (device,) * count,
        "on_gpu": True,
        "model_context_tokens": 262144,
        "target_context_tokens": 32768,
        "target_num_seqs": 4,
        "max_num_batched_tokens": 2048,
        "terms": TERMS["vllm-0.26"],
    }
    return MemoryRequest(**values | more)


fits = st.sampled_from([vllm.fit, sglang.fit, llama_cpp.fit])
memories = st.integers(min_value=GIB, max_value=96 * GIB)


@given(fits, architectures, memories)
def test_a_plan_that_fits_stays_inside_its_device(fit, architecture, available):
    answer = fit(request(architecture, "bf16", available))
    if isinstance(answer, Fit):
        assert answer.memory.margin_bytes >= 0
        assert all(term.bytes >= 0 for term in answer.memory.terms)
        assert answer.max_num_seqs >= 1
    else:
        assert answer.needed_bytes > 0


@given(fits, architectures, memories, memories)
def test_more_memory_never_gives_less_context(fit, architecture, one, other):
    small, large = (fit(request(architecture, "bf16", size)) for size in sorted((one, other)))
    if isinstance(small, Fit):
        assert isinstance(large, Fit)
        assert small.max_model_len <= large.max_model_len


@given(st.sampled_from([vllm.fit, sglang.fit]), architectures, memories)
def test_a_second_card_never_gives_less_context(fit, architecture, available):
    one = fit(request(architecture, "bf16", available, weights_bytes=16 * GIB))
    two = fit(request(architecture, "bf16", available, 2, weights_bytes=16 * GIB))
    if isinstance(one, Fit):
        assert isinstance(two, Fit)
        assert one.max_model_len <= two.max_model_len


@pytest.mark.parametrize("fit", [vllm.fit, sglang.fit, llama_cpp.fit])
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


def test_llama_cpp_reckons_with_what_the_engine_makes_of_a_context():
    asked, rounded = (
        llama_cpp.fit(request(LLAMA_8B, "f16", 24 * GIB, max_model_len=tokens))
        for tokens in (1000, 1024)
    )
    assert (asked.max_model_len, rounded.max_model_len) == (1000, 1024)
    assert asked.memory == rounded.memory


@pytest.mark.parametrize("fit", [vllm.fit, sglang.fit, llama_cpp.fit])
def test_a_device_of_which_nothing_is_left_is_a_shortage(fit):
    asked = request(LLAMA_8B, "bf16", 24 * GIB)
    for device in (
        DeviceMemory(name="GPU", total_bytes=0, available_bytes=0),
        DeviceMemory(name="GPU", total_bytes=24 * GIB, available_bytes=0),
    ):
        short = fit(replace(asked, devices=(device,)))
        assert isinstance(short, OutOfMemory)
        assert short.needed_bytes > 0


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
