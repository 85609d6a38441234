"""`gpuwright kv`: what a KV cache of a given size holds, by the engine's own arithmetic."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gpuwright.cli import EXIT_OK, EXIT_REFUSED
from gpuwright.kv_arguments import read_kv_question
from gpuwright.kv_question import KvQuestion
from gpuwright.load import load_matrix
from gpuwright.memory.cache import Cache
from gpuwright.quoting import nearest, quoted
from gpuwright.refusals import Reason, gib

SWITCH = ("on", "off")
STATE_DTYPES = {"float32": 4, "bfloat16": 2, "float16": 2}
_MOST = 1 << 24
_MOST_DIGITS = 12
_OF_ENGINES = (
    "max_num_batched_tokens",
    "block_multiple",
    "gpu_memory_utilization",
    "mem_fraction_static",
)
"""Options that not every engine has."""


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", required=True, metavar="NAME", help="id or alias of a model")
    add("--checkpoint", metavar="NAME", help="one of its checkpoints; with --gpu its weights count")
    add("--engine", required=True, metavar="NAME", help="whose arithmetic")
    add("--release", metavar="NAME", help="of the engine; default: what holds of any of them")
    add("--tensor-parallel-size", metavar="N", default="1", help="cards (1)")
    add("--kv-cache-dtype", metavar="NAME", help="element type; default: 16 bits")
    add("--max-model-len", metavar="N", help="tokens of a request; default: the model's own")
    add("--max-num-seqs", metavar="N", default="1", help="requests at once (1)")
    add("--max-num-batched-tokens", metavar="N", help="tokens of a step (8192)")
    add("--speculative-tokens", metavar="N", default="0", help="drafted at a time (0)")
    add("--prefix-caching", metavar="on|off", default="on", help="on by default")
    add("--state-dtype", metavar="NAME", default="float32", help=", ".join(STATE_DTYPES))
    add(
        "--block-multiple",
        metavar="N",
        help="of the attention backend: 16 on CUDA, 128 in vLLM's CPU build",
    )
    size = parser.add_argument_group("the cache's size", "one of the two, of each card")
    size.add_argument("--available-gib", metavar="X", help="the cache itself, in GiB")
    size.add_argument("--gpu", metavar="NAME", help="a card, whose memory the engine shares out")
    size.add_argument(
        "--gpu-memory-utilization", metavar="U", help="share of it that the engine is given (0.92)"
    )
    size.add_argument(
        "--mem-fraction-static",
        metavar="F",
        help="share of it for SGLang's weights and cache (0.88)",
    )
    add("--extra-models", type=Path, metavar="FILE", help="further model rows, as in matrix/models")
    add("--json", action="store_true", help="the answer as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print what the cache holds; 3 where it does not hold one request."""
    question = read_kv_question(
        arguments, *read_numbers(arguments), load_matrix(arguments.extra_models)
    )
    answer = question.answer()
    if not isinstance(answer, Cache):
        return _refuse(arguments, question, answer)
    shortage = question.shortage(answer)
    if arguments.json:
        data = question.as_data() | dataclasses.asdict(answer)
        data.pop("needed_bytes")
        data["reason"] = shortage
        sys.stdout.write(json.dumps(data, indent=2) + "\n")
    else:
        sys.stdout.write("\n".join((*_table(question, answer), *_ends(question, shortage))) + "\n")
    return EXIT_REFUSED if shortage is not None else EXIT_OK


def _refuse(arguments: argparse.Namespace, question: KvQuestion, reason: Reason) -> int:
    if arguments.json:
        data: dict[str, Any] = question.as_data()
        data |= {field.name: None for field in dataclasses.fields(Cache)}
        data.pop("needed_bytes")
        data["reason"] = reason.sentence()
        sys.stdout.write(json.dumps(data, indent=2) + "\n")
    else:
        row = getattr(reason, "row", None)
        sys.stdout.write(f"refused: {reason.sentence()}" + (f" [{row}]\n" if row else "\n"))
    return EXIT_REFUSED


