"""A model as an engine's configuration check wants it: its config.json and a tokenizer, no weights.

The shape is that of our row, so that a wrong row is found by the engine; what a row does not hold
(norms, activations) is left to the engine's own defaults.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpuwright.model_rows import Architecture, CheckpointRow, LayerGroup, LayerKind, ModelRow

_MARKS = (
    *("<think>", "</think>", "<tool_call>", "</tool_call>"),
    *("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|think|>"),
    *("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>"),
)
"""What parsers of reasoning and of tool calls look for in a vocabulary."""
_WORDS = {word: number for number, word in enumerate(("<unk>", "a", *_MARKS))}
_TOKENIZER = {
    "version": "1.0",
    "added_tokens": [
        {
            "id": _WORDS[mark],
            "content": mark,
            "special": True,
            "normalized": False,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
        }
        for mark in _MARKS
    ],
    "model": {"type": "WordLevel", "vocab": _WORDS, "unk_token": "<unk>"},
    "pre_tokenizer": {"type": "Whitespace"},
}
_QUANTIZATIONS: dict[str, dict[str, Any]] = {
    "fp8": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    "int4-awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True},
    "int4": {
        "quant_method": "auto-round",
        "bits": 4,
        "group_size": 128,
        "sym": True,
        "packing_format": "auto_round:auto_gptq",
    },
    "nvfp4": {
        "quant_method": "modelopt",
        "quant_algo": "NVFP4",
        "kv_cache_quant_algo": None,
        "group_size": 16,
        "ignore": ["lm_head"],
        "exclude_modules": ["lm_head"],
        "producer": {"name": "modelopt", "version": "0.33.0"},
    },
    "mxfp4": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
    "fp4_fp8": {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
        "scale_fmt": "ue8m0",
    },
}

_NESTED = {"gemma4_text": ("gemma4", "Gemma4ForConditionalGeneration")}
"""Language models that are only published inside one that takes images."""


def write(directory: Path, model: ModelRow, checkpoint: CheckpointRow) -> Path:
    """The folder of `checkpoint`, in `directory`; ValueError where nothing here describes it."""
    config = _FAMILIES[_family(model)](model.architecture)
    common = {
        "hidden_size": model.architecture.hidden_size,
        "vocab_size": model.architecture.vocabulary,
        "num_hidden_layers": model.architecture.layers,
        "num_attention_heads": model.architecture.attention_heads,
        "max_position_embeddings": model.max_context_tokens,
        "tie_word_embeddings": model.architecture.tied_embeddings,
        "torch_dtype": "bfloat16",
    }
    if model.architecture.intermediate_size:
        common["intermediate_size"] = model.architecture.intermediate_size
    config = common | config
    if config["model_type"] in _NESTED:
        config = _nested(config)
    if checkpoint.quantization != "bf16":
        config["quantization_config"] = _quantization(checkpoint)
    folder = directory / checkpoint.id
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "config.json": config,
        "tokenizer.json": _TOKENIZER,
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "unk_token": "<unk>",
            "model_max_length": model.max_context_tokens,
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return folder


def _nested(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a model that takes images: that of its language model is inside."""
    model_type, architecture = _NESTED[config["model_type"]]
    inside = {key: value for key, value in config.items() if key != "architectures"}
    return {
        "model_type": model_type,
        "architectures": [architecture],
        "torch_dtype": config["torch_dtype"],
        "tie_word_embeddings": config["tie_word_embeddings"],
        "text_config": inside,
        "vision_config": {"model_type": f"{model_type}_vision"},
    }


def _quantization(checkpoint: CheckpointRow) -> dict[str, Any]:
    """Weights in four bits say in their name who made them."""
    name = checkpoint.quantization
    if f"{name}-awq" in _QUANTIZATIONS and "awq" in checkpoint.id:
        name = f"{name}-awq"
    if name not in _QUANTIZATIONS:
        raise ValueError(f"{checkpoint.id}: weights in {name}")
    return _QUANTIZATIONS[name]


def _family(model: ModelRow) -> str:
    """A family whose models differ in what layers they have is described by those."""
    if model.family == "qwen3-next" and model.architecture.experts == 0:
        return "qwen3-next-dense"
    if model.family not in _FAMILIES:
        raise ValueError(f"{model.id}: family {model.family}")
    return model.family


def _group(architecture: Architecture, kind: LayerKind) -> LayerGroup:
    return architecture.of(kind)[0]


def _interleaved(architecture: Architecture, few: LayerKind, words: dict[LayerKind, str]) -> Any:
    """Layer types in even steps, each step ended by a layer of the kind with fewer layers."""
    step = architecture.layers // _group(architecture, few).layers
    many = next(kind for kind in words if kind is not few)
    return [
        words[few] if number % step == step - 1 else words[many]
        for number in range(architecture.layers)
    ]


def _plain(architecture: Architecture) -> dict[str, Any]:
    full = _group(architecture, LayerKind.FULL)
    return {"num_key_value_heads": full.kv_heads, "head_dim": full.head_size}


