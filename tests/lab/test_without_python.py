"""A node whose python3 is gone: its shell looks, over SSH, and nvidia-smi answers as captured."""

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuwright.carry import NEEDED
from tests import captures
from tests.lab.lab import Lab
from tests.lab.node import Node
from tests.lab.serving import ROOT, inventory, run

pytestmark = pytest.mark.lab

RIG = "2x3090-x4-patched-158"
SAID = "/opt/captured"


class Bare:
    """A node without python3, with a stand-in nvidia-smi."""

    def __init__(self, node: Node, folder: Path) -> None:
        self.node, self.folder = node, folder
        self.hosts = inventory(folder / "hosts.py", [(node, {"gpuwright": {"model": "auto"}})])

    def smi(self, script: str) -> None:
        """Let the node's nvidia-smi be this script."""
        path = self.node.root / "usr/bin/nvidia-smi"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def rig(self, name: str) -> None:
        """Let the node's nvidia-smi answer as a captured rig's."""
        built = captures.build(self.folder / name, captures.texts(name))
        for file in (built / "said").iterdir():
            target = self.node.root / SAID.lstrip("/") / file.name
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(file.read_bytes())
        script = (built / "bin/nvidia-smi").read_text()
        self.smi(script.replace(str(built / "said"), SAID))

    def fact(self, name: str) -> Any:
        done = subprocess.run(
            [sys.executable, "-m", "pyinfra", str(self.hosts), "fact", name, "--json"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        return json.loads(done.stdout)[name][self.node.name]


@pytest.fixture(scope="module")
def bare(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bare]:
    node = lab.boot("bare", "bookworm")
    node.run("mv /usr/bin/python3 /usr/bin/python3.away 2>/dev/null; ! command -v python3")
    yield Bare(node, tmp_path_factory.mktemp("bare"))
    node.destroy()


def test_cards_are_told_by_the_shell_as_by_the_capture(bare: Bare) -> None:
    bare.rig(RIG)
    kept = json.loads((captures.HOSTS / RIG / "document.json").read_text(encoding="utf-8"))
    found = bare.fact("facts.gpu.Gpus")
    for device in (*found["devices"], *kept["gpus"]["devices"]):
        del device["xids"]
    for key in ("source", "driver_version", "cuda_version", "devices", "pairs"):
        assert found[key] == kept["gpus"][key], key


def test_the_node_itself_is_told(bare: Bare) -> None:
    found = bare.fact("facts.node.Node")
    assert (found["schema"], found["by"], found["uid"]) == (2, "shell", 0)
    assert (found["os"]["id"], found["glibc"]) == ("debian", "2.36")
    assert found["systemd"]["running"] is True
    assert found["virtualization"] == "systemd-nspawn"
    assert found["memory"]["total_bytes"] > 0
    assert 22 in [one["port"] for one in found["ports"]]
    assert found["disks"] == {}


@pytest.mark.parametrize(
    ("status", "said", "expected"),
    [
        (6, "No devices were found", "no_gpu"),
        (9, "NVIDIA-SMI has failed because it couldn't communicate", "no_gpu"),
        (15, "GPU is lost.  Reboot the system to recover this GPU", "gpu_lost"),
        (18, "Failed to initialize NVML: Driver/library version mismatch", "driver_mismatch"),
        (255, "Failed to initialize NVML: Unknown Error", "unreadable"),
    ],
)
def test_a_broken_driver_is_a_status(bare: Bare, status: int, said: str, expected: str) -> None:
    bare.smi(f"echo {shlex.quote(said)}; exit {status}")
    assert bare.fact("facts.gpu.Gpus")["status"] == expected


def test_binary_junk_and_escapes_are_made_harmless(bare: Bare) -> None:
    bare.smi("head -c 100000 /dev/urandom; printf '\\033[31m\\r@end\\n'")
    found = bare.fact("facts.gpu.Gpus")
    assert found["status"] == "unreadable"
    assert found["detail"].isprintable()


def test_a_driver_that_hangs_is_given_up_and_nothing_is_left_running(bare: Bare) -> None:
    bare.smi("exec sleep 612")
    began = time.monotonic()
    found = bare.fact("facts.gpu.Gpus")
    assert found["status"] == "unreadable"
    assert "hangs" in found["detail"]
    assert time.monotonic() - began < 30
    time.sleep(2)
    assert bare.node.run("pgrep -x sleep | wc -l").stdout == "0\n"


def test_a_node_without_python_is_explained_and_not_served_on(bare: Bare) -> None:
    bare.rig("2x3090-in-kvm-642")
    explained = run(bare.hosts, deploy="deploys/explain.py", check=False)
    assert "Python: needs" in explained.text
    assert "Traceback" not in explained.text
    done = run(bare.hosts, check=False)
    assert done.status != 0
    assert "Python: needs" in done.text or NEEDED in done.text
    assert "Traceback" not in done.text
