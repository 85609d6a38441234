"""Rules of attention that the engines' records do not show: several cards, families, help, pins."""

import pytest

from gpuwright.attention import Asked, beyond, chosen, order, reason_against
from gpuwright.attention_rows import AttentionBackendRow, Toolchain
from gpuwright.load import load_matrix
from gpuwright.refusals import Needs

MATRIX = load_matrix()
VLLM = MATRIX.engine_release("vllm", "0.33.0")
ROWS = MATRIX.backends("vllm")


def asked(capability="8.6", kv="bf16", head_sizes=(128,), **more):
    return Asked(capability=capability, kv=kv, head_sizes=head_sizes, **more)


def backend(*questions, pinned=None):
    answer = chosen(VLLM, ROWS, questions, pinned=pinned)
    return answer.backend if isinstance(answer, AttentionBackendRow) else answer.sentence()


@pytest.mark.parametrize("capability", ["8.0", "8.6", "8.9", "12.0", "12.1"])
def test_gemma_4_is_forced_onto_triton_where_there_is_no_flash_attention_4(capability):
    assert backend(asked(capability, head_sizes=(256, 512), family="gemma4")) == "triton"


@pytest.mark.parametrize(
    ("capability", "backend_there"), [("9.0", "triton_flash_attn"), ("10.0", "triton_flashinfer")]
)
def test_gemma_4s_images_ask_for_triton_beside_the_fast_backend(capability, backend_there):
    assert backend(asked(capability, head_sizes=(256, 512), family="gemma4")) == backend_there


def test_one_backend_serves_every_head_size_of_a_model():
    assert backend(asked(head_sizes=(256,))) == "flash_attn"
    assert backend(asked(head_sizes=(256, 512))) == "flashinfer"
    assert backend(asked(head_sizes=(192, 512))) == "triton"


def test_one_backend_serves_every_card():
    assert backend(asked("8.6"), asked("7.5")) == (
        "attention backend flash_attn: needs compute capability >=8.0, found 7.5"
    )
    assert backend(asked("8.6", kv="f16"), asked("7.5", kv="f16")) == "triton"


def test_a_pinned_backend_is_taken_or_refused_and_never_another():
    assert backend(asked(), pinned="flashinfer") == "flashinfer"
    assert backend(asked(kv="fp8_e4m3"), pinned="flash_attn") == (
        "attention backend flash_attn: needs a cache in bf16 or f16 on 8.6, found fp8_e4m3"
    )


def test_a_backend_that_the_engine_never_takes_by_itself_is_found_beyond_its_order():
    question = asked(kv="fp8_e4m3", family="gemma4", head_sizes=(256, 512))
    assert isinstance(chosen(VLLM, ROWS, [question]), Needs)
    assert beyond(VLLM, ROWS, [question]).backend == "flashinfer"
    assert beyond(VLLM, ROWS, [asked(kv="fp8_e4m3", mla=True, family="gemma4")]) is None


def test_flash_attention_has_a_version_per_card():
    row = next(row for row in ROWS if row.backend == "flash_attn")
    versions = {
        (capability, size): row.version(capability, size).version
        for capability in ("8.6", "9.0", "10.0", "12.0")
        for size in (128, 512)
    }
    assert versions == {
        ("8.6", 128): 2,
        ("8.6", 512): 2,
        ("12.0", 128): 2,
        ("12.0", 512): 2,
        ("9.0", 128): 3,
        ("9.0", 512): 4,
        ("10.0", 128): 4,
        ("10.0", 512): 2,
    }


def test_an_order_is_that_of_the_models_kind():
    assert order(VLLM, asked("9.0", mla=True))[0] == "flash_attn_mla"
    assert order(VLLM, asked("9.0"))[0] == "flash_attn"


def test_without_a_compiler_flashinfer_is_refused_by_name():
    row = next(row for row in ROWS if row.backend == "flashinfer")
    reason = reason_against(row, asked(kv="fp8_e4m3", toolchain=Toolchain.NONE))
    assert reason.sentence() == (
        "attention backend flashinfer: needs nvcc and ninja on the service's PATH, or its prebuilt "
        "kernels, found neither"
    )


def test_llama_cpp_takes_iq4_nl_on_the_cpu_alone():
    release = next(row for row in MATRIX.releases if row.engine == "llama.cpp")
    rows = MATRIX.backends("llama.cpp")
    assert isinstance(chosen(release, rows, [asked(None, kv="iq4_nl")]), AttentionBackendRow)
    refused = chosen(release, rows, [asked("8.6", kv="iq4_nl")])
    assert "found iq4_nl" in refused.sentence()


def test_a_backend_for_one_family_serves_no_other():
    ours = asked("12.0", kv="fp8_e4m3", head_sizes=(), family="deepseek4", sinks=True)
    assert backend(ours) == "flashinfer_mla_sparse_dsv4"
    assert backend(asked("12.0", kv="fp8_e4m3"), pinned="flashinfer_mla_sparse_dsv4") == (
        "attention backend flashinfer_mla_sparse_dsv4: needs a model of deepseek4, found another"
    )
