"""Each hazard as a sentence: when, what is done about it, why, and what instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from gpuwright.catalogue import Matrix
from gpuwright.hazard_rows import HazardRow, When
from gpuwright.rows import Effect
from tools.pages.markdown import gib, page, sources, span

_EFFECTS = {
    Effect.REFUSE: "refused",
    Effect.AVOID: "avoided",
    Effect.WARN: "warned about",
}


def _any(before: str, after: str = "") -> Callable[[Any], str]:
    return lambda words: f"{before}{' or '.join(words)}{after}"


def _range(before: str) -> Callable[[Any], str]:
    return lambda spec: f"{before} {span(spec)}"


def _either(yes: str, no: str) -> Callable[[Any], str]:
    return lambda wanted: yes if wanted else no


_MACHINES = {"none": "bare metal", "wsl": "WSL"}

PHRASES: dict[str, Callable[[Any], str]] = {
    "engines": _any(""),
    "build_tags": _any("build "),
    "cuda": _any("CUDA "),
    "device": lambda word: f"on the {word.upper() if word == 'cpu' else 'card'}",
    "backends": _any("attention under "),
    "not_backends": _any("attention not under "),
    "kv_cache_dtypes": _any("a cache in "),
    "quantizations": _any("", " weights"),
    "formats": _any("", " files"),
    "families": _any("models of "),
    "models": _any("model "),
    "layers": _any("models with ", " layers"),
    "experts_misfit": _either(
        "a share of an expert that its group size does not divide",
        "a share of an expert that its group size divides",
    ),
    "speculative": _either("tokens are drafted", "no tokens are drafted"),
    "draft_tokens": _range("tokens of a draft"),
    "features": _any("with "),
    "not_features": _any("without "),
    "capabilities": _range("compute capability"),
    "kinds": _any("cards of kind "),
    "gpus": _any("card "),
    "unified_memory": _either("the card has no memory of its own", "the card has its own memory"),
    "card_below_mib": lambda mib: f"less than {gib(mib)} GiB on the smallest card",
    "cards": _range("number of cards"),
    "mixed_cards": _either("cards of several capabilities", "cards of one capability"),
    "tensor_parallel": _range("tensor parallel size"),
    "nvlink": _either("with NVLink", "without NVLink"),
    "pcie_lanes": _range("PCIe lanes of a card"),
    "power_percent": _range("power limit in percent of the maker's"),
    "vgpus": _any("a card that is virtualized as "),
    "drivers": _range("driver"),
    "virtualizations": lambda words: f"on {' or '.join(_MACHINES.get(w, w) for w in words)}",
    "cpus": _any("the CPU is "),
    "compiler": _any("the CUDA compiler is "),
    "ram_misfit": _either("less RAM than the weights take", "RAM for all of the weights"),
    "max_model_len": _range("context"),
    "max_num_seqs": _range("requests at once"),
    "max_num_batched_tokens": _range("tokens a step"),
}
"""One phrase for each condition of When."""


def render(matrix: Matrix) -> str:
    groups: dict[str, list[HazardRow]] = {}
    for row in matrix.hazards:
        groups.setdefault(" and ".join(row.when.engines) or "Any engine", []).append(row)
    return page(
        "Hazards",
        f"{len(matrix.hazards)} combinations whose parts are all supported and that go wrong "
        "together. *Refused*: no plan has it. *Avoided*: plans change a default, or take another "
        "candidate first; a pin that meets it is warned about. *Warned about*: the plan says so.",
        *(
            "\n".join([f"## {name}", "", *(f"- {_sentence(row)}" for row in rows)])
            for name, rows in groups.items()
        ),
    )


def _sentence(row: HazardRow) -> str:
    text = f"`{row.id}` **{_EFFECTS[row.effect]}**"
    if where := ", ".join(_conditions(row)):
        text += f" ({where})"
    text += f": {row.because}."
    if row.instead:
        text += f" Instead: {row.instead}."
    if row.sets:
        text += f" Sets {', '.join(f'{key} {_word(value)}' for key, value in row.sets.items())}."
    return f"{text} {sources(row.sources)}"


def _word(value: object) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def _conditions(row: HazardRow) -> Iterator[str]:
    when: When = row.when
    if row.introduced and row.fixed:
        yield f"from {row.introduced} to before {row.fixed}"
    elif row.introduced:
        yield f"from {row.introduced}"
    elif row.fixed:
        yield f"before {row.fixed}"
    for name in when.named:
        if name != "engines":
            yield PHRASES[name](getattr(when, name))