def _llama(architecture: Architecture) -> dict[str, Any]:
    return _plain(architecture) | {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}


def _qwen3(architecture: Architecture) -> dict[str, Any]:
    return _plain(architecture) | {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}


def _hybrid(architecture: Architecture) -> dict[str, Any]:
    linear = _group(architecture, LayerKind.LINEAR)
    return _plain(architecture) | {
        "layer_types": _interleaved(
            architecture,
            LayerKind.FULL,
            {LayerKind.FULL: "full_attention", LayerKind.LINEAR: "linear_attention"},
        ),
        "linear_num_key_heads": linear.key_heads,
        "linear_num_value_heads": linear.value_heads,
        "linear_key_head_dim": linear.head_size,
        "linear_value_head_dim": linear.head_size,
        "linear_conv_kernel_dim": linear.convolution,
        "mtp_num_hidden_layers": architecture.mtp_layers,
    }


def _qwen3_5(architecture: Architecture) -> dict[str, Any]:
    names = {"model_type": "qwen3_5_text", "architectures": ["Qwen3_5ForCausalLM"]}
    return _hybrid(architecture) | names


def _qwen3_5_moe(architecture: Architecture) -> dict[str, Any]:
    return _hybrid(architecture) | {
        "model_type": "qwen3_5_moe_text",
        "architectures": ["Qwen3_5MoeForCausalLM"],
        "num_experts": architecture.experts,
        "num_experts_per_tok": architecture.active_experts,
        "moe_intermediate_size": architecture.expert_size,
        "shared_expert_intermediate_size": architecture.shared_expert_size
        or architecture.expert_size,
    }


def _gemma4(architecture: Architecture) -> dict[str, Any]:
    full, sliding = _group(architecture, LayerKind.FULL), _group(architecture, LayerKind.SLIDING)
    config = {
        "model_type": "gemma4_text",
        "architectures": ["Gemma4ForCausalLM"],
        "layer_types": _interleaved(
            architecture,
            LayerKind.FULL,
            {LayerKind.FULL: "full_attention", LayerKind.SLIDING: "sliding_attention"},
        ),
        "num_key_value_heads": sliding.kv_heads,
        "num_global_key_value_heads": full.kv_heads,
        "head_dim": sliding.head_size,
        "global_head_dim": full.head_size,
        "sliding_window": sliding.window,
    }
    if architecture.experts:
        config |= {
            "enable_moe_block": True,
            "num_experts": architecture.experts,
            "top_k_experts": architecture.active_experts,
            "moe_intermediate_size": architecture.expert_size,
        }
    return config


def _gpt_oss(architecture: Architecture) -> dict[str, Any]:
    sliding = _group(architecture, LayerKind.SLIDING)
    return _plain(architecture) | {
        "model_type": "gpt_oss",
        "architectures": ["GptOssForCausalLM"],
        "sliding_window": sliding.window,
        "num_local_experts": architecture.experts,
        "num_experts_per_tok": architecture.active_experts,
        "intermediate_size": architecture.expert_size,
    }


def _glm4_moe(architecture: Architecture) -> dict[str, Any]:
    return _plain(architecture) | {
        "model_type": "glm4_moe",
        "architectures": ["Glm4MoeForCausalLM"],
        "n_routed_experts": architecture.experts,
        "num_experts_per_tok": architecture.active_experts,
        "moe_intermediate_size": architecture.expert_size,
        "num_nextn_predict_layers": architecture.mtp_layers,
    }


def _glm4_moe_lite(architecture: Architecture) -> dict[str, Any]:
    latent = _group(architecture, LayerKind.MLA)
    return {
        "model_type": "glm4_moe_lite",
        "architectures": ["Glm4MoeLiteForCausalLM"],
        "num_key_value_heads": architecture.attention_heads,
        "kv_lora_rank": latent.latent_size,
        "qk_rope_head_dim": latent.rope_size,
        "n_routed_experts": architecture.experts,
        "num_experts_per_tok": architecture.active_experts,
        "moe_intermediate_size": architecture.expert_size,
        "num_nextn_predict_layers": architecture.mtp_layers,
    }


def _deepseek4(architecture: Architecture) -> dict[str, Any]:
    compressed = _group(architecture, LayerKind.COMPRESSED)
    return {
        "model_type": "deepseek_v4",
        "architectures": ["DeepseekV4ForCausalLM"],
        "num_key_value_heads": compressed.kv_heads,
        "head_dim": compressed.head_size,
        "n_routed_experts": architecture.experts,
        "n_shared_experts": architecture.shared_experts,
        "num_experts_per_tok": architecture.active_experts,
        "moe_intermediate_size": architecture.expert_size,
    }


_FAMILIES = {
    "deepseek4": _deepseek4,
    "llama": _llama,
    "qwen3": _qwen3,
    "qwen3-next": _qwen3_5_moe,
    "qwen3-next-dense": _qwen3_5,
    "gemma4": _gemma4,
    "gpt-oss": _gpt_oss,
    "glm4-moe": _glm4_moe,
    "glm4-moe-lite": _glm4_moe_lite,
}
