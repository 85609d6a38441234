"""Install a Python engine on the node, and ask it about the plan."""

from collections.abc import Generator, Mapping
from typing import Any

from pyinfra import host
from pyinfra.api import FunctionCommand, operation

from deploys.operations.programs import program


@operation()
def engine_is_installed(reason: str | None, spec: Mapping[str, Any]) -> Generator[FunctionCommand]:
    """Install beside what runs, by hashes alone, prove it, then rename it in."""
    if not reason:
        host.noop("a proven environment of this key stands")
        return
    yield program("environment", spec)


@operation()
def plan_is_taken(reason: str | None, spec: Mapping[str, Any]) -> Generator[FunctionCommand]:
    """The engine's own check of its arguments and of the model; nothing is started or stopped."""
    if not reason:
        host.noop("the plan is the one that the engine took")
        return
    yield program("rehearse", spec)
