"""Run a program of ours on the node as part of an operation: progress live, one line on failure."""

from collections.abc import Callable, Mapping
from typing import Any, cast

from pyinfra import logger
from pyinfra.api import FunctionCommand, HiddenValue, Host, State, output
from pyinfra.api.arguments import CONNECTOR_ARGUMENT_KEYS

from facts.node import carried
from gpuwright import carry

Spec = Mapping[str, Any]


def program(
    name: str,
    spec: Spec,
    *,
    stdin: HiddenValue | None = None,
    on_result: Callable[[Mapping[str, Any]], None] | None = None,
) -> FunctionCommand:
    """The command an operation yields to run the carried program `name` with `spec`.

    `stdin` is what the program reads on standard input: secrets travel there and nowhere else.
    `on_result` receives the program's result, good or bad.
    """
    return FunctionCommand(_run, (name, dict(spec), stdin, on_result), {})


def _run(
    state: State,
    host: Host,
    name: str,
    spec: dict[str, Any],
    stdin: HiddenValue | None,
    on_result: Callable[[Mapping[str, Any]], None] | None,
) -> bool:
    arguments = connection(host)
    if stdin is not None:
        arguments["_stdin"] = stdin.unmask()
    _, lines = host.run_shell_command(carried(name, spec), print_output=True, **arguments)
    result = carry.parse(lines.stdout_lines)
    if on_result is not None:
        on_result(result)
    if result.get("ok"):
        return True
    report(host, result, lines.stderr_lines)
    return False


def connection(host: Host) -> dict[str, Any]:
    """How the operation at work reaches the node: sudo and the like."""
    return {
        key: value
        for key, value in cast("dict[str, Any]", host.current_op_global_arguments or {}).items()
        if key in CONNECTOR_ARGUMENT_KEYS
    }


def run_program(host: Host, name: str, spec: dict[str, Any]) -> Mapping[str, Any] | None:
    """Run a program within an operation; its result, None once its failure has been told."""
    _, lines = host.run_shell_command(carried(name, spec), print_output=True, **connection(host))
    result = carry.parse(lines.stdout_lines)
    if result.get("ok"):
        return result
    report(host, result, lines.stderr_lines)
    return None


def report(host: Host, result: Mapping[str, Any], stderr_lines: list[str]) -> None:
    """Say why a program failed: its sentence first, then what belongs to it."""
    sentence = str(result.get("error") or "the program gave no answer")
    host.log_styled(sentence, fg="red", log_func=logger.error)
    for key in ("hint", "journal", "output"):
        text = result.get(key)
        for line in text if isinstance(text, list) else str(text or "").splitlines():
            host.log(f"  {line}", log_func=logger.error)
    if "error" not in result:
        for line in stderr_lines[-5:]:
            host.log(f"  {line}", log_func=logger.error)


def _hide_results() -> None:
    """Keep the programs' JSON results, which are for us, out of the live output for people."""
    shown = output._echo

    def echo(message: object = None, **keywords: Any) -> None:
        if not (isinstance(message, str) and '{"ok": ' in message):
            shown(message, **keywords)

    output.set_echo(echo)


_hide_results()
