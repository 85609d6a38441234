"""One plan for tests of what comes after the decision."""

from gpuwright.plan import MemoryPlan, MemoryTerm, ModelFile, Plan, PlannedCheckpoint, Source

FILE = ModelFile(
    path="model.gguf",
    bytes=1000,
    sha256="a" * 64,
    sources=(Source(kind="url", url="https://example.org/model.gguf"),),
)

BESIDE = PlannedCheckpoint(id="tiny-draft", files=(FILE,))

PLAN = Plan(
    service="llm",
    bind="127.0.0.1",
    port=8080,
    model="tiny",
    checkpoint="tiny-q4",
    served_model_name="Tiny",
    quantization="q4_0",
    engine="llama.cpp",
    release="b1",
    build_tag="cpu",
    attention_backend="ggml",
    kv_cache_dtype="f16",
    gpus=(),
    tensor_parallel_size=1,
    max_model_len=4096,
    max_num_seqs=2,
    memory=MemoryPlan(
        where="RAM", available_bytes=4 << 30, terms=(MemoryTerm(name="weights", bytes=1000),)
    ),
    files=(FILE,),
    reasons=("it fits",),
)
