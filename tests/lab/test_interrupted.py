"""Killed in the middle, wherever: the next run converges, and nothing half done is ever used."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.lab import Lab
from tests.lab.node import Node
from tests.lab.serving import inventory, run, start

pytestmark = pytest.mark.lab

MODEL = "SmolLM2-135M-Instruct"


@pytest.fixture(scope="module")
def node(lab: Lab) -> Iterator[Node]:
    booted = lab.boot("cut", suite="bookworm", ccache=True)
    yield booted
    booted.destroy()


def _kill_when(inventory_path: Path, node: Node, condition: str, seconds: float = 600) -> None:
    """Start a run, and kill the control machine's side when a shell test holds on the node."""
    process = start(inventory_path)
    deadline = time.monotonic() + seconds
    while node.run(condition, check=False).returncode != 0:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, f"never: {condition}"
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def test_control_machine_killed_during_the_build(node: Node, tmp_path: Path) -> None:
    hosts = inventory(tmp_path / "hosts.py", [(node, {"gpuwright": {"model": MODEL}})])
    _kill_when(hosts, node, "pgrep -x cc1plus")
    assert node.run("ls /opt/gpuwright/engines").stdout.strip().endswith(("", ".partial"))
    run(hosts)
    assert run(hosts).changed == []
    assert ".partial" not in node.run("ls -a /opt/gpuwright/engines").stdout
    assert node.run("ls -A /var/cache/gpuwright/build", check=False).stdout == ""


def test_power_cut_while_serving(node: Node, tmp_path: Path) -> None:
    hosts = inventory(tmp_path / "hosts.py", [(node, {"gpuwright": {"model": MODEL}})])
    run(hosts)
    node.power_off()
    node.power_on()
    run(hosts)
    assert run(hosts).changed == []