def _table(question: KvQuestion, cache: Cache) -> Iterable[str]:
    yield question.title
    each = "" if question.whole else " on each card"
    rows: Sequence[tuple[str, str | None]] = (
        ("KV cache", f"{gib(question.pool_bytes)}{each}"),
        ("holds", f"{cache.kv_cache_tokens:,} tokens"),
        ("at once", f"{cache.max_concurrency:.2f} requests of {question.tokens:,} tokens"),
        ("longest request", f"{cache.max_context:,} tokens"),
        ("a token", f"{cache.bytes_per_token:,} bytes"),
        ("state of a request", _state(cache)),
        ("blocks", _blocks(cache)),
    )
    for name, text in rows:
        if text is not None:
            yield f"  {name:<18}  {text}"


def _state(cache: Cache) -> str | None:
    count = cache.state_bytes_per_sequence
    return f"{gib(count)} ({count:,} bytes)" if count else None


def _blocks(cache: Cache) -> str | None:
    if cache.num_blocks is None:
        return None
    return f"{cache.num_blocks:,} of {cache.block_tokens:,} tokens"


def _ends(question: KvQuestion, shortage: str | None) -> Iterable[str]:
    if question.assumed:
        yield f"  assumed             {'; '.join(question.assumed)}"
    if shortage is not None:
        yield f"refused: {shortage}"


def read_numbers(arguments: argparse.Namespace) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The numbers and words of the options that are sound, and a fault for each other one."""
    faults: list[str] = []
    found: dict[str, Any] = {}

    def whole(key: str, low: int, high: int) -> None:
        text = getattr(arguments, key)
        if text is None:
            return
        digits = str(text).replace("_", "").replace(",", "")
        whole_number = digits.isascii() and digits.isdecimal() and len(digits) <= _MOST_DIGITS
        if not whole_number or not low <= int(digits) <= high:
            faults.append(f"{_option(key)}: needs {low:,} to {high:,}, found {quoted(text)}")
            return
        found[key] = int(digits)

    def share(key: str, high: float, unit: str) -> None:
        text = getattr(arguments, key)
        if text is None:
            return
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value <= high or (key != "available_gib" and value == 0):
            faults.append(f"{_option(key)}: needs {unit}, found {quoted(text)}")
            return
        found[key] = value

    def word(key: str, legal: Iterable[str]) -> None:
        text = getattr(arguments, key)
        if text not in legal:
            faults.append(f"{_option(key)}: {quoted(text)} is unknown{nearest(text, legal)}")

    whole("tensor_parallel_size", 1, 64)
    whole("max_model_len", 1, _MOST)
    whole("max_num_seqs", 1, 65536)
    whole("max_num_batched_tokens", 1, _MOST)
    whole("speculative_tokens", 0, 64)
    whole("block_multiple", 1, 65536)
    share("available_gib", 1 << 20, "GiB, 0 or more")
    share("gpu_memory_utilization", 1.0, "a share above 0 and up to 1")
    share("mem_fraction_static", 1.0, "a share above 0 and up to 1")
    word("prefix_caching", SWITCH)
    word("state_dtype", STATE_DTYPES)
    if (arguments.available_gib is None) == (arguments.gpu is None):
        faults.append("the cache's size: needs one of --available-gib X and --gpu NAME")
    if arguments.gpu is None and arguments.gpu_memory_utilization is not None:
        faults.append("--gpu-memory-utilization: shares out a card, needs --gpu NAME")
    if arguments.gpu is None and arguments.mem_fraction_static is not None:
        faults.append("--mem-fraction-static: shares out a card, needs --gpu NAME")
    found["said"] = [key for key in _OF_ENGINES if getattr(arguments, key) is not None]
    found = {"max_num_batched_tokens": 8192, "block_multiple": 16} | found
    found["prefix_caching"] = arguments.prefix_caching == "on"
    found["state_bytes"] = STATE_DTYPES.get(arguments.state_dtype)
    return found, tuple(faults)


def _option(key: str) -> str:
    return f"--{key.replace('_', '-')}"
