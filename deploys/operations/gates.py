"""Prove that a service answers before a run is called done."""

from collections.abc import Generator, Mapping
from typing import Any

from pyinfra import host
from pyinfra.api import FunctionCommand, operation

from deploys.operations.programs import program


def _quote(result: Mapping[str, Any]) -> None:
    """Show the answer: the one proof that people can judge for themselves."""
    said = result.get("completion")
    if isinstance(said, Mapping):
        rate = said.get("tokens_per_second")
        speed = f", {rate} tokens a second" if rate else ""
        host.log(f"answered after {result.get('seconds')} s{speed}: {said.get('text')}")


@operation()
def model_answers(reason: str | None, spec: Mapping[str, Any]) -> Generator[FunctionCommand]:
    """Wait for /health, for /v1/models to name the model, and for a completion; for a CUDA plan
    also for our processes on the planned GPUs. Fails with the journal's last lines."""
    if not reason:
        host.noop("the model answered the probe")
        return
    yield program("gate", spec, on_result=_quote)
