"""What cards run: each model of the catalogue on one of a card and on two."""

from __future__ import annotations

from collections.abc import Iterator

from gpuwright.catalogue import Matrix
from gpuwright.host import Host
from gpuwright.model_rows import ModelRow
from gpuwright.plan import Plan
from gpuwright.selection import decide
from gpuwright.sketch import read_sketch
from gpuwright.want import Want
from tools.pages.markdown import page, table, tokens

CARDS = (
    "gtx-1080-ti",
    "p40",
    "v100-sxm2-32gb",
    "t4",
    "rtx-3060",
    "rtx-3090",
    "rtx-a6000",
    "rtx-4060-ti-16gb",
    "rtx-4090",
    "l40s",
    "a100-sxm4-80gb",
    "h100-sxm",
    "h200",
    "b200",
    "rtx-5060-ti-16gb",
    "rtx-5090",
    "rtx-pro-6000",
)
"""Ids of the cards that are shown: each generation, and the sizes that people have."""
COUNTS = (1, 2)


def render(matrix: Matrix) -> str:
    usual = Host.from_document(read_sketch({"gpus": [CARDS[0], CARDS[0]]}, matrix)[0])
    ram = (usual.memory_total_bytes or 0) // 2**30
    ranked = sorted(matrix.models, key=lambda row: -row.merit)
    return page(
        "What fits",
        "What is decided for chat on a node with one card, and with two: checkpoint, engine, "
        f"context. Assumed: {usual.os_name}, driver {usual.driver_version}, {ram} GiB of RAM, "
        "cards that nothing else uses and that no NVLink joins. *fits for less*: the context is "
        "shorter than chat asks for; *experts in RAM*: the CPU computes them. Ask for your own: "
        '`gpuwright fits --gpu "RTX 3090" --gpu "RTX 3090"`.',
        *(_card(matrix, card, ranked) for card in CARDS),
    )


def _card(matrix: Matrix, card: str, models: list[ModelRow]) -> str:
    row = matrix.gpu_index.find(card)
    size = f"{row.memory_mib / 1024:g} GiB"
    hosts = [
        Host.from_document(read_sketch({"gpus": [card] * count}, matrix)[0]) for count in COUNTS
    ]
    lines: list[tuple[str, ...]] = []
    nothing: list[str] = []
    for model in models:
        cells = tuple(_cell(matrix, host, model) for host in hosts)
        if any(cells):
            lines.append((model.id, *cells))
        else:
            nothing.append(model.id)
    parts = [
        f"## {row.name.removeprefix('NVIDIA ')}",
        f"{size}, compute capability {row.compute_capability}.",
        table(("model", "one", "two"), lines) if lines else "",
        f"Not on two either: {', '.join(nothing)}." if nothing else "",
    ]
    return "\n\n".join(part for part in parts if part)


def _cell(matrix: Matrix, host: Host, model: ModelRow) -> str:
    plan = decide(host, Want(model=model.id), matrix)
    return ", ".join(_words(matrix, plan)) if isinstance(plan, Plan) else ""


def _words(matrix: Matrix, plan: Plan) -> Iterator[str]:
    model, _ = matrix.checkpoint(plan.checkpoint)
    yield plan.checkpoint.removeprefix(f"{model.id}-")
    yield f"{plan.engine} {plan.release}"
    yield tokens(plan.max_model_len)
    if len(plan.gpus) > 1:
        yield "over both"
    if plan.parameters.get("cpu_expert_layers"):
        yield "experts in RAM"
    enough = next(row for row in matrix.workloads if row.id == "chat").context_tokens
    if plan.max_model_len < min(enough, model.max_context_tokens):
        yield "fits for less"
