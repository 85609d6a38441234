"""Read every node of the run at once, each with one remote command."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import gevent.pool
from pyinfra.api import HiddenValue, Host, State
from pyinfra.context import ctx_host, ctx_state

from facts.node import Node, Reachable

_T = TypeVar("_T")
_PARALLEL = 20
_PROBE_SECONDS = 120
_UNANSWERED = (
    "sudo asks for a password, and nobody is here to type it: `_sudo_password` in the host's data, "
    "or NOPASSWD in its sudoers"
)
_SILENT = "the probe gave no answer; under sudo, the password may be another, or sudo not allowed"


def documents(state: State, specs: Iterable[tuple[Host, dict[str, Any]]]) -> dict[Host, Any]:
    """The node document of each host, or `{"ok": False, "error": sentence}` for one without."""

    def ask(host: Host, spec: dict[str, Any]) -> Any:
        # A node that goes silent must not hold up the others for ever; hashing may take its time.
        timeout = None if spec["verify"] == "full" else _PROBE_SECONDS
        try:
            found = host.get_fact(Node, spec=spec, _ignore_errors=True, _timeout=timeout)
        except EOFError:
            # pyinfra asks at the terminal for a password that the host's data do not have.
            return {"ok": False, "error": _UNANSWERED}
        return {"ok": False, "error": _SILENT} if found in (None, Node.default()) else found

    return _each(state, list(specs), ask)


def preflight(
    state: State, specs: Mapping[Host, tuple[dict[str, Any] | None, HiddenValue | None]]
) -> dict[str, str]:
    """Ask on each node whether its downloads can be had; a sentence for each host where one cannot.

    A remote command is spent only on hosts that have something to download. Each comes with the
    hub's token, which specs with `token_stdin` get on standard input.
    """

    def ask(host: Host, wanted: tuple[dict[str, Any], HiddenValue | None]) -> str | None:
        spec, token = wanted
        more = {"_stdin": token.unmask()} if token and spec["token_stdin"] else {}
        answer = host.get_fact(Reachable, spec=spec, _ignore_errors=True, **more) or {}
        if answer.get("ok"):
            return None
        said = str(answer.get("error") or "the preflight gave no answer")
        hint = answer.get("hint")
        return f"{said}. What would help: {hint}" if hint else said

    due = [(host, (spec, token)) for host, (spec, token) in specs.items() if spec is not None]
    answers = _each(state, due, ask)
    return {str(host.name): fault for host, fault in answers.items() if fault}


def _each(
    state: State, items: Sequence[tuple[Host, _T]], ask: Callable[[Host, _T], Any]
) -> dict[Host, Any]:
    """Ask every host at once, in a pool of our own: pyinfra's is full of the greenlets that wait
    for this answer."""

    def ask_in_context(item: tuple[Host, _T]) -> tuple[Host, Any]:
        host, value = item
        with ctx_state.use(state), ctx_host.use(host):
            return host, ask(host, value)

    if not items:
        return {}
    pool = gevent.pool.Pool(max(1, state.config.PARALLEL or _PARALLEL))
    return dict(pool.imap_unordered(ask_in_context, items))
