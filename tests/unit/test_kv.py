"""`gpuwright kv`: pools as engines printed them, by way of the command line."""

import argparse
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwright.cli import main
from gpuwright.kv_arguments import read_kv_question
from gpuwright.kv_command import configure, read_numbers
from gpuwright.load import load_matrix
from tools.golden import KV_PAGE, cli_page

VLLM = ("--engine", "vllm")
QWEN = ("--model", "qwen3.6-27b")


def kv(capsys, *words):
    status = main(["kv", *words, "--json"])
    return status, json.loads(capsys.readouterr().out)


def printed(capsys, gib, *words):
    """Answers for pools that all print as `gib`."""
    found = []
    for hundredth in range(-5, 6):
        status, answer = kv(capsys, *words, "--available-gib", f"{gib + hundredth / 1000:.4f}")
        assert status == 0
        found.append(answer["kv_cache_tokens"])
    return found


@pytest.mark.parametrize(
    ("gib", "tokens", "words"),
    [
        (
            10.85,
            612157,
            "--model qwen3.6-27b --tensor-parallel-size 2 --kv-cache-dtype fp8_e5m2 "
            "--max-model-len 262144 --speculative-tokens 3",
        ),
        (
            14.68,
            841541,
            "--model qwen3.6-27b --tensor-parallel-size 2 --kv-cache-dtype fp8 "
            "--max-model-len 262144 --speculative-tokens 3 --prefix-caching off",
        ),
        (
            5.98,
            567978,
            "--model qwen3.6-35b-a3b --kv-cache-dtype fp8 --max-model-len 131072",
        ),
    ],
)
def test_a_hybrid_s_pool_is_what_the_engine_printed(capsys, gib, tokens, words):
    assert tokens in printed(capsys, gib, *VLLM, *words.split())


@pytest.mark.parametrize(
    ("gib", "blocks", "words"),
    [
        (
            10.82,
            (17449, 9797),
            "--model gemma-4-31b --kv-cache-dtype int8_per_token_head --max-model-len 262144",
        ),
        (8.16, (16703, 5701), "--model gemma-4-12b --kv-cache-dtype bf16 --max-model-len 131072"),
    ],
)
def test_a_windowed_pool_is_near_what_the_engine_printed(capsys, gib, blocks, words):
    status, answer = kv(
        capsys,
        *VLLM,
        *words.split(),
        *("--tensor-parallel-size", "2", "--max-num-batched-tokens", "4096"),
        *("--available-gib", str(gib)),
    )
    assert status == 0
    count, need = blocks
    assert abs(answer["num_blocks"] - count) <= 12
    assert answer["max_concurrency"] == answer["num_blocks"] / need


def test_a_release_says_how_long_a_window_is_kept(capsys):
    words = ("--model", "gemma-4-12b", *VLLM, "--max-model-len", "131072", "--available-gib", "8")
    answers = [
        kv(capsys, *words, *more)[1]
        for more in ((), ("--release", "0.19.1"), ("--release", "0.33.0"))
    ]
    unsaid, before, after = (answer["max_concurrency"] for answer in answers)
    assert unsaid == before > after
    assert any("no release" in text for text in answers[0]["assumed"])
    assert not any("no release" in text for text in answers[2]["assumed"])


def test_keys_without_a_meaning_for_an_engine_are_null(capsys):
    for engine, dtype in (("llama.cpp", "q8_0"), ("sglang", "bf16")):
        status, answer = kv(
            capsys, *QWEN, "--engine", engine, "--kv-cache-dtype", dtype, "--available-gib", "20"
        )
        assert status == 0
        assert answer["block_tokens"] is answer["num_blocks"] is None
        assert answer["state_bytes_per_sequence"] == 153944064
        assert answer["kv_cache_tokens"] == 20 * 2**30 // answer["bytes_per_token"]


def test_a_cache_that_does_not_hold_one_request_is_refused_with_the_longest_that_fits(capsys):
    words = (*QWEN, *VLLM, "--kv-cache-dtype", "fp8", "--speculative-tokens", "3")
    size = ("--available-gib", "3.93")
    status, answer = kv(capsys, *words, "--max-model-len", "100352", *size)
    assert status == 3
    assert "needs 4.0466 GiB, found 3.9300 GiB" in answer["reason"]
    status, answer = kv(capsys, *words, "--max-model-len", str(answer["max_context"]), *size)
    assert (status, answer["reason"]) == (0, None)


def test_more_requests_than_states_are_refused(capsys):
    words = (*QWEN, *VLLM, "--max-model-len", "2048", "--available-gib", "10")
    blocks = kv(capsys, *words)[1]["num_blocks"]
    assert kv(capsys, *words, "--max-num-seqs", str(blocks))[0] == 0
    status, answer = kv(capsys, *words, "--max-num-seqs", str(blocks + 1))
    assert status == 3
    assert answer["reason"].startswith("max_num_seqs: ")


