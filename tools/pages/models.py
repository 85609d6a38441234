"""Models and the checkpoints that can be had of them."""

from __future__ import annotations

from collections import Counter

from gpuwright.architecture import Architecture, LayerKind
from gpuwright.catalogue import Matrix
from gpuwright.model_rows import CheckpointRow, ModelRow, Role
from gpuwright.sizes import size_words
from tools.pages.markdown import page, sources, span, table, tokens

_LAYERS = {
    LayerKind.FULL: "full",
    LayerKind.SLIDING: "sliding window",
    LayerKind.LINEAR: "linear",
    LayerKind.MLA: "latent",
    LayerKind.COMPRESSED: "compressed",
}


def render(matrix: Matrix) -> str:
    ranked = sorted(matrix.models, key=lambda row: -row.merit)
    return page(
        "Models and checkpoints",
        f"{len(matrix.models)} models and {sum(len(row.checkpoints) for row in matrix.models)} "
        "checkpoints, the model that `auto` prefers first. Sizes are of the weights alone: an "
        "interval where only a printed figure is known, and plans are tested on its upper end.",
        table(
            (
                "model",
                "name",
                "licence",
                "parameters",
                "context",
                "layers",
                "KV heads x size",
                "draft layers",
                "images",
                "sources",
            ),
            (_cells(row) for row in ranked),
        ),
        *(_model(row) for row in ranked),
    )


def _cells(row: ModelRow) -> tuple[str, ...]:
    shape = row.architecture
    return (
        row.id,
        row.name,
        row.licence,
        _parameters(shape),
        tokens(row.max_context_tokens),
        _layers(shape),
        ", ".join(
            dict.fromkeys(f"{g.kv_heads} x {g.head_size}" for g in shape.groups if g.kv_heads)
        ),
        str(shape.mtp_layers) if shape.mtp_layers else "",
        "yes" if shape.vision else "",
        sources(row.sources),
    )


def _parameters(shape: Architecture) -> str:
    if not shape.parameters_millions:
        return "unknown"
    text = _billions(shape.parameters_millions)
    if shape.active_parameters_millions:
        text += f", {_billions(shape.active_parameters_millions)} active"
    return text


def _billions(millions: int) -> str:
    return f"{millions / 1000:g} B" if millions >= 1000 else f"{millions} M"


def _layers(shape: Architecture) -> str:
    counts: Counter[str] = Counter()
    for group in shape.groups:
        counts[_LAYERS[group.kind]] += group.layers
    return ", ".join(f"{count} {kind}" for kind, count in counts.items())


def _model(row: ModelRow) -> str:
    roles = [role for role in Role if row.in_role(role)]
    parts = [f"## {row.name}"]
    if row.unverified:
        parts.append(f"Not verified against its own configuration: {', '.join(row.unverified)}.")
    for role in roles:
        if role is not Role.WEIGHTS:
            parts.append(f"As {role}:")
        parts.append(
            table(
                ("checkpoint", "repository", "format", "size", "known", "engines", "", "sources"),
                (_checkpoint(each) for each in row.in_role(role)),
            )
        )
    return "\n\n".join(parts)


def _checkpoint(row: CheckpointRow) -> tuple[str, ...]:
    return (
        row.id,
        row.repo or "",
        f"{row.quantization} {row.format}",
        size_words(*row.weights) if row.weights is not None else "unknown",
        "exact" if row.files is not None else row.confidence,
        ", ".join(f"{engine} {span(spec)}".strip() for engine, spec in row.engines.items()),
        "installable" if row.files is not None else "plans only",
        sources(row.sources),
    )
