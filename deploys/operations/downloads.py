"""Operations that bring files to a node: verified beside, then renamed into place."""

from collections.abc import Generator, Mapping
from typing import Any

from pyinfra import host
from pyinfra.api import FunctionCommand, HiddenValue, operation

from deploys.operations.programs import program


@operation()
def files_are_fetched(
    reason: str | None, spec: Mapping[str, Any] | None, token: HiddenValue | None
) -> Generator[FunctionCommand]:
    """Fetch what `spec` names. The token, if any, goes to the program's standard input only."""
    if not reason or spec is None:
        host.noop("every file is there and is the one its row names")
        return
    yield program("fetch", spec, stdin=token if spec["token_stdin"] else None)
