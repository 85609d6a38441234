"""What an engine's own code is asked of a plan before anything that serves is stopped."""

from pathlib import Path
from typing import Any

from gpuwright import questions
from gpuwright.attention_rows import AttentionBackendRow, Toolchain
from gpuwright.engine_rows import ReleaseRow
from gpuwright.environments import PROOF_ENVIRONMENT
from gpuwright.expected import Expected
from gpuwright.launch import Launch
from gpuwright.launch_words import backend_word, cache_word, keeps_cache_word
from gpuwright.layout import RUNTIME, USER
from gpuwright.plan import Plan


def cards_asked(
    release: ReleaseRow, plan: Plan, backend: AttentionBackendRow | None, *, compiles: bool
) -> dict[str, Any] | None:
    """What its environment is asked about the plan's cards; None for a plan without any.
    `compiles`: its service has a CUDA compiler."""
    row, tag = release.environment, release.build_tag(plan.build_tag)
    if row is None or not plan.gpus:
        return None
    compiles = compiles or (backend is not None and backend.toolchain.has(Toolchain.NVCC))
    return {
        "kernels": list(row.kernels),
        "capabilities": sorted({gpu.compute_capability for gpu in plan.gpus}),
        "cuda": tag.cuda,
        # Triton's own launchers are C.
        "programs": ["gcc", *(("c++", "ninja", "nvcc") if compiles else ())],
        "compiles": compiles,
    }


def rehearsal_spec(
    expected: Expected, start: Launch, serve: tuple[str, ...], cards: dict[str, Any] | None = None
) -> dict[str, Any] | None:
    """The carried rehearse program's spec; None for an engine that has no program to ask it.
    `cards`: what is asked beforehand (see `cards_asked`)."""
    plan = expected.plan
    program = Path(questions.__path__[0]) / f"{plan.engine}_plan.py"
    if not program.is_file():
        return None
    # All that follows the command, from the word on that names the model.
    arguments = start.argv[len(serve) :]
    if serve and serve[-1].startswith("-"):
        arguments = (serve[-1], *arguments)
    return {
        "engine_dir": expected.engine_dir,
        "scratch": f"{RUNTIME}/{plan.service}.rehearsal",
        "user": USER,
        "env": start.environment | PROOF_ENVIRONMENT,
        "kept": expected.layout.kernels(plan.engine, plan.release),
        "cards": cards
        and {"program": (program.parent / "cards.py").read_text(encoding="utf-8"), "asked": cards},
        "questions": program.read_text(encoding="utf-8"),
        "arguments": list(arguments),
        "label": f"{plan.engine} {plan.release}",
        "expected": settled_values(plan),
    }


def settled_values(plan: Plan) -> dict[str, Any]:
    """What the engine has to settle on, by the names under which its program answers."""
    wanted = {
        "attention_backend": backend_word(plan.engine, plan.attention_backend),
        "max_model_len": plan.max_model_len,
        "max_num_seqs": plan.max_num_seqs,
        "tensor_parallel_size": plan.tensor_parallel_size,
    }
    if keeps_cache_word(plan.engine):
        wanted["kv_cache_dtype"] = cache_word(plan.engine, plan.kv_cache_dtype)
    return wanted
