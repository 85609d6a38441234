"""Every golden plan for vLLM or SGLang is taken by the engine's own check, as it stands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpuwright.host import Host
from gpuwright.launch import launch
from gpuwright.layout import Layout
from gpuwright.load import load_matrix
from gpuwright.plan import Plan
from gpuwright.records import with_answers
from gpuwright.rehearsals import settled_values
from gpuwright.selection import decide
from gpuwright.want import Want
from tools import model_folder
from tools.ask_engine import PROCESSES
from tools.engine_environment import MEMORY_GIB
from tools.golden import WANTS, document, rigs, wants_of

MATRIX = load_matrix()


def plans(engine: str, release: str) -> Iterator[Plan]:
    """Golden plans of the release, and what the same wants plan where it is pinned."""
    for rig in rigs():
        for want in wants_of(rig):
            # The last releases for CUDA 12 compile with a toolkit that few of the rigs can have.
            pinned = {"engine": engine, "release": release, "cuda_repository": True}
            for pins in ({}, pinned):
                decision = decide(
                    Host.from_document(document(rig)), Want.from_data(WANTS[want] | pins), MATRIX
                )
                if isinstance(decision, Plan) and (decision.engine, decision.release) == (
                    engine,
                    release,
                ):
                    yield decision


def arguments(plan: Plan, folder) -> tuple[str, ...]:
    """What follows the program's name in the plan's command."""
    argv = launch(plan, Layout(), str(folder), "/opt/engine").argv
    return argv[argv.index("serve") + 1 :] if "serve" in argv else argv[3:]


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "release"), with_answers())
def test_the_engine_takes_every_golden_plan_as_it_is(engine, release, environments, tmp_path):
    environment = environments(engine, release)
    asked: dict[tuple[str, int, int], dict[str, tuple[Plan, tuple[str, ...]]]] = {}
    for plan in plans(engine, release):
        folder = model_folder.write(tmp_path, *MATRIX.checkpoint(plan.checkpoint))
        rig = (plan.gpus[0].compute_capability, MEMORY_GIB, len(plan.gpus))
        line = arguments(plan, folder)
        # Of plans that differ in numbers alone one is asked: each takes the engine some seconds.
        kind = re.sub(r"\d+", "", " ".join(line[line.index("--served-model-name") :]))
        asked.setdefault(rig, {}).setdefault(f"{folder.name} {kind}", (plan, line))

    def check(rig: tuple[str, int, int]) -> list[str]:
        capability, memory_gib, cards = rig
        told = environment.ask(
            {"plans": [line for _, line in asked[rig].values()]},
            capability=capability,
            memory_gib=memory_gib,
            cards=cards,
        )
        return [
            f"{capability} {' '.join(line)}: {answer}"
            for (plan, line), answer in zip(asked[rig].values(), told["plans"], strict=True)
            if {"refused": None, **settled_values(plan)}.items() - answer.items()
        ]

    with ThreadPoolExecutor(PROCESSES) as pool:
        otherwise = [line for lines in pool.map(check, asked) for line in lines]
    assert not otherwise, "\n".join(otherwise)
    print(f"{sum(len(lines) for lines in asked.values())} configurations of {engine} {release}")
