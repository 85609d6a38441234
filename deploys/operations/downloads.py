"""Operations that bring files to a node: verified beside, then renamed into place."""

from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

from pyinfra import host
from pyinfra.api import FunctionCommand, operation

from deploys.operations.programs import program


@operation()
def files_are_fetched(
    reason: str | None, spec: Mapping[str, Any] | None, token_file: Path | None
) -> Generator[FunctionCommand]:
    """Fetch what `spec` names. The token, if any, is read when it is needed and goes to the
    program's standard input only."""
    if not reason or spec is None:
        host.noop("every file is there and is the one its row names")
        return
    stdin = None
    if spec["token_stdin"] and token_file is not None:
        path = token_file.expanduser()

        def stdin() -> str:
            return path.read_text().strip()

    yield program("fetch", spec, stdin=stdin)
