"""Models, element types and requests that the tests of memory plans share."""

from gpuwright.load import load_matrix
from gpuwright.memory.request import GIB, DeviceMemory, MemoryRequest
from gpuwright.model_rows import Architecture, LayerGroup, LayerKind

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
QWEN_235B = Architecture(
    attention_heads=64,
    hidden_size=4096,
    vocabulary=151936,
    groups=(LayerGroup(kind=FULL, layers=94, kv_heads=4, head_size=128),),
)


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
