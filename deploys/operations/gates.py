"""Prove that a service answers before a run is called done."""

from collections.abc import Generator, Mapping
from typing import Any

from pyinfra import host
from pyinfra.api import FunctionCommand, operation

from deploys.operations.programs import program


@operation()
def model_answers(reason: str | None, spec: Mapping[str, Any]) -> Generator[FunctionCommand]:
    """Wait for /health, for /v1/models to name the model, and for a completion; for a CUDA plan
    also for our processes on the planned GPUs. Fails with the journal's last lines."""
    if not reason:
        host.noop("the model answered the probe")
        return
    yield program("gate", spec)
