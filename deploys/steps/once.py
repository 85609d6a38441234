"""Work for all hosts of a run, done once although pyinfra runs a deploy file for each of them."""

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from gevent.lock import RLock
from pyinfra.api import DeployError, Host, State
from pyinfra.context import ctx_host, ctx_state

Run = dict[Host, Any] | str
"""What there is for each host, or the fault that all of them get."""
Runs = WeakKeyDictionary[State, Run]
_lock = RLock()


def once(runs: Runs, make: Callable[[State], Run]) -> Any:
    """Made once per run, by the first greenlet that asks; the others wait for it."""
    state, host = ctx_state.get(), ctx_host.get()
    with _lock:
        if state not in runs:
            runs[state] = "the run stopped with an error"
            runs[state] = make(state)
        run = runs[state]
    if isinstance(run, str):
        raise DeployError(run)
    return run.get(host)
