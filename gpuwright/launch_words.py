"""How engines themselves spell attention backends, KV cache dtypes and names of models of ours."""

from __future__ import annotations

from gpuwright.versions import at_least

_VLLM_BACKENDS = {
    "flash_attn": "FLASH_ATTN",
    "flashinfer": "FLASHINFER",
    "triton": "TRITON_ATTN",
    "flex": "FLEX_ATTENTION",
    "triton_flash_attn": "TRITON_FLASH_ATTN",
    "triton_flashinfer": "TRITON_FLASHINFER",
    "turboquant": "TURBOQUANT",
    "b12x": "B12X",
    "cpu_attn": "CPU_ATTN",
    "triton_mla": "TRITON_MLA",
    "flashmla": "FLASHMLA",
    "flashinfer_mla": "FLASHINFER_MLA",
    "cutlass_mla": "CUTLASS_MLA",
    "flash_attn_mla": "FLASH_ATTN_MLA",
    "tokenspeed_mla": "TOKENSPEED_MLA",
    "flashmla_sparse_dsv4": "FLASHMLA_SPARSE_DSV4",
    "flashinfer_mla_sparse_dsv4": "FLASHINFER_MLA_SPARSE_DSV4",
}
_BACKENDS: dict[str, dict[str, str]] = {
    "vllm": _VLLM_BACKENDS,
    "tensorrt-llm": {"trtllm": "TRTLLM"},
}
_DTYPES: dict[str, dict[str, str]] = {
    "vllm": {"bf16": "bfloat16", "f16": "float16"},
    # `auto` is the model's own type.
    "tensorrt-llm": {"bf16": "auto", "fp8_e4m3": "fp8"},
}
_CACHE_WORD_KEPT = frozenset({"sglang"})
"""vLLM renames the type of some models' cache, and leaves that of others to itself."""


def backend_word(engine: str, backend: str) -> str:
    """How the engine itself spells an attention backend of ours."""
    return _BACKENDS.get(engine, {}).get(backend, backend)


def cache_word(engine: str, dtype: str) -> str:
    """How the engine itself spells a KV cache dtype of ours."""
    return _DTYPES.get(engine, {}).get(dtype, dtype)


def keeps_cache_word(engine: str) -> bool:
    """Whether what the engine settles on for its KV cache has the word that it was told."""
    return engine in _CACHE_WORD_KEPT


def named_by_directory(engine: str, release: str) -> bool:
    """Whether a model is called as its directory is, as no option can say another name
    (https://github.com/NVIDIA/TensorRT-LLM/pull/11711)."""
    return engine == "tensorrt-llm" and not at_least(release, "1.3.0")
