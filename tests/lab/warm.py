"""Nodes whose compiler cache already knows the engine, so that a test's build takes seconds.

The first node of a suite pays for all: it serves once, under a lock that the others wait for.
"""

import tempfile
from pathlib import Path
from typing import Any

from gpuwright.load import load_matrix
from tests.lab import caches
from tests.lab.lab import Lab
from tests.lab.machine import directory, locked, say
from tests.lab.node import Node
from tests.lab.serving import inventory, run

MODEL = "SmolLM2-135M-Instruct"


def boot_warm(lab: Lab, name: str, suite: str = "bookworm", **options: Any) -> Node:
    """A bare node that shares the lab's compiler cache, after that has seen this engine once;
    options as for Lab.boot."""
    _warm(lab, suite)
    return lab.boot(name, suite, ccache=True, **options)


def _warm(lab: Lab, suite: str) -> None:
    newest = next(row for row in load_matrix().releases if row.engine == "llama.cpp" and row.build)
    assert newest.build is not None
    stamp = caches.shared("warm") / f"{suite}-{newest.build.archive_sha256[:12]}"
    with locked(directory() / f"warm-{suite}.lock"):
        if stamp.exists():
            return
        say(f"compiling the engine once on {suite} (some minutes)")
        node = lab.boot(f"warm-{suite}", suite, ccache=True)
        with tempfile.TemporaryDirectory() as folder:
            want = {"gpuwright": {"model": MODEL}}
            run(inventory(Path(folder) / "hosts.py", [(node, want)]))
        node.destroy()
        stamp.touch()
