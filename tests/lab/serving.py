"""Run the project's deploys against lab nodes as an operator would, and read what came of it."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.lab.node import Node

ROOT = Path(__file__).resolve().parents[2]
SERVE = "deploys/serve.py"
FETCHED = "The installer is present and verified"
INSTALLED = "The engine is installed from its lock and proven"
NOT_SHARED = (
    "The engine is handed over to equal nodes",
    "The engine is taken over from an equal node",
)
"""What a node that has no equal in its run leaves out."""
_QUIET = re.compile(r"^--> Starting operation: (.*?) *\n +\[[^\]\n]*\] No changes$", re.MULTILINE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, kw_only=True)
class Run:
    """One finished pyinfra run."""

    status: int
    text: str
    """Everything that it said, without colours."""
    results: dict[str, Any] | None

    @property
    def changed(self) -> list[str]:
        """Names of the operations that changed something, in order."""
        assert self.results is not None, self.text
        return [op["name"] for op in self.results["operations"] if op["success"]]

    @property
    def quiet(self) -> list[str]:
        """Names of the operations that had nothing to do; of a run that failed, as it said them."""
        if self.results is None:
            return _QUIET.findall(self.text)
        return [op["name"] for op in self.results["operations"] if op["no_change"]]


def inventory(
    path: Path, nodes: Sequence[tuple[Node, Mapping[str, Any]]], user: str = "root"
) -> Path:
    """Write an inventory of lab nodes; each comes with host data beside its connection's."""
    hosts = [(node.name, node.pyinfra_host_data(user) | dict(data)) for node, data in nodes]
    return raw_inventory(path, hosts)


def raw_inventory(path: Path, hosts: Sequence[tuple[str, Mapping[str, Any]]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"hosts = {list(hosts)!r}\n")
    return path


def start(
    inventory_path: Path | str, *arguments: str, deploy: str = SERVE, cwd: Path = ROOT
) -> subprocess.Popen[str]:
    """Start a run and leave it running, in its own process group."""
    return subprocess.Popen(
        [sys.executable, "-m", "pyinfra", "-y", "--json", str(inventory_path), deploy, *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env=os.environ
        | {
            "PYTHONDONTWRITEBYTECODE": "1",
            # What one test's nodes hand on is not another's.
            "XDG_CACHE_HOME": str(Path(cwd, inventory_path).parent / ".control"),
        },
    )


def run(
    inventory_path: Path | str,
    *arguments: str,
    deploy: str = SERVE,
    timeout: float = 1500,
    check: bool = True,
) -> Run:
    """A whole run with -y and --json. With `check`, a failed run fails the test."""
    process = start(inventory_path, *arguments, deploy=deploy)
    try:
        out, err = process.communicate(timeout=timeout)
    except BaseException:
        process.kill()
        raise
    text = _COLOUR.sub("", err + out)
    results = None
    if out.strip():
        results = json.loads(out).get("results")
    done = Run(status=process.returncode, text=text, results=results)
    assert not check or done.status == 0, text
    return done
