"""pyinfra's settings for this checkout."""

import sys
from pathlib import Path
from typing import Any

from pyinfra import config
from pyinfra.api import Config, Inventory
from pyinfra.context import ctx_state
from pyinfra_cli.exceptions import CliError

config.REQUIRE_PYINFRA_VERSION = ">=3.10,<3.11"

# pyinfra's console script puts the working directory last on sys.path, where any installed package
# called `facts` or `deploys` would win over ours.
_root = str(Path(__file__).resolve().parent)
if sys.path[0] != _root:
    sys.path.insert(0, _root)


def _name_hosts() -> None:
    """Refuse a run without a host, which pyinfra ends in silence and calls a success: with no host
    it runs no line of a deploy, so nothing else here could say it."""
    state = ctx_state.get()
    begin = state.init

    def init(inventory: Inventory, config: Config | None, initial_limit: Any = None) -> None:
        if len(inventory) == 0:
            raise CliError(
                "the inventory names no host: write one into its `hosts`, as the examples in "
                "inventory/hosts.py show"
            )
        if initial_limit is not None and not list(initial_limit):
            raise CliError("no host of the inventory is left by --limit and --exclude")
        begin(inventory, config, initial_limit=initial_limit)

    state.init = init


if ctx_state.isset():
    _name_hosts()
