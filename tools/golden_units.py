"""Golden units: how each engine is started for plans that differ in what it is told, one unit a
file in tests/services. `python -m tools.golden` writes them anew; the diff is what is reviewed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpuwright.environments import environment_of
from gpuwright.expectation import cuda_compiler
from gpuwright.host import Host
from gpuwright.launch import launch, model_path_of
from gpuwright.launch_environment import CudaCompiler
from gpuwright.layout import Layout
from gpuwright.load import load_matrix
from gpuwright.plan import Plan
from gpuwright.selection import decide
from gpuwright.sketch import read_sketch
from gpuwright.units import render_unit
from gpuwright.want import Want

ROOT = Path(__file__).parent.parent
SERVICES = ROOT / "tests" / "services"

_3090, _TWO_3090 = ["RTX 3090"], ["RTX 3090", "RTX 3090"]
_BROUGHT = {"chat_template": "/srv/chat.jinja", "lora": {"tone": "/srv/lora/tone"}}

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "llama.cpp-cpu": ({"gpus": []}, {"model": "smollm2"}),
    "llama.cpp-drafts-with-images": (
        {"gpus": _3090},
        {"model": "qwen3.6-27b", "engine": "llama.cpp", "vision": True, "speculative": "mtp:2"},
    ),
    "llama.cpp-two-cards-experts-in-ram": (
        {"gpus": _TWO_3090, "memory_gib": 128},
        {"model": "gpt-oss-120b", "engine": "llama.cpp"},
    ),
    "ik_llama.cpp-two-cards": (
        {"gpus": _TWO_3090},
        {"model": "qwen3.6-27b", "engine": "ik_llama.cpp", "release": "0.1.5"},
    ),
    "llama.cpp-adapters-for-everybody": (
        {"gpus": _3090},
        {"model": "llama-3.1-8b", "engine": "llama.cpp", "bind": "192.168.1.20", **_BROUGHT},
    ),
    "vllm-two-cards-over-pcie": (
        {"gpus": _TWO_3090},
        {"model": "qwen3.6-27b", "engine": "vllm"},
    ),
    "vllm-two-cards-over-nvlink": (
        {"gpus": _TWO_3090, "interconnect": "nvlink"},
        {"model": "qwen3.6-27b", "engine": "vllm"},
    ),
    "vllm-two-geforce-cards-without-peers": (
        {"gpus": ["RTX 4090", "RTX 4090"]},
        {"model": "qwen3.6-27b", "engine": "vllm"},
    ),
    "vllm-mtp": (
        {"gpus": _TWO_3090},
        {"model": "qwen3.6-27b", "engine": "vllm", "speculative": "mtp:2"},
    ),
    "vllm-gemma-assistant-for-everybody": (
        {"gpus": ["H100"]},
        {"model": "gemma-4-31b", "engine": "vllm", "speculative": "mtp", "bind": "192.168.1.20"},
    ),
    "vllm-deepseek": (
        {"gpus": ["B200", "B200"]},
        {"model": "deepseek-v4-flash", "engine": "vllm"},
    ),
    "vllm-16-bit-cache-ngram-adapters-grammar": (
        {"gpus": ["RTX 4090"]},
        {
            "model": "llama-3.1-8b",
            "engine": "vllm",
            "kv_cache_dtype": "bf16",
            "speculative": "ngram",
            "structured_output": "guidance",
            "prefix_caching": False,
            **_BROUGHT,
        },
    ),
    "vllm-cuda-12": (
        {"gpus": _3090, "driver": "570.133.07"},
        {"model": "llama-3.1-8b", "engine": "vllm", "prefix_caching": False},
    ),
    "sglang-two-cards": (
        {"gpus": _TWO_3090},
        {"model": "qwen3.6-27b", "engine": "sglang"},
    ),
    "sglang-mtp-images-grammar": (
        {"gpus": ["H100"]},
        {
            "model": "qwen3.6-27b",
            "engine": "sglang",
            "speculative": "mtp",
            "vision": True,
            "images_per_prompt": 2,
            "structured_output": "llguidance",
        },
    ),
    "sglang-adapters-cuda-12": (
        {"gpus": _3090, "driver": "570.133.07", "distro": "debian-13"},
        {"model": "llama-3.1-8b", "engine": "sglang", **_BROUGHT},
    ),
    "tensorrt-llm-named-by-its-directory": (
        {"gpus": ["L40S", "L40S"], "python": "3.12"},
        {
            "model": "llama-3.1-8b",
            "engine": "tensorrt-llm",
            "release": "1.2.1",
            "gpus": [0, 1],
            "served_model_name": "llama",
        },
    ),
    "tensorrt-llm": (
        {"gpus": ["H100"], "python": "3.12"},
        {
            "model": "llama-3.1-8b",
            "engine": "tensorrt-llm",
            "structured_output": "xgrammar",
            "chat_template": "/srv/chat.jinja",
        },
    ),
}


def planned(name: str) -> tuple[Host, Plan]:
    node, wanted = CASES[name]
    matrix = load_matrix()
    host = Host.from_document(read_sketch(node, matrix)[0])
    plan = decide(host, Want.from_data(wanted), matrix)
    assert isinstance(plan, Plan), f"{name}: {plan.sentence()}"
    return host, plan


def plan_of(name: str) -> Plan:
    return planned(name)[1]


def unit(name: str) -> str:
    """The unit of a case, with KEY for what names a build or an environment."""
    (host, plan), layout = planned(name), Layout()
    engine_dir = layout.engine_dir(plan.engine, plan.release, "KEY")
    path = model_path_of(plan, layout)
    compiler = _compiler(host, plan, Want.from_data(CASES[name][1]), engine_dir)
    start = launch(plan, layout, path, engine_dir, compiler=compiler)
    return render_unit(
        plan=plan,
        launch=start,
        layout=layout,
        engine_dir=engine_dir,
        templates=ROOT / "templates",
        systemd_version=252,
    )


def _compiler(host: Host, plan: Plan, want: Want, engine_dir: str) -> CudaCompiler | None:
    """What the unit of an environment that can be installed says of its compiler."""
    matrix = load_matrix()
    release = matrix.engine_release(plan.engine, plan.release)
    tag = next(tag for tag in release.build_tags if tag.tag == plan.build_tag)
    if release.build is not None or not tag.applicable:
        return None
    environment = environment_of(
        want=want,
        plan=plan,
        release=release,
        distro=matrix.distro(host),
        node=host,
        matrix=matrix,
    )
    return cuda_compiler(environment, engine_dir, host, want.layout)


def wanted_files() -> dict[Path, str]:
    return {SERVICES / f"{name}.service": unit(name) for name in CASES}
