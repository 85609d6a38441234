"""A CUDA toolkit out of what an environment's wheels bring: links, beside what they lead to."""

from __future__ import annotations

import os
from typing import Any

from gpuwright.onnode.outcome import NodeError

_HINT = "install the part of the driver that computes (libcuda1, libnvidia-compute-...)"


def lay(directory: str, kit: dict[str, Any], named: str) -> None:
    """Make the links of `kit` below `directory`.

    kit: links {name: what it leads to below the directory}, driver {name: places, of which the
    first that is there}. NodeError, which begins with `named`: what one leads to is not there.
    """
    made = {}
    for name, target in kit["links"].items():
        if not os.path.exists(f"{directory}/{target}"):
            raise NodeError(f"{named}: its wheels bring no {target}, which {name} is to lead to")
        made[name] = os.path.relpath(target, os.path.dirname(name))
    for name, places in kit["driver"].items():
        found = next((place for place in places if os.path.isfile(place)), None)
        if found is None:
            library = os.path.basename(str(places[0]))
            raise NodeError(f"the driver's library {library} is not on this node", _HINT)
        made[name] = found
    for name, target in made.items():
        os.makedirs(os.path.dirname(f"{directory}/{name}"), exist_ok=True)
        os.symlink(target, f"{directory}/{name}")
