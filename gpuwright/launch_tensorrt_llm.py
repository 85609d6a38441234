"""The command of TensorRT-LLM's server, and its configuration file for what has no flag."""

from __future__ import annotations

import json
from typing import Any

from gpuwright.launch_files import runtime_directory
from gpuwright.launch_words import backend_word, cache_word, named_by_directory
from gpuwright.layout import RUN
from gpuwright.plan import Plan


def tensorrt_llm_arguments(plan: Plan, model_path: str) -> tuple[str, ...]:
    """What follows the program; the directory of a model is the name that it answers to, where no
    flag can say another."""
    named = named_by_directory(plan.engine, plan.release)
    return (
        linked_model(plan) if named else model_path,
        "--host",
        plan.bind,
        "--port",
        str(plan.port),
        "--tp_size",
        str(plan.tensor_parallel_size),
        "--max_seq_len",
        str(plan.max_model_len),
        "--max_batch_size",
        str(plan.max_num_seqs),
        "--max_num_tokens",
        str(plan.parameters["max_num_batched_tokens"]),
        "--config",
        f"{RUN}/{runtime_directory(plan)}/config.yaml",
        *(word for word in plan.feature_arguments if not word.startswith("{")),
        *(() if named else ("--served_model_name", plan.served_model_name)),
    )


def linked_model(plan: Plan) -> str:
    """A link to the model's directory that is called as clients call the model."""
    return f"{RUN}/{runtime_directory(plan)}/model/{plan.served_model_name}"


def tensorrt_llm_settings(plan: Plan) -> dict[str, Any]:
    """What only its configuration file can say; a word for the backend that it does not know would
    be replaced in silence. Arguments of features that are JSON are fragments of the file."""
    settings: dict[str, Any] = {
        "attn_backend": backend_word(plan.engine, plan.attention_backend),
        "enable_chunked_prefill": True,
        "enable_iter_perf_stats": True,
        "kv_cache_config": {
            "dtype": cache_word(plan.engine, plan.kv_cache_dtype),
            "enable_block_reuse": "prefix-caching" in plan.features,
            "max_tokens": plan.max_model_len * plan.max_num_seqs,
        },
    }
    if plan.parameters.get("custom_all_reduce") is False:
        settings["allreduce_strategy"] = "NCCL"
    for word in plan.feature_arguments:
        settings |= json.loads(word) if word.startswith("{") else {}
    return settings
