"""Runs inside SGLang's own environment: asks its code, on stand-in cards, what it would do.

It goes on from sglang_plan.py, which nodes run; the protocol is that of vllm_questions.py. SGLang
asks torch about the card, so torch is given the stand-in's answers first. It decides per model, so
each kind of layer is asked with a model of it.
"""

import argparse
import json
import logging
import os
import platform
import shutil
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch

CAPABILITY = tuple(int(part) for part in os.environ["STANDIN_CAPABILITY"].split("."))
CARDS = int(os.environ["STANDIN_CARDS"])
MEMORY = int(os.environ["STANDIN_MEMORY_GIB"]) * 2**30


def card(_device=None):
    return SimpleNamespace(
        name=f"Stand-in {CAPABILITY[0]}.{CAPABILITY[1]}",
        major=CAPABILITY[0],
        minor=CAPABILITY[1],
        multi_processor_count=64,
        total_memory=MEMORY,
        warp_size=32,
        is_integrated=False,
        shared_memory_per_block_optin=101376,
    )


for name, value in {
    "is_available": lambda: True,
    "device_count": lambda: CARDS,
    "get_device_capability": lambda device=None: CAPABILITY,
    "get_device_properties": card,
    "get_device_name": lambda device=None: card().name,
    "current_device": lambda: 0,
    "mem_get_info": lambda device=None: (MEMORY, MEMORY),
    "set_device": lambda device: None,
    "empty_cache": lambda: None,
}.items():
    setattr(torch.cuda, name, value)

from sglang.srt.server_args import ServerArgs  # noqa: E402
from sglang_plan import backend, rehearse, said, settled  # noqa: E402

LAYERS, HEADS, KV_HEADS, WINDOW = 4, 16, 4, 1024
FOLDERS = Path(tempfile.mkdtemp())
TOKENIZER = {
    "version": "1.0",
    "added_tokens": [],
    "model": {"type": "WordLevel", "vocab": {"<unk>": 0, "a": 1}, "unk_token": "<unk>"},
    "pre_tokenizer": {"type": "Whitespace"},
}


def model(cell):
    """A folder with the configuration of a model of the cell's kind; None where there is none."""
    common = {
        "hidden_size": 2048,
        "intermediate_size": 2048,
        "vocab_size": 1024,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": cell["head"],
        "max_position_embeddings": 8192,
        "torch_dtype": cell["dtype"],
    }
    kind = ("mla" if cell["mla"] else "heads", cell["sliding"], cell["sinks"])
    special = {
        ("heads", False, False): {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]},
        ("heads", True, False): {
            "model_type": "gemma3_text",
            "architectures": ["Gemma3ForCausalLM"],
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention"] * (LAYERS // 2),
        },
        ("heads", True, True): {
            "model_type": "gpt_oss",
            "architectures": ["GptOssForCausalLM"],
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "sliding_window": 128,
            "layer_types": ["sliding_attention", "full_attention"] * (LAYERS // 2),
        },
        ("mla", False, False): {
            "model_type": "deepseek_v3",
            "architectures": ["DeepseekV3ForCausalLM"],
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 128,
            "q_lora_rank": 1536,
            "v_head_dim": 128,
            "head_dim": 64,
            "num_key_value_heads": HEADS,
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 512,
            "n_group": 1,
            "topk_group": 1,
        },
    }.get(kind)
    if special is None:
        return None
    folder = FOLDERS / "-".join(map(str, (*kind, cell["head"], cell["dtype"])))
    if not folder.exists():
        folder.mkdir()
        files = {
            "config.json": common | special,
            "tokenizer.json": TOKENIZER,
            "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"},
        }
        for name, content in files.items():
            (folder / name).write_text(json.dumps(content))
    return folder


def choose(cell):
    """The backend for `cell`; that of prefill and of decode where they differ."""
    folder = model(cell)
    if folder is None:
        return {"chosen": None, "because": "no model of this kind"}
    try:
        told = settled(["--model-path", str(folder), "--kv-cache-dtype", cell["kv"]])
    except Exception as error:
        return {"chosen": None, "because": shown(error)}
    return {"chosen": backend(told), "constructs": None, "because": NOT_MADE}


NOT_MADE = "it is made from a loaded model alone"


def parser():
    made = argparse.ArgumentParser()
    ServerArgs.add_cli_args(made)
    return made


def flags():
    """Every option of the server: its names, whether it takes a value, which are legal."""
    rows = []
    for action in parser()._actions:
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


def cache_dtypes():
    return next(row["values"] for row in flags() if "--kv-cache-dtype" in row["names"])


def defaults():
    plain = {"head": 128, "mla": False, "sliding": False, "sinks": False, "dtype": "bfloat16"}
    told = settled(["--model-path", str(model(plain))])
    names = (
        *("mem_fraction_static", "page_size", "chunked_prefill_size", "max_running_requests"),
        *("kv_cache_dtype", "sampling_backend", "grammar_backend", "cuda_graph_max_bs"),
    )
    return {name: str(told[name]) for name in names if told.get(name) is not None}


def shown(error):
    return said(error).replace(str(FOLDERS), "FOLDER")[:300]


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
    told["plans"] = [rehearse(arguments) for arguments in asked.get("plans", [])]
    shutil.rmtree(FOLDERS)
    sys.stdout.write("\n" + json.dumps(told) + "\n")


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    main()