def test_nothing_holds_nothing(capsys):
    for engine in ("vllm", "sglang", "llama.cpp"):
        status, answer = kv(capsys, *QWEN, "--engine", engine, "--available-gib", "0")
        assert status == 3
        assert (answer["kv_cache_tokens"], answer["max_context"]) == (0, 0)


def test_a_card_leaves_what_weights_and_measured_terms_leave(capsys):
    words = (*QWEN, *VLLM, "--checkpoint", "qwen3.6-27b-nvfp4", "--kv-cache-dtype", "fp8")
    more = ("--max-model-len", "65536", "--speculative-tokens", "3", "--gpu", "RTX 5090")
    status, answer = kv(capsys, *words, *more, "--gpu-memory-utilization", "0.85")
    # The engine printed 3.93 GiB there, with 74 and 75 blocks.
    assert status == 0
    assert 3.6 * 2**30 < answer["kv_cache_bytes"] <= 3.935 * 2**30
    assert 70 <= answer["num_blocks"] <= 75
    small = kv(capsys, *words, *more[:-1], "RTX 3060 12 GB")
    assert small[0] == 3


@pytest.mark.parametrize(
    ("engine", "model"), [("sglang", "llama-3.1-8b"), ("llama.cpp", "qwen3.6-35b-a3b")]
)
def test_a_card_has_room_for_less_than_itself_under_any_engine(capsys, engine, model):
    words = ("--model", model, "--engine", engine, "--max-model-len", "8192")
    status, answer = kv(capsys, *words, "--gpu", "RTX 6000 Ada")
    assert status == 0
    assert 0 < answer["kv_cache_bytes"] < 48 * 2**30


def test_a_cache_without_a_formula_is_answered_where_it_was_measured(capsys):
    words = ("--model", "deepseek-v4-flash", *VLLM, "--max-model-len", "50000")
    status, answer = kv(capsys, *words, "--kv-cache-dtype", "nvfp4", "--available-gib", "24.5")
    assert status == 0
    assert answer["num_blocks"] is None
    status, answer = kv(capsys, *words, "--kv-cache-dtype", "bf16", "--available-gib", "24.5")
    assert status == 3
    assert answer["kv_cache_tokens"] is None
    assert "measured" in answer["reason"]


