"""Runs inside SGLang's own environment: asks its code, on stand-in cards, what it would do.

It goes on from sglang_plan.py, which nodes run; the protocol is that of vllm_questions.py. SGLang
decides per model, so each kind of layer is asked with a model of it.
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

import torch_cards  # noqa: F401  before the engine asks
from sglang.srt.server_args import ServerArgs
from sglang_plan import backend, rehearse, said, settled

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


class NoCardError(Exception):
    """What would need one comes next."""


def started(asked):
    """What the server writes as it starts with `arguments`, up to where it needs a card, and when
    a request changes one of its settings."""
    os.environ.update(asked["environment"])
    logging.disable(logging.NOTSET)
    kept = [os.dup(number) for number in (1, 2)]
    with tempfile.TemporaryFile("w+") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
        try:
            start(asked["arguments"])
        finally:
            sys.stdout.flush()
            for number, place in zip((1, 2), kept, strict=True):
                os.dup2(place, number)
        file.seek(0)
        return file.read()


def start(arguments):
    from sglang import launch_server
    from sglang.srt import server_args as module
    from sglang.srt.entrypoints.engine import Engine
    from sglang.srt.managers import scheduler

    def launch_no_scheduler(*_arguments, **_named):
        raise NoCardError

    Engine._launch_scheduler_processes = launch_no_scheduler
    told = module.prepare_server_args(arguments)
    try:
        launch_server.run_server(told)
    except NoCardError:
        logging.getLogger("sglang").info("it goes on")
    if hasattr(scheduler, "get_global_server_args"):
        # As a scheduler's process does it, whose logs are configured alike.
        module.set_global_server_args_for_scheduler(told)
        one = SimpleNamespace(
            spec_algorithm=SimpleNamespace(is_none=lambda: True), max_running_requests=1, pp_size=1
        )
        scheduler.Scheduler.set_internal_state(one, SimpleNamespace(server_args={}))


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
    if asked.get("start"):
        told["started"] = started(asked["start"])
    shutil.rmtree(FOLDERS)
    sys.stdout.write("\n" + json.dumps(told) + "\n")


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    main()
