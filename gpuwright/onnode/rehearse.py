"""Let an engine's own code judge a whole plan before anything that serves is stopped."""

from __future__ import annotations

import time
from typing import Any

from gpuwright.onnode.outcome import NodeError, clean
from gpuwright.onnode.proving import Prover, fault

_SECONDS = 300.0


def main(spec: dict[str, Any], carried: str | None) -> dict[str, Any]:
    """Ask the engine in `engine_dir` whether it takes `arguments`, and what it makes of them.

    spec: engine_dir, scratch, user, kept (the directory that the unit's CacheDirectory= names, made
    as systemd makes it), env, questions (the program that asks), arguments, label,
    expected {name: value} of what it settles on. NodeError: it refuses them, or settles otherwise.
    """
    began = time.monotonic()
    label = str(spec["label"])
    prover = Prover(str(spec["engine_dir"]), str(spec["scratch"]), str(spec["user"]), _SECONDS)
    prover.give(str(spec["kept"]))
    try:
        asked = {"rehearse": [spec["arguments"]]}
        told, finished = prover.ask(str(spec["questions"]), asked, dict(spec.get("env") or {}))
    finally:
        prover.close()
    if told is None:
        raise fault(label, "its own check of the plan gave no answer", finished)
    (answer,) = told["rehearsed"]
    if answer.get("refused"):
        raise NodeError(f"{label} refuses the plan: {clean(answer['refused'], 400)}")
    for name, wanted in dict(spec["expected"]).items():
        if answer.get(name) != wanted:
            found = clean(answer.get(name), 100)
            raise NodeError(f"{label}: {name} is {found} by its own choice, needed {wanted}")
    return {"ok": True, "answer": answer, "seconds": round(time.monotonic() - began, 1)}
