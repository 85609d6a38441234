"""What the programs that make engines remove afterwards: engines and what they were made with."""

from typing import Any

from gpuwright.layout import CACHE
from gpuwright.onnode.stamps import STAMP
from gpuwright.want import Want


def retire_spec(want: Want) -> dict[str, Any]:
    """The part of their specs that `onnode/retire.py` reads."""
    layout = want.layout
    services = [f"{layout.plans}/*", f"{layout.units}/*.service"]

    def room(directory: str, complete: str, used_by: list[str]) -> dict[str, Any]:
        return {
            "directory": directory,
            "complete": complete,
            "used_by": used_by,
            "engines": None,
            "keep": want.keep_engines,
        }

    return {
        "rooms": [
            room(layout.engines, STAMP, services),
            room(layout.toolkits, STAMP, []),
            room(layout.pythons, STAMP, [f"{layout.engines}/*/pyvenv.cfg"]),
            # What a release compiled while it served is of use to that release alone.
            room(f"{CACHE}/gpuwright", "", services) | {"engines": layout.engines, "keep": 0},
        ],
        "leftovers": [f"{layout.cache}/build.*.tar"],
    }
