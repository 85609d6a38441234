"""Runs inside TensorRT-LLM's own environment: asks its code, on a stand-in card, what it would do.

The protocol is that of vllm_questions.py, without plans. Its code has one backend by default,
whatever the card, so a choice shows that its kernels' libraries load, and no more.
"""

import importlib
import json
import platform
import sys
from contextlib import suppress

from tensorrt_llm.commands.serve import serve
from tensorrt_llm.llmapi.llm_args import TorchLlmArgs

BACKENDS = ("tensorrt_llm._torch.attention.backends", "tensorrt_llm._torch.attention_backend")
"""Where its attention stands; it moved between releases."""


def backend():
    """Its default backend's name, once the class that computes with it could be loaded."""
    name = TorchLlmArgs.model_fields["attn_backend"].default
    for place in BACKENDS:
        with suppress(ModuleNotFoundError):
            module = importlib.import_module(f"{place}.utils")
            module.get_attention_backend(name)
            return name
    raise ImportError("no attention backend was found")


def flags():
    """Every option of the server: its names, whether it takes a value, which are legal."""
    rows = []
    for option in serve.params:
        if option.param_type_name != "option":
            continue
        flag, many = getattr(option, "is_flag", False), getattr(option, "multiple", False)
        row = {
            "names": [*option.opts, *option.secondary_opts],
            "takes": "0" if flag else "*" if many else "1",
        }
        choices = getattr(option.type, "choices", None)
        if choices is not None:
            row["values"] = [str(value) for value in choices]
        rows.append(row)
    return rows


def main():
    asked = json.load(sys.stdin)
    told = {"python": platform.python_version()}
    told["answers"] = [{"chosen": backend(), "constructs": None} for _ in asked.get("cells", [])]
    if asked.get("flags"):
        told["flags"] = flags()
    sys.stdout.write("\n" + json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
