"""Runs inside vLLM's own environment: asks its code, on a stand-in card, what it would do.

One JSON object on stdin: `cells` (what to choose for), `flags` and `defaults` (true: tell them),
`plans` (arguments for its own check of a configuration). One JSON object on the last line of
stdout. Only the engine's own answers are written: no rule of ours stands here.
"""

import argparse
import dataclasses
import json
import logging
import platform
import sys
from contextlib import suppress
from types import SimpleNamespace
from typing import get_args

import torch
from torch.overrides import TorchFunctionMode
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.platforms import current_platform
from vllm.utils.import_utils import resolve_obj_by_qualname
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.attention.selector import AttentionSelectorConfig
from vllm_plan import parser, rehearse

HEADS, KV_HEADS, WINDOW = 16, 4, 1024
LATENT, ROPE = 512, 64
REFUSALS = (ValueError, NotImplementedError, AssertionError)
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class OnCpu(TorchFunctionMode):
    """What a constructor would allocate on the card it gets in RAM."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if torch.device(kwargs.get("device") or "cpu").type == "cuda":
            kwargs["device"] = "cpu"
        return function(*args, **kwargs)


def card(_device=None):
    """The properties that torch would read from the card."""
    capability = current_platform.get_device_capability()
    return SimpleNamespace(
        name="stand-in",
        major=capability.major,
        minor=capability.minor,
        multi_processor_count=64,
        total_memory=current_platform.get_device_total_memory(),
        warp_size=32,
        is_integrated=False,
    )


def choose(cell):
    """The backend for `cell`, and whether it takes the cell when it is made."""
    config = AttentionSelectorConfig(
        head_size=cell["head"] or LATENT + ROPE,
        dtype=DTYPES[cell["dtype"]],
        kv_cache_dtype=cell["kv"],
        block_size=None,
        use_mla=cell["mla"],
        has_sink=cell["sinks"],
        **({"has_sliding_window": cell["sliding"]} if HAS_WINDOW else {}),
    )
    try:
        with suppress(NotImplementedError):  # a CPU is not asked
            current_platform.check_if_supports_dtype(DTYPES[cell["dtype"]])
        with set_current_vllm_config(CONFIG), OnCpu():
            path = current_platform.get_attn_backend_cls(
                None, attn_selector_config=config, num_heads=HEADS
            )
    except ValueError as error:
        if "No valid attention backend" in str(error):
            return {"chosen": None}
        if "is only supported on GPUs" in str(error):
            return {"chosen": None, "because": "the activations are in a type the card lacks"}
        raise
    backend = resolve_obj_by_qualname(path)
    answer = {"chosen": backend.get_name()}
    try:
        made = make(backend, cell)
    except REFUSALS as error:
        return answer | {"constructs": False, "because": " ".join(str(error).split())}
    except Exception as error:  # it needs a real card to say
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return answer | {"constructs": None, "because": text[:160]}
    version = getattr(made, "vllm_flash_attn_version", None)
    return answer | {"constructs": True} | ({"version": version} if version else {})


def make(backend, cell):
    """The object that computes a layer."""
    common = {
        "num_heads": HEADS,
        "head_size": cell["head"] or LATENT + ROPE,
        "scale": 1.0,
        "num_kv_heads": 1 if cell["mla"] else KV_HEADS,
        "alibi_slopes": None,
        "sliding_window": WINDOW if cell["sliding"] else None,
        "kv_cache_dtype": "auto" if cell["kv"] is None else cell["kv"],
        "logits_soft_cap": None,
        "attn_type": "decoder",
        "kv_sharing_target_layer_name": None,
    }
    with set_current_vllm_config(MADE), OnCpu():
        if not cell["mla"]:
            sinks = {"sinks": torch.zeros(HEADS)} if cell["sinks"] else {}
            return backend.get_impl_cls()(**common, **sinks)
        return backend.get_impl_cls()(
            **common,
            q_lora_rank=1536,
            kv_lora_rank=LATENT,
            qk_nope_head_dim=128,
            qk_rope_head_dim=ROPE,
            qk_head_dim=128 + ROPE,
            v_head_dim=128,
            kv_b_proj=None,
            indexer=None,
        )


def flags():
    """Every option of `vllm serve`: its names, whether it takes a value, which are legal."""
    rows = parser_flags(parser())
    # The parser takes any text for these: what is legal is looked up after it.
    checked = {
        "--kv-cache-dtype": cache_dtypes(),
        "--attention-backend": list(AttentionBackendEnum.__members__),
    }
    for row in rows:
        for name in set(row["names"]) & set(checked):
            row.setdefault("values", checked[name])
    return rows


def cache_dtypes():
    from vllm.config.cache import CacheDType

    return list(get_args(CacheDType))


def parser_flags(parser):
    rows = []
    for action in parser._actions:
        if not action.option_strings or isinstance(action, argparse._HelpAction):
            continue
        row = {"names": list(action.option_strings), "takes": takes(action)}
        if action.choices is not None:
            row["values"] = [str(value) for value in action.choices]
        rows.append(row)
    return rows


def takes(action):
    """How many values follow: 0, 1, ? or *."""
    if action.nargs == 0:
        return "0"
    return {None: "1", "?": "?"}.get(action.nargs, "*")


def defaults():
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext

    names = ("gpu_memory_utilization", "block_size", "enable_prefix_caching", "kv_cache_dtype")
    values = {field.name: field.default for field in dataclasses.fields(EngineArgs)}
    told = {name: values[name] for name in names}
    try:
        batched, sequences = EngineArgs.get_batch_defaults(1)
    except TypeError:
        batched, sequences = EngineArgs.get_batch_defaults()
    server = UsageContext.OPENAI_API_SERVER
    told["max_num_batched_tokens"] = batched.get(server)
    told["max_num_seqs"] = sequences.get(server)
    return {name: str(value) for name, value in told.items() if value is not None}


def main():
    asked = json.load(sys.stdin)
    told = {"python": platform.python_version()}
    told["answers"] = [choose(cell) for cell in asked.get("cells", [])]
    if asked.get("kv_cache_dtypes"):
        told["kv_cache_dtypes"] = cache_dtypes()
    if asked.get("flags"):
        told["flags"] = flags()
    if asked.get("defaults"):
        told["defaults"] = defaults()
    with OnCpu():  # some backends want their workspace as soon as they are looked up
        told["plans"] = [rehearse(arguments) for arguments in asked.get("plans", [])]
    sys.stdout.write("\n" + json.dumps(told) + "\n")


logging.disable(logging.WARNING)
HAS_WINDOW = "has_sliding_window" in AttentionSelectorConfig._fields
CONFIG = VllmConfig()
# Only what constructors read of a model: the choice itself is asked without one.
MADE = VllmConfig()
MADE.model_config = SimpleNamespace(
    max_model_len=4096,
    is_mm_prefix_lm=False,
    rswa_window=None,
    is_diffusion=False,
    dtype=torch.bfloat16,
    hf_text_config=SimpleNamespace(),
)
torch.cuda.get_device_properties = card

if __name__ == "__main__":
    main()
