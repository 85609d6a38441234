"""Build llama.cpp on the node."""

from collections.abc import Generator, Mapping
from typing import Any

from pyinfra import host
from pyinfra.api import FunctionCommand, operation

from deploys.operations.programs import program


@operation()
def engine_is_built(
    reason: str | None, spec: Mapping[str, Any] | None
) -> Generator[FunctionCommand]:
    """Build out of tree into a directory named by the content key, prove it, then rename it in."""
    if not reason or spec is None:
        host.noop("a proven build of this key stands")
        return
    yield program("build", spec)
