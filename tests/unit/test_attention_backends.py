"""The backend that a plan names is the one vLLM 0.33.0 chose when its own code was asked."""

from dataclasses import replace

import pytest

from gpuwright import compat
from gpuwright.load import load_matrix
from gpuwright.model_rows import Architecture, LayerGroup, LayerKind

MATRIX = load_matrix()
RELEASE = MATRIX.engine_release("vllm", "0.33.0")
LLAMA = next(row for row in MATRIX.models if row.family == "llama")

FA, FI, TRITON = "flash_attn", "flashinfer", "triton"
ANSWERS = [
    (["7.5"], ["bf16", "f16"], [64, 128, 256, 512], TRITON),
    (["8.0", "8.6", "8.9", "12.0", "12.1"], ["bf16"], [64, 128, 256], FA),
    (["8.0", "8.6", "8.9", "12.0", "12.1"], ["bf16"], [512], FI),
    (["8.0", "8.6", "8.9", "12.0", "12.1"], ["fp8_e4m3", "fp8_e5m2"], [64, 128, 256, 512], FI),
    (["9.0"], ["bf16", "fp8_e4m3"], [128, 256, 512], FA),
    (["9.0"], ["fp8_e5m2"], [128, 256, 512], FI),
    (["10.0", "10.3"], ["bf16", "fp8_e4m3", "fp8_e5m2"], [64, 128, 256, 512], FI),
    (
        ["7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0"],
        ["int8_per_token_head", "int4_per_token_head"],
        [64, 128, 256, 512],
        TRITON,
    ),
    # The engine takes Triton here and its constructor then refuses: no backend, for a plan.
    (["7.5"], ["fp8_e4m3", "fp8_e5m2"], [128, 256, 512], None),
]
CASES = [
    (capability, dtype, size, backend)
    for capabilities, dtypes, sizes, backend in ANSWERS
    for capability in capabilities
    for dtype in dtypes
    for size in sizes
]


def chosen(family, capability, dtype, size):
    model = replace(
        LLAMA,
        family=family,
        architecture=Architecture(
            attention_heads=8,
            hidden_size=1024,
            vocabulary=1024,
            groups=(LayerGroup(kind=LayerKind.FULL, layers=2, kv_heads=2, head_size=size),),
        ),
    )
    rows = {row.backend: row for row in MATRIX.backends("vllm")}
    rule = next(
        rule
        for rule in RELEASE.auto_order
        if (not rule.families or family in rule.families)
        and compat.within(capability, rule.capabilities)
    )
    for name in rule.order:
        reason = compat.backend(
            rows[name],
            release=RELEASE,
            model=model,
            capability=capability,
            kv=MATRIX.kv_cache_dtype(dtype),
        )
        if reason is None:
            return name
    return None


@pytest.mark.parametrize(("capability", "dtype", "size", "backend"), CASES)
def test_the_backend_is_the_engines_own_choice(capability, dtype, size, backend):
    assert chosen("llama", capability, dtype, size) == backend


@pytest.mark.parametrize("capability", ["7.5", "8.0", "8.6", "8.9", "12.0", "12.1"])
def test_gemma_4_is_forced_onto_triton_where_there_is_no_flash_attention_4(capability):
    assert chosen("gemma4", capability, "bf16", 512) == TRITON
