"""Pins that contradict each other are refused, with what was said, what is legal and the row."""

import pytest

from gpuwright.cli import main


@pytest.mark.parametrize(
    ("pins", "fault"),
    [
        (["engine=llama.cpp", "release=0.33.0"], "release: '0.33.0' is of vllm, not llama.cpp;"),
        (["engine=vllm", "attention_backend=ggml"], "attention_backend: 'ggml' is of llama.cpp"),
        (["engine=llama.cpp", "build_tag=cu130"], "build_tag: 'cu130' is of sglang and "),
        (["checkpoint=gpt-oss-20b-mxfp4"], "checkpoint: 'gpt-oss-20b-mxfp4' is of gpt-oss-20b, no"),
        (["gpus=none", "tensor_parallel_size=2"], "tensor_parallel_size: needs cards, and gpus"),
        (["gpus=[0,1]", "tensor_parallel_size=4"], "tensor_parallel_size: 4 over 2 pinned cards"),
        (["tensor_parallel_size=3"], "tensor_parallel_size: 3 needs as many cards, found 2 on"),
        (
            ["engine=llama.cpp", "checkpoint=qwen3.6-27b-awq"],
            "checkpoint: qwen3.6-27b-awq (safetensors) is for vllm, not llama.cpp; legal: qwen3",
        ),
        (
            ["engine=vllm", "checkpoint=qwen3.6-27b-q4_k_m"],
            "checkpoint: qwen3.6-27b-q4_k_m (gguf) is for llama.cpp and ik_llama.cpp, not vllm; ",
        ),
        (["engine=exllamav3"], "engine: exllamav3 loads exl3, and no checkpoint of qwen3.6-27b is"),
        (["max_model_len=300000"], "max_model_len: needs at most 262,144, found 300,000 [qwen3.6"),
        (["speculative={method: off, drafter: x}"], "speculative: method off contradicts drafter"),
        (
            ["speculative={method: mtp, drafter: qwen3.6-27b-dflash}"],
            "speculative: drafter qwen3.6-27b-dflash drafts by dflash, not mtp [qwen3.6-27b-dfl",
        ),
        (["engine=llama.cpp", "tensor_parallel_size=2"], "tensor_parallel_size: llama.cpp splits"),
        (
            ["engine=vllm", "kv_cache_dtype=q8_0"],
            "kv_cache_dtype: vllm 0.33.0 has no q8_0; legal: bf16, f16, fp8_e4m3, int8_per_token",
        ),
        (
            ["engine=llama.cpp", "structured_output=xgrammar"],
            "structured_output: llama.cpp b11434 has no xgrammar; it names none [structured-output",
        ),
        (["engine=llama.cpp", "max_num_batched_tokens=2048"], "max_num_batched_tokens: needs an "),
        (["expert_offload=true"], "expert_offload: needs a model of experts, found qwen3.6-27b [q"),
        (
            ["gpus=none", "engine=sglang"],
            "gpus: none needs a build for the CPU, sglang 0.5.23 has c",
        ),
        (["gpus=none", "share_gpus=true"], "share_gpus: needs cards, and gpus says none"),
        (["gpus=[0]", "build_tag=cpu"], "gpus: needs a build for cards, llama.cpp b11434 has cpu"),
        (
            ["release=0.33.0", "build_tag=cu128"],
            "build_tag: release '0.33.0' has no 'cu128'; ",
        ),
        (
            ["release=b11434", "attention_backend=flashinfer"],
            "attention_backend: llama.cpp b11434 has no flashinfer; legal: ggml [llama.cpp-b11434]",
        ),
        (["checkpoint=qwen3.6-27b-dflash"], "checkpoint: 'qwen3.6-27b-dflash' is a drafter and ho"),
    ],
)
def test_pins_that_contradict_each_other_are_named(capsys, pins, fault):
    words = [f"--pin={pin}" for pin in pins]
    assert main(["explain", "--gpu=3090", "--gpu=3090", "--model=qwen3.6-27b", *words]) == 2
    assert capsys.readouterr().err.startswith(f"gpuwright: {fault}")
