"""The arguments of llama.cpp's server, and of its fork's, which parted from it in August 2024."""

from __future__ import annotations

from gpuwright.plan import Plan

_EVERY_LAYER = "999"
"""The fork takes a number alone, and this for all that there are."""


def llama_cpp_arguments(plan: Plan, model_path: str) -> list[str]:
    """Those of llama.cpp."""
    return [
        *_shared_arguments(plan, model_path),
        # The plan has done the fitting: a context that shrinks by itself would hide a wrong one.
        "--fit",
        "off",
        "--no-ui",
        "--offline",
        *_card_arguments(plan, str(plan.parameters.get("gpu_layers"))),
        *plan.feature_arguments,
    ]


def ik_llama_cpp_arguments(plan: Plan, model_path: str, key_file: str) -> list[str]:
    """Those of ik_llama.cpp: it fits nothing unless told so, and fetches nothing as it is built."""
    layers = plan.parameters.get("gpu_layers")
    return [
        *_shared_arguments(plan, model_path),
        # Or the beginning of a conversation that grows too long is forgotten in silence.
        "--context-shift",
        "off",
        "--webui",
        "none",
        "--api-key-file",
        key_file,
        *_card_arguments(plan, _EVERY_LAYER if layers == "all" else str(layers)),
        *plan.feature_arguments,
    ]


def _shared_arguments(plan: Plan, model_path: str) -> list[str]:
    parameters = plan.parameters
    argv = [
        "--host",
        plan.bind,
        "--port",
        str(plan.port),
        "--model",
        model_path,
        "--alias",
        plan.served_model_name,
        # The engine divides this over its slots, and rounds each one's share up to its own step.
        "--ctx-size",
        str(plan.max_model_len * plan.max_num_seqs),
        "--parallel",
        str(plan.max_num_seqs),
        "--threads",
        str(parameters["threads"]),
        "--flash-attn",
        str(parameters["flash_attention"]),
        "--cache-type-k",
        plan.kv_cache_dtype,
        "--cache-type-v",
        plan.kv_cache_dtype,
        "--cache-ram",
        str(parameters["prompt_cache_mib"]),
        "--jinja",
        "--metrics",
    ]
    if "context_checkpoints" in parameters:
        argv += ["--ctx-checkpoints", str(parameters["context_checkpoints"])]
    return argv


def _card_arguments(plan: Plan, layers: str) -> list[str]:
    argv = []
    if plan.gpus:
        # A build without CUDA would answer this flag with a warning about a missing GPU.
        argv += ["--n-gpu-layers", layers]
    if "tensor_split" in plan.parameters:
        split = str(plan.parameters["tensor_split"])
        argv += ["--split-mode", "layer", "--tensor-split", split]
    return argv
