"""Runs inside vLLM's own environment: what its parser and its own check make of a whole plan.

Called with a file of JSON, `rehearse`: lists of the server's arguments. The last line of stdout is
a JSON object, `rehearsed`: for each why it is refused, or what the engine settled on.
"""

import importlib
import json
import logging
import sys
from contextlib import suppress
from pathlib import Path

from vllm.config import set_current_vllm_config
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser


def parser():
    """The parser of `vllm serve`; it moved between releases."""
    for place in ("common", "launchers", "openai"):
        with suppress(ImportError):
            module = importlib.import_module(f"vllm.entrypoints.{place}.cli_args")
            return module.make_arg_parser(FlexibleArgumentParser())
    raise ImportError("no parser of the server was found")


def refuse(message):
    raise ValueError(message)


def settled(arguments):
    """The engine's configuration of `arguments`; whatever it raises is its refusal."""
    told = parser()
    # A parser ends the process where it refuses, and says why elsewhere.
    told.error = refuse
    parsed = told.parse_args(arguments)
    parsed.model = parsed.model_tag or parsed.model
    return EngineArgs.from_cli_args(parsed).create_engine_config()


def said(error):
    return " ".join(f"{type(error).__name__}: {error}".split())[:400]


def rehearse(arguments):
    try:
        config = settled(arguments)
        answer = {
            "attention_backend": backend(config),
            "max_model_len": config.model_config.max_model_len,
            "max_num_seqs": config.scheduler_config.max_num_seqs,
            "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
        }
    except (Exception, SystemExit) as error:
        return {"refused": said(error)}
    return {"refused": None, **answer}


def backend(config):
    """The attention backend that its layers would be given, by the engine's own name."""
    from vllm.v1.attention.selector import get_attn_backend

    asked = config.attention_config.backend
    if asked is not None and asked.get_class().is_sparse():
        # Only layers of sparse attention take it; they ask for it in their own words.
        return asked.get_class().get_name()
    model = config.model_config
    with set_current_vllm_config(config):
        return get_attn_backend(
            model.get_head_size(),
            model.dtype,
            config.cache_config.cache_dtype,
            use_mla=model.use_mla,
        ).get_name()


def main():
    logging.disable(logging.WARNING)
    asked = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    told = {"rehearsed": [rehearse(arguments) for arguments in asked["rehearse"]]}
    sys.stdout.write("\n" + json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
