"""Seeded random shapes of tiny models: each as the engine's configuration and as our row."""

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from gpuwright.memory.pool import CPU_BLOCK_MULTIPLE
from gpuwright.model_rows import Architecture, LayerGroup, LayerKind

HEAD_SIZES = (32, 64, 80, 96, 128, 192, 256)
COMMON = {
    "hidden_size": 256,
    "intermediate_size": 128,
    "vocab_size": 64,
    "max_position_embeddings": 65536,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One start of the engine: what it is given, and what our arithmetic is given."""

    name: str
    architecture: Architecture
    config: dict[str, Any]
    """Of transformers, with `model_type`."""
    pool_bytes: int
    max_model_len: int
    arguments: dict[str, Any] = field(default_factory=dict)
    """Further ones of the engine."""
    expected: dict[str, Any] = field(default_factory=dict)
    """Further ones of our pool()."""
    drafter: dict[str, Any] | None = None
    """Configuration of an external draft model."""
    generate: bool = True
    """Whether its kernels run on any CPU: else the engine starts and is asked nothing."""

    def as_data(self) -> dict[str, Any]:
        arguments = {
            "kv_cache_memory_bytes": self.pool_bytes,
            "max_model_len": self.max_model_len,
            "max_num_seqs": 4,
            **self.arguments,
        }
        return {
            "name": self.name,
            "config": self.config,
            "drafter": self.drafter,
            "arguments": arguments,
            "generate": self.generate,
        }


def _architecture(*groups: LayerGroup, mtp_layers: int = 0) -> Architecture:
    return Architecture(
        attention_heads=8,
        hidden_size=256,
        vocabulary=64,
        mtp_layers=mtp_layers,
        groups=tuple(group for group in groups if group.layers),
    )


def _lengths(random: Random) -> dict[str, int]:
    return {
        "pool_bytes": random.randrange(96 * 2**20, 512 * 2**20),
        "max_model_len": random.randrange(200, 9000),
    }


def full(random: Random, name: str) -> Shape:
    layers, heads = random.randrange(1, 9), random.choice((1, 2, 3, 4))
    head_size = random.choice(HEAD_SIZES)
    config = COMMON | {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "num_hidden_layers": layers,
        "num_attention_heads": heads * 2,
        "num_key_value_heads": heads,
        "head_dim": head_size,
    }
    group = LayerGroup(kind=LayerKind.FULL, layers=layers, kv_heads=heads, head_size=head_size)
    return Shape(name=name, architecture=_architecture(group), config=config, **_lengths(random))


def sliding(random: Random, name: str) -> Shape:
    layers = random.randrange(5, 13)
    every = random.choice((2, 3, 4, 5))
    kinds = [
        "full_attention" if index % every == every - 1 else "sliding_attention"
        for index in range(layers)
    ]
    heads, head_size = random.choice((1, 2, 3)), random.choice(HEAD_SIZES)
    window, batch = random.randrange(16, 2000), random.randrange(64, 3000)
    config = COMMON | {
        "model_type": "gemma3_text",
        "architectures": ["Gemma3ForCausalLM"],
        "num_hidden_layers": layers,
        "num_attention_heads": heads * 2,
        "num_key_value_heads": heads,
        "head_dim": head_size,
        "sliding_window": window,
        "layer_types": kinds,
    }
    group = {"kv_heads": heads, "head_size": head_size}
    growing = kinds.count("full_attention")
    return Shape(
        name=name,
        architecture=_architecture(
            LayerGroup(kind=LayerKind.FULL, layers=growing, **group),
            LayerGroup(kind=LayerKind.SLIDING, layers=layers - growing, window=window, **group),
        ),
        config=config,
        arguments={"max_num_batched_tokens": batch},
        expected={"max_num_batched_tokens": batch},
        **_lengths(random),
    )


def uneven(random: Random, name: str) -> Shape:
    """Windows beside layers with other heads, whose pages need not divide each other."""
    layers, every = random.randrange(6, 13), random.choice((3, 4, 6))
    # The last layer of this family sees everything, whatever the configuration says.
    kinds = [
        "sliding_attention" if index % every else "full_attention"
        for index in reversed(range(layers))
    ]
    heads, wide = random.choice((2, 4, 5)), random.choice((1, 1, 2))
    window, batch = random.randrange(16, 1000), random.randrange(64, 1500)
    config = COMMON | {
        "model_type": "gemma4_text",
        "architectures": ["Gemma4ForCausalLM"],
        "num_hidden_layers": layers,
        "num_attention_heads": heads * wide,
        "num_key_value_heads": heads,
        "head_dim": 64,
        "num_global_key_value_heads": wide,
        "global_head_dim": 128,
        "attention_k_eq_v": True,
        "hidden_size_per_layer_input": 0,
        "num_kv_shared_layers": 0,
        "sliding_window": window,
        "layer_types": kinds,
    }
    growing = kinds.count("full_attention")
    return Shape(
        name=name,
        architecture=_architecture(
            LayerGroup(kind=LayerKind.FULL, layers=growing, kv_heads=wide, head_size=128),
            LayerGroup(
                kind=LayerKind.SLIDING,
                layers=layers - growing,
                kv_heads=heads,
                head_size=64,
                window=window,
            ),
        ),
        config=config,
        arguments={"max_num_batched_tokens": batch},
        expected={"max_num_batched_tokens": batch},
        **_lengths(random),
    )


def hybrid(random: Random, name: str, **more: Any) -> Shape:
    every = random.choice((2, 3, 4))
    growing = random.randrange(2, 4)
    layers = growing * every + random.randrange(0, every - 1)
    heads, head_size = random.choice((1, 2, 4)), random.choice((64, 128, 256))
    key_heads = random.choice((2, 4))
    value_heads = key_heads * random.choice((1, 2, 4))
    prefix_caching = more.pop("prefix_caching", random.random() < 0.5)
    mtp_layers = more.pop("mtp_layers", 0)
    config = COMMON | {
        "model_type": "qwen3_next",
        "architectures": ["Qwen3NextForCausalLM"],
        "num_hidden_layers": layers,
        "full_attention_interval": every,
        "num_attention_heads": heads * 2,
        "num_key_value_heads": heads,
        "head_dim": head_size,
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": value_heads,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
        "num_nextn_predict_layers": mtp_layers,
    }
    lengths = _lengths(random)
    lengths["pool_bytes"] *= 2
    return Shape(
        name=name,
        architecture=_architecture(
            LayerGroup(kind=LayerKind.FULL, layers=growing, kv_heads=heads, head_size=head_size),
            LayerGroup(
                kind=LayerKind.LINEAR,
                layers=layers - growing,
                key_heads=key_heads,
                value_heads=value_heads,
                head_size=128,
            ),
            mtp_layers=mtp_layers,
        ),
        config=config,
        arguments={
            "enable_prefix_caching": prefix_caching,
            "mamba_ssm_cache_dtype": "float32",
            **more.pop("arguments", {}),
        },
        expected={"prefix_caching": prefix_caching, **more.pop("expected", {})},
        **lengths,
        **more,
    )


def latent(random: Random, name: str) -> Shape:
    # The CPU build's kernel decodes these two sizes alone.
    layers, heads = random.randrange(1, 9), random.choice((2, 4, 8))
    config = COMMON | {
        "model_type": "deepseek_v2",
        "architectures": ["DeepseekV2ForCausalLM"],
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "kv_lora_rank": 512,
        "q_lora_rank": None,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "moe_intermediate_size": 64,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
    }
    group = LayerGroup(kind=LayerKind.MLA, layers=layers, latent_size=512, rope_size=64)
    return Shape(name=name, architecture=_architecture(group), config=config, **_lengths(random))


def half_state(random: Random, name: str) -> Shape:
    return hybrid(
        random,
        name,
        arguments={"mamba_ssm_cache_dtype": "bfloat16"},
        expected={"state_bytes": 2},
        generate=False,
    )


def speculating(random: Random, name: str) -> Shape:
    """A hybrid that drafts with a layer of its own."""
    tokens = random.randrange(1, 5)
    return hybrid(
        random,
        name,
        mtp_layers=1,
        arguments={"speculative_config": {"method": "mtp", "num_speculative_tokens": tokens}},
        expected={"draft_tokens": tokens},
        generate=False,
    )


def drafted(random: Random, name: str) -> Shape:
    """Full attention with a draft model of another shape in the same pool."""
    target, draft = full(random, name), full(random, name)
    tokens = random.randrange(1, 5)
    return Shape(
        name=name,
        architecture=target.architecture,
        config=target.config,
        drafter=draft.config,
        pool_bytes=target.pool_bytes,
        max_model_len=target.max_model_len,
        arguments={
            "speculative_config": {"method": "draft_model", "num_speculative_tokens": tokens}
        },
        expected={"draft_tokens": tokens, "drafter": draft.architecture.groups},
        generate=False,
    )


def adapted(random: Random, name: str) -> Shape:
    """A shape of another family with room for adapters, and all that decides how much that is."""
    _, _, index = name.rpartition("-")
    draw = (full, sliding, uneven, hybrid)[int(index)]
    shape = draw(random, name)
    while COMMON["hidden_size"] % shape.config["num_attention_heads"]:
        # Some configurations are not taken otherwise.
        shape = draw(random, name)
    config = shape.config
    experts = {}
    if "num_experts" in config:
        experts = {
            "moe_layers": shape.architecture.layers,
            "experts": config["num_experts"],
            "expert_size": config["moe_intermediate_size"],
            "shared_experts": 1,
            "shared_expert_size": config["shared_expert_intermediate_size"],
        }
    architecture = replace(
        shape.architecture,
        attention_heads=config["num_attention_heads"],
        intermediate_size=config["intermediate_size"],
        **experts,
    )
    lora = {
        "enable_lora": True,
        "max_loras": random.randrange(1, 4),
        "max_lora_rank": random.choice((8, 16, 64)),
    }
    arguments = {**shape.arguments, **lora}
    # Experts with adapters are computed by a kernel for cards alone.
    generate = not experts
    return replace(shape, architecture=architecture, arguments=arguments, generate=generate)


FAMILIES = {
    "full": (full, range(3)),
    "sliding": (sliding, range(3)),
    "hybrid": (hybrid, range(3)),
    "latent": (latent, range(3)),
    "uneven": (uneven, range(2, 5)),
    "half-state": (half_state, range(1)),
    "speculating": (speculating, range(2)),
    "drafted": (drafted, range(2)),
    "adapted": (adapted, range(4)),
}
"""Family -> what draws its shapes, and their seeds."""


def shapes() -> tuple[Shape, ...]:
    """All shapes, the same ones each time."""
    return tuple(
        draw(Random(f"{family} {index}"), f"{family}-{index}")
        for family, (draw, seeds) in FAMILIES.items()
        for index in seeds
    )


def multiple(shape: Shape, *, amx: bool) -> int:
    """The CPU build's block multiple; its latent attention without AMX has one of its own."""
    latent_only = all(group.kind is LayerKind.MLA for group in shape.architecture.groups)
    return 16 if latent_only and not amx else CPU_BLOCK_MULTIPLE