@pytest.mark.parametrize(
    ("words", "faults"),
    [
        (
            "--model qwen3.6-27 --engine vllm --available-gib 1",
            ["--model: 'qwen3.6-27' is unknown; nearest: qwen3.6-27b"],
        ),
        (
            "--model qwen3.6-27b --engine vlm --available-gib 1",
            [
                "--engine: 'vlm' is unknown; nearest: vllm; known: exllamav3, ik_llama.cpp, "
                "ktransformers, llama.cpp, sglang, tensorrt-llm, vllm"
            ],
        ),
        (
            "--model qwen3.6-27b --engine vllm --kv-cache-dtype fp9_e4m3 --available-gib 1",
            ["--kv-cache-dtype: 'fp9_e4m3' is unknown; nearest: fp8_e4m3"],
        ),
        (
            "--model qwen3.6-27b --engine vllm --tensor-parallel-size 3 --available-gib 1",
            [
                "--tensor-parallel-size: 3 does not divide 4 KV heads of qwen3.6-27b; "
                "legal: 1, 2, 4, 8"
            ],
        ),
        (
            "--model qwen3.6-27b --engine llama.cpp --tensor-parallel-size 2 --available-gib 1",
            ["--tensor-parallel-size: llama.cpp splits layers, needs 1, found 2"],
        ),
        (
            "--model qwen3.6-27b --engine vllm --max-model-len 300000 --available-gib 1",
            ["--max-model-len: qwen3.6-27b needs at most 262,144, found 300,000"],
        ),
        (
            "--model qwen3.6-27b --engine vllm --available-gib -1 --prefix-caching yes",
            [
                "--available-gib: needs GiB, 0 or more, found '-1'",
                "--prefix-caching: 'yes' is unknown; known: on, off",
            ],
        ),
        (
            "--model qwen3.6-27b --engine vllm",
            ["the cache's size: needs one of --available-gib X and --gpu NAME"],
        ),
        (
            "--model qwen3.6-27b --engine vllm --available-gib nan --gpu-memory-utilization 0.9",
            [
                "--available-gib: needs GiB, 0 or more, found 'nan'",
                "--gpu-memory-utilization: shares out a card, needs --gpu NAME",
            ],
        ),
    ],
)
def test_bad_input_exits_2_and_names_what_is_legal(capsys, words, faults):
    assert main(["kv", *words.split()]) == 2
    shown = capsys.readouterr().err.splitlines()
    assert shown == [f"gpuwright: {fault}" for fault in faults]


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (
            "--model qwen3.6-27b --checkpoint qwen3.6-27b-q4_k_m --engine vllm",
            "--checkpoint: qwen3.6-27b-q4_k_m (gguf) is for llama.cpp and ik_llama.cpp, not vllm;",
        ),
        (
            "--model qwen3.6-27b --checkpoint qwen3.6-27b-awq --engine llama.cpp",
            "--checkpoint: qwen3.6-27b-awq (safetensors) is for vllm, not llama.cpp; legal: qwen3",
        ),
        (
            "--model qwen3-0.6b --engine vllm --speculative-tokens 3",
            "--speculative-tokens: needs layers in the weights that draft, or a drafter that vllm "
            "loads; qwen3-0.6b has neither, legal: 0 [qwen3-0.6b]",
        ),
        (
            "--model gpt-oss-20b --engine vllm --kv-cache-dtype nvfp4",
            "--kv-cache-dtype: attention backend flash_attn: needs a cache in bf16 or f16 on ",
        ),
        (
            "--model qwen3.6-27b --engine vllm --kv-cache-dtype turboquant_4bit_nc "
            "--speculative-tokens 3",
            "--kv-cache-dtype: mtp beside a turboquant_4bit_nc cache: needs a pair that works, ",
        ),
        (
            "--model qwen3.6-27b --engine llama.cpp --block-multiple 16",
            "--block-multiple: is of vllm, llama.cpp has none",
        ),
        (
            "--model qwen3.6-27b --engine llama.cpp --max-num-batched-tokens 4096",
            "--max-num-batched-tokens: needs an engine that batches prompts, found llama.cpp",
        ),
        (
            "--model qwen3.6-27b --engine llama.cpp --max-num-seqs 300",
            "--max-num-seqs: needs at most 256, found 300 [llama.cpp-b11434]",
        ),
    ],
)
def test_what_no_card_could_keep_is_bad_input_as_for_a_plan(capsys, words, fault):
    assert main(["kv", *words.split(), "--available-gib", "10"]) == 2
    assert capsys.readouterr().err.startswith(f"gpuwright: {fault}")


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("vllm --mem-fraction-static 0.8", "--mem-fraction-static: is of sglang, vllm has none"),
        (
            "sglang --gpu-memory-utilization 0.8",
            "--gpu-memory-utilization: is of vllm, sglang has --mem-fraction-static",
        ),
    ],
)
def test_a_share_of_another_engine_names_the_engine_that_has_it(capsys, words, fault):
    assert main(["kv", *QWEN, "--gpu", "5090", "--engine", *words.split()]) == 2
    assert capsys.readouterr().err == f"gpuwright: {fault}\n"


def test_a_cache_that_only_the_card_cannot_keep_is_refused_with_its_row(capsys):
    words = ("--model", "gpt-oss-20b", *VLLM, "--kv-cache-dtype", "nvfp4", "--gpu", "5090")
    status, answer = kv(capsys, *words)
    assert status == 3
    assert answer["reason"].startswith("attention backend flash_attn: needs a cache in ")
    assert main(["kv", *words]) == 3
    assert capsys.readouterr().out.rstrip().endswith("[vllm-flash-attn]")


def test_an_unknown_release_and_card_name_those_that_are_known(capsys):
    assert main(["kv", *QWEN, *VLLM, "--release", "9.9", "--available-gib", "1"]) == 2
    assert "known: 0.33.0" in capsys.readouterr().err
    assert main(["kv", *QWEN, *VLLM, "--gpu", "RTX 5091"]) == 2
    assert "nearest: " in capsys.readouterr().err


sizes = st.floats(min_value=0, max_value=64)


@given(sizes, sizes, st.sampled_from(["vllm", "sglang", "llama.cpp"]), st.sampled_from([0, 3]))
def test_a_larger_cache_never_holds_less(one, other, engine, draft):
    parser = argparse.ArgumentParser()
    configure(parser)
    answers = []
    for size in sorted((one, other)):
        arguments = parser.parse_args(
            [
                *(*QWEN, "--engine", engine, "--speculative-tokens", str(draft)),
                *("--max-model-len", "30000", "--available-gib", repr(size)),
            ]
        )
        answers.append(
            read_kv_question(arguments, *read_numbers(arguments), load_matrix()).answer()
        )
    small, large = answers
    assert small.kv_cache_tokens <= large.kv_cache_tokens
    assert small.max_context <= large.max_context
    assert 0 <= small.max_concurrency <= large.max_concurrency


def test_the_page_shows_what_the_command_answers():
    text = KV_PAGE.read_text(encoding="utf-8")
    assert "$ gpuwright kv" in text
    assert cli_page(text) == text
