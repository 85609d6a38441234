"""Let an engine's own code judge a whole plan before anything that serves is stopped."""

from __future__ import annotations

import time
from typing import Any

from gpuwright.onnode.outcome import NodeError, clean
from gpuwright.onnode.proving import Prover, fault, shown
from gpuwright.onnode.storage import locked

_SECONDS = 600.0


def prove_cards(spec: dict[str, Any], prover: Prover, label: str) -> None:
    """NodeError: the environment, as the service sees it, does not serve the plan's cards."""
    cards, environment = spec["cards"], dict(spec.get("env") or {})
    told, finished = prover.ask(str(cards["program"]), cards["asked"], environment)
    if told is None:
        raise fault(label, "what it has for the plan's cards cannot be told", finished)
    if told["wrong"]:
        raise NodeError(f"{label}: " + "; ".join(clean(one, 300) for one in told["wrong"][:5]))


def asked(spec: dict[str, Any]) -> dict[str, Any]:
    """Ask the engine in `engine_dir` whether it takes `arguments`, and what it makes of them.

    spec: engine_dir, scratch, user, kept (the directory that the unit's CacheDirectory= names, made
    as systemd makes it), env, questions (the program that asks), arguments, label, cards (None, or
    program and asked: see gpuwright/questions/cards.py),
    expected {name: value} of what it settles on. NodeError: it refuses them, or settles otherwise.
    """
    began = time.monotonic()
    label = str(spec["label"])
    prover = Prover(str(spec["engine_dir"]), str(spec["scratch"]), str(spec["user"]), _SECONDS)
    prover.give(str(spec["kept"]))
    try:
        if spec.get("cards"):
            prove_cards(spec, prover, label)
        question = {"rehearse": [spec["arguments"]]}
        told, finished = prover.ask(str(spec["questions"]), question, dict(spec.get("env") or {}))
    finally:
        prover.close()
    if told is None:
        raise fault(label, "its own check of the plan gave no answer", finished)
    (answer,) = told["rehearsed"]
    if answer.get("refused"):
        said = f"{label} refuses the plan: {clean(answer['refused'], 400)}"
        raise NodeError(said, "", output=shown(finished))
    for name, wanted in dict(spec["expected"]).items():
        if answer.get(name) != wanted:
            found = clean(answer.get(name), 100)
            raise NodeError(f"{label}: {name} is {found} by its own choice, needed {wanted}")
    return {"ok": True, "answer": answer, "seconds": round(time.monotonic() - began, 1)}


def main(spec: dict[str, Any], carried: str | None) -> dict[str, Any]:
    """As `asked`, one run after the other: their scratch directory is one and the same."""
    with locked(f"{spec['scratch']}.lock", f"another run is asking {spec['label']}: waiting"):
        return asked(spec)
