"""The documented command with the shipped inventory: it serves on the machine it is typed on."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.lab import Lab
from tests.lab.node import Node
from tests.lab.serving import ROOT, run
from tests.lab.warm import boot_warm

pytestmark = pytest.mark.lab

COMMAND = "cd /srv/gpuwright && .venv/bin/pyinfra -y inventory.py deploys/serve.py"


@pytest.fixture(scope="module")
def node(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node with a checkout of this tree and its environment, as an operator would have it."""
    booted = boot_warm(lab, "here")
    files = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    target = booted.root / "srv/gpuwright"
    target.mkdir(parents=True)
    pack = ["tar", "-C", str(ROOT), "--null", "-T", "-", "-c"]
    packed = subprocess.run(pack, input=files, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-C", str(target), "-x"], input=packed, check=True)
    booted.run(
        "cd /srv/gpuwright && python3 -m venv .venv && .venv/bin/pip install -q -e .", timeout=600
    )
    yield booted
    booted.destroy()


def test_shipped_inventory_serves_the_best_model_that_fits_here(node: Node) -> None:
    done = node.run(COMMAND, timeout=1500)
    text = done.stdout + done.stderr
    assert "SmolLM2-135M-Instruct" in text
    assert "answered after" in text
    again = node.run(COMMAND, timeout=120)
    assert "nothing to change" in again.stdout + again.stderr


def test_command_line_works_from_the_installed_package(node: Node) -> None:
    listed = node.run("/srv/gpuwright/.venv/bin/gpuwright models").stdout
    assert "SmolLM2-135M-Instruct" in listed


def test_demo_without_root_rehearses_and_says_so(node: Node) -> None:
    node.run("useradd --create-home visitor")
    command = ["runuser", "-u", "visitor", "--", "/srv/gpuwright/.venv/bin/python", "-m"]
    done = node.run(["env", "--chdir=/srv/gpuwright", *command, "tools.demo"])
    text = done.stdout + done.stderr
    assert "REHEARSAL" in text
    assert "nothing was installed, nothing was served" in text
    assert "The model answers" in text


def test_other_directory_is_no_obstacle(node: Node) -> None:
    command = (
        "cd / && /srv/gpuwright/.venv/bin/pyinfra --chdir /srv/gpuwright -y "
        "inventory.py deploys/explain.py"
    )
    done = node.run(command)
    assert "llama.cpp" in done.stdout + done.stderr


@pytest.mark.skipif(
    Path("/run/systemd/system").is_dir(), reason="this machine has systemd: it could be served on"
)
def test_machine_without_systemd_is_refused_before_anything_is_touched() -> None:
    done = run("inventory.py", check=False)
    assert done.status != 0
    assert "systemd" in done.text
    assert "Traceback" not in done.text
    assert not Path("/etc/gpuwright").exists()
    assert not Path("/opt/gpuwright").exists()
