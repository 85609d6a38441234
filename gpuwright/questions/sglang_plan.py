"""Runs inside SGLang's own environment: what its parser and its own check make of a whole plan.

The protocol is that of vllm_plan.py. No key is told to it, and none is in what it answers.
"""

import argparse
import json
import logging
import sys
from pathlib import Path

from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.server_args import prepare_server_args


def refuse(_parser, message):
    raise ValueError(message)


# A parser ends the process where it refuses, and says why elsewhere.
argparse.ArgumentParser.error = refuse


def without_file(arguments):
    """`arguments` without the file that the service writes at its start: it holds the key alone."""
    place = arguments.index("--config") if "--config" in arguments else len(arguments)
    return [*arguments[:place], *arguments[place + 2 :]]


def settled(arguments):
    """What the server would run with, by field; whatever it raises is its refusal."""
    told = prepare_server_args(without_file(arguments))
    # Until 0.5.10.post1 this was done where the arguments were read.
    if hasattr(told, "resolve_once"):
        told.resolve_once()
    told.check_server_args()
    fields = told.resolved_dict() if hasattr(told, "resolved_dict") else vars(told)
    return {**fields, "context_length": ModelConfig.from_server_args(told).context_len}


def said(error):
    return " ".join(f"{type(error).__name__}: {error}".split())[:400]


def rehearse(arguments):
    try:
        fields = settled(arguments)
        answer = {
            "attention_backend": backend(fields),
            "kv_cache_dtype": fields["kv_cache_dtype"],
            "max_model_len": fields["context_length"],
            "max_num_seqs": fields["max_running_requests"],
            "tensor_parallel_size": fields["tp_size"],
            "page_size": fields["page_size"],
        }
    except (Exception, SystemExit) as error:
        return {"refused": said(error)}
    return {"refused": None, **answer}


def backend(fields):
    """The attention backend by the engine's own name; both where prefill and decode differ."""
    both = [fields[f"{phase}_attention_backend"] for phase in ("prefill", "decode")]
    prefill, decode = (chosen or fields["attention_backend"] for chosen in both)
    return prefill if prefill == decode else f"{prefill} and {decode}"


def main():
    logging.disable(logging.WARNING)
    asked = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    told = {"rehearsed": [rehearse(arguments) for arguments in asked["rehearse"]]}
    sys.stdout.write("\n" + json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
