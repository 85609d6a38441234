"""A decision as JSON data: the keys that docs/cli.md describes, and that pins are called by."""

from __future__ import annotations

import dataclasses
from typing import Any

from gpuwright.launch import Launch, launch, model_path_of
from gpuwright.layout import Layout
from gpuwright.plan import KV_CACHE, WEIGHTS, Plan
from gpuwright.refusals import Refusal
from gpuwright.want import Want

_OF_PLAN = (
    "engine",
    "release",
    "checkpoint",
    "attention_backend",
    "kv_cache_dtype",
    "tensor_parallel_size",
    "gpus",
    "max_model_len",
    "max_num_seqs",
    "speculative",
    "arguments",
    "environment",
    "memory",
)
"""Keys that are null on a refusal."""


def decision_as_data(
    decision: Plan | Refusal, want: Want, assumed: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The decision on `want` as data; `assumed` is what its node's sketch left unsaid."""
    if isinstance(decision, Refusal):
        return {
            "verdict": "refusal",
            "service": want.service,
            "model": decision.model,
            "workload": want.workload,
            **dict.fromkeys(_OF_PLAN),
            "summary": decision.summary,
            "warnings": [],
            "reasons": list(decision.reasons),
            "remedies": list(decision.remedies),
            "why_not": [dataclasses.asdict(each) for each in decision.why_not],
            "assumed": list(assumed),
        }
    start = example_launch(decision, want.layout)
    speculation = decision.speculation
    found = {
        "engine": decision.engine,
        "release": decision.release,
        "checkpoint": decision.checkpoint,
        "attention_backend": decision.attention_backend,
        "kv_cache_dtype": decision.kv_cache_dtype,
        "tensor_parallel_size": decision.tensor_parallel_size,
        "gpus": [gpu.index for gpu in decision.gpus],
        "max_model_len": decision.max_model_len,
        "max_num_seqs": decision.max_num_seqs,
        "speculative": None if speculation is None else dataclasses.asdict(speculation),
        "arguments": list(start.argv),
        "environment": start.environment,
        "memory": _memory(decision),
    }
    return {
        "verdict": "plan",
        "service": decision.service,
        "model": decision.model,
        "workload": want.workload,
        **{key: found[key] for key in _OF_PLAN},
        "build_tag": decision.build_tag,
        "quantization": decision.quantization,
        "served_model_name": decision.served_model_name,
        "bind": decision.bind,
        "port": decision.port,
        "cards": [dataclasses.asdict(gpu) for gpu in decision.gpus],
        "features": list(decision.features),
        "beside": [each.id for each in decision.beside],
        "not_applicable": decision.not_applicable,
        "warnings": [
            {"hazard": each.hazard, "because": each.because, "instead": each.instead}
            for each in decision.warnings
        ],
        "reasons": list(decision.reasons),
        "why_not": [dataclasses.asdict(each) for each in decision.why_not],
        "assumed": [*assumed, *decision.assumed],
    }


def example_launch(plan: Plan, layout: Layout) -> Launch:
    """The command of a plan that nobody has applied: KEY and MODEL.gguf stand for names that
    installing it would settle."""
    engine_dir = layout.engine_dir(plan.engine, plan.release, "KEY")
    return launch(plan, layout, model_path_of(plan, layout), engine_dir)


def _memory(plan: Plan) -> dict[str, Any]:
    """Bytes on the fullest device, with the figures of the engine's own arithmetic, and what each
    device holds."""
    memory = plan.memory
    outside = plan.figures["reserve_bytes"] - memory.margin_bytes
    return {
        "where": memory.where,
        "available_bytes": memory.available_bytes,
        "needed_bytes": memory.needed_bytes,
        "free_bytes": memory.margin_bytes,
        "ram_bytes": plan.ram_bytes,
        **plan.figures,
        "terms": [dataclasses.asdict(term) for term in memory.terms],
        "devices": [
            {
                "where": each.where,
                "available_bytes": each.available_bytes,
                "needed_bytes": each.needed_bytes,
                "weights_bytes": each.bytes_of(WEIGHTS),
                "kv_cache_bytes": each.bytes_of(KV_CACHE),
                "reserve_bytes": each.margin_bytes + outside,
                "free_bytes": each.margin_bytes,
            }
            for each in plan.devices
        ],
    }
