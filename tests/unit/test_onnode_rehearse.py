"""What a run is told of an engine that was asked about a plan."""

import getpass
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.unit.onnode_rig import run

SAID = "ERROR the cause stands in the engine's own log"
TAKEN = {"refused": None, "attention_backend": "FLASH_ATTN", "max_model_len": 4096}


def spec_of(place: Path, answer: dict[str, Any], before: str = "") -> dict[str, Any]:
    """Of an engine that does what `before` says, and answers."""
    (place / "engine/bin").mkdir(parents=True, exist_ok=True)
    if not (place / "engine/bin/python").exists():
        (place / "engine/bin/python").symlink_to(sys.executable)
    told = json.dumps({"rehearsed": [answer]})
    return {
        "engine_dir": str(place / "engine"),
        "scratch": str(place / "scratch"),
        "user": getpass.getuser(),
        "kept": str(place / "kept"),
        "env": {},
        "questions": f"{before}import sys\nprint({SAID!r}, file=sys.stderr)\nprint({told!r})\n",
        "arguments": ["--max-model-len", "4096"],
        "label": "vllm 0.33.0",
        "expected": {"attention_backend": "FLASH_ATTN", "max_model_len": 4096},
    }


def rehearsed(place: Path, answer: dict[str, Any]) -> dict[str, Any]:
    """The program's answer where the engine's is `answer`."""
    found, _ = run("rehearse", spec_of(place, answer))
    return found


def test_a_plan_that_it_takes_as_it_is_passes(tmp_path):
    assert rehearsed(tmp_path, TAKEN)["ok"]


def test_a_refusal_says_its_reason_and_shows_what_the_engine_logged(tmp_path):
    told = rehearsed(tmp_path, {"refused": "ValidationError: failed to be inspected"})
    assert not told["ok"]
    assert told["error"] == (
        "vllm 0.33.0 refuses the plan: ValidationError: failed to be inspected"
    )
    assert SAID in told["output"]


@pytest.mark.parametrize(
    ("name", "found"), [("attention_backend", "FLASHINFER"), ("max_model_len", 2048)]
)
def test_what_it_settles_on_must_be_the_plans(tmp_path, name, found):
    told = rehearsed(tmp_path, TAKEN | {name: found})
    assert told["error"] == (
        f"vllm 0.33.0: {name} is {found} by its own choice, needed {TAKEN[name]}"
    )


def test_runs_at_once_ask_one_after_the_other(tmp_path):
    # Each asks whether what it works in is there still when it ends.
    patient = "import os, time\ntime.sleep(0.5)\nassert os.path.isdir(os.getcwd())\n"
    asked = [spec_of(tmp_path, TAKEN, patient) for _ in range(3)]
    with ThreadPoolExecutor() as pool:
        told = list(pool.map(lambda spec: run("rehearse", spec)[0], asked))
    assert [answer["ok"] for answer in told] == [True] * 3, told
