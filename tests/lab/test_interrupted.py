"""Killed in the middle, wherever: the next run converges, and nothing half done is ever used."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.lab import Lab
from tests.lab.node import Node
from tests.lab.serving import inventory, run, start
from tests.lab.warm import boot_warm

pytestmark = pytest.mark.lab

MODEL = "SmolLM2-135M-Instruct"


CONFIGURED = "test -e /var/cache/gpuwright/build/*/build/build.ninja"


@pytest.fixture
def hosts(node: Node, tmp_path: Path) -> Path:
    return inventory(tmp_path / "hosts.py", [(node, {"gpuwright": {"model": MODEL}})])


@pytest.fixture(scope="module")
def node(lab: Lab) -> Iterator[Node]:
    booted = boot_warm(lab, "cut")
    yield booted
    booted.destroy()


def _start_until(hosts: Path, node: Node, condition: str) -> subprocess.Popen[str]:
    """Start a run, and return when a shell test holds on the node and the run still goes on."""
    process = start(hosts)
    deadline = time.monotonic() + 600
    while node.run(condition, check=False).returncode != 0:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, f"never: {condition}"
    return process


def _kill(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def _nothing_half_made(node: Node) -> None:
    assert ".partial" not in node.run("ls -a /opt/gpuwright/engines").stdout
    assert node.run("ls -A /var/cache/gpuwright/build", check=False).stdout == ""


def test_control_machine_killed_during_the_build(node: Node, hosts: Path) -> None:
    _kill(_start_until(hosts, node, CONFIGURED))
    run(hosts)
    assert run(hosts).changed == []
    _nothing_half_made(node)


def test_power_cut_during_the_build(node: Node, hosts: Path) -> None:
    node.run("rm -r /opt/gpuwright/engines/*")
    process = _start_until(hosts, node, CONFIGURED)
    node.power_off()
    _kill(process)
    node.power_on()
    assert "The engine is built and proven" in run(hosts).changed
    assert run(hosts).changed == []
    _nothing_half_made(node)


def test_build_killed_on_the_node_fails_the_run_and_the_next_one_converges(
    node: Node, hosts: Path
) -> None:
    node.run("rm -r /opt/gpuwright/engines/*")
    process = _start_until(hosts, node, CONFIGURED)
    node.run("pkill -9 -x ninja")
    out, err = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "Traceback" not in out + err
    run(hosts)
    assert run(hosts).changed == []
    _nothing_half_made(node)


def test_killed_between_installing_and_restarting_still_restarts(node: Node, hosts: Path) -> None:
    """The new unit stands, systemd knows it, and the old process still runs: a run sees that."""
    run(hosts)
    unit = "/etc/systemd/system/gpuwright-llm.service"
    node.run(f"cp {unit} /root/right && sed -i 's/GPUWRIGHT_PLAN=..../GPUWRIGHT_PLAN=0000/' {unit}")
    node.run("systemctl daemon-reload && systemctl restart gpuwright-llm")
    node.run(f"cat /root/right > {unit} && systemctl daemon-reload")
    assert run(hosts).changed == ["The service runs what the plan says", "The model answers"]
    assert run(hosts).changed == []


def test_power_cut_while_serving(node: Node, hosts: Path) -> None:
    run(hosts)
    node.power_off()
    node.power_on()
    run(hosts)
    assert run(hosts).changed == []
