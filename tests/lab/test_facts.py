"""Facts of a node that is not as one would like it: each obstacle is one sentence, no traceback."""

import json
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.converged import remote_commands
from gpuwright import cli
from tests.lab.lab import Lab
from tests.lab.node import Node
from tests.lab.serving import ROOT, Run, inventory, run

pytestmark = pytest.mark.lab

MODEL = "SmolLM2-135M-Instruct"
ENGINES = "/opt/gpuwright/engines"
BANNER = '#!/bin/sh\necho "WELCOME to {the box}"\nexec /bin/sh "$@"\n'


@pytest.fixture(scope="module")
def node(lab: Lab) -> Iterator[Node]:
    booted = lab.boot("facts")
    booted.add_user("typist", sudo="password")
    booted.add_user("guest", sudo=None)
    yield booted
    booted.destroy()


def explained(node: Node, folder: Path, user: str = "root", **data: Any) -> Run:
    path = inventory(folder / "hosts.py", [(node, {"gpuwright": {"model": MODEL}, **data})], user)
    done = run(path, deploy="deploys/explain.py", check=False, timeout=120)
    assert "Traceback" not in done.text, done.text
    return done


@contextmanager
def mounted(node: Node, path: str, options: str) -> Iterator[None]:
    node.run(f"mkdir -p {path} && mount -t tmpfs -o {options} tmpfs {path}")
    try:
        yield
    finally:
        node.run(["umount", path])


def test_a_fact_is_asked_for_alone(node: Node, tmp_path: Path) -> None:
    path = inventory(tmp_path / "hosts.py", [(node, {})])

    def fact(name: str) -> Any:
        command = [sys.executable, "-m", "pyinfra", str(path), "fact", name, "--json"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        while isinstance(told, dict) and len(told) == 1:
            told = next(iter(told.values()))
        return told

    assert fact("facts.driver.Driver")["nouveau"] is None
    assert fact("facts.engines.Engines") == []
    pythons = fact("facts.system.Pythons")
    assert [one["executable"] for one in pythons] == ["/usr/bin/python3.11"]


def test_a_node_s_document_is_saved_by_one_command_and_names_no_machine(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node.run("install -d /home/secretive/python/bin")
    data = {"gpuwright": {"model": MODEL, "model_store": "/home/secretive/models"}}
    path = inventory(tmp_path / "hosts.py", [(node, data)])
    words = ["--data", f"facts_cache={tmp_path / 'cache'}", "--data", "redact=true"]
    assert remote_commands(path, "deploys/facts.py", *words) == 1
    (saved,) = (tmp_path / "cache").iterdir()
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    text = saved.read_text()
    name = node.run("hostname").stdout.strip()
    assert [word for word in (node.address, "secretive", f'"{name}"') if word in text] == []
    assert json.loads(text)["notes"] == []
    assert cli.main(["explain", "--host", str(saved), "--model", MODEL]) == 0
    assert cli.main(["doctor", "--host", str(saved)]) == 0
    assert "keeps this node from serving" in capsys.readouterr().out


@pytest.mark.parametrize("shell", ["/usr/local/bin/greeter", "/usr/bin/fish"])
def test_login_shell_that_talks_or_is_no_posix_shell_is_no_obstacle(
    node: Node, tmp_path: Path, shell: str
) -> None:
    if shell.endswith("fish"):
        node.run("apt-get update -qq && apt-get install -y -qq --no-install-recommends fish")
    else:
        greeter = node.root / shell[1:]
        greeter.write_text(BANNER)
        greeter.chmod(0o755)
    node.run(["usermod", "--shell", shell, "root"])
    try:
        done = explained(node, tmp_path)
    finally:
        node.run(["usermod", "--shell", "/bin/bash", "root"])
    assert done.status == 0, done.text
    assert "q4_1 weights" in done.text


@pytest.mark.parametrize(
    ("user", "data", "sentence"),
    [
        ("typist", {"_sudo_password": None}, "sudo asks for a password"),
        ("guest", {"_sudo": True}, "sudo asks for a password"),
        ("typist", {"_sudo_password": "wrong"}, "under sudo, the password may be another"),
    ],
)
def test_sudo_that_does_not_let_us_in_is_one_sentence(
    node: Node, tmp_path: Path, user: str, data: dict[str, Any], sentence: str
) -> None:
    done = explained(node, tmp_path, user, **data)
    assert done.status != 0
    assert sentence in done.text


def test_sudo_password_that_is_known_lets_us_in(node: Node, tmp_path: Path) -> None:
    assert explained(node, tmp_path, "typist").status == 0


@pytest.mark.parametrize(
    ("path", "options", "sentence"),
    [
        (ENGINES, "ro", f"filesystem {ENGINES} below {ENGINES}: needs one that can be written to"),
        (ENGINES, "noexec", f"filesystem {ENGINES} below {ENGINES}: needs one whose programs may"),
        ("/var/lib/gpuwright/models", "size=1m", "/var/lib/gpuwright/models"),
    ],
)
def test_filesystem_that_cannot_take_a_service_is_refused(
    node: Node, tmp_path: Path, path: str, options: str, sentence: str
) -> None:
    with mounted(node, path, options):
        done = explained(node, tmp_path)
    assert done.status != 0
    assert sentence in done.text


def test_tmp_that_runs_no_programs_and_a_full_one_are_no_obstacle(
    node: Node, tmp_path: Path
) -> None:
    with mounted(node, "/tmp", "noexec,size=4k"):
        node.run("head -c 8k /dev/zero > /tmp/full; true")
        assert explained(node, tmp_path).status == 0


def test_directory_above_ours_that_is_read_only_is_refused(node: Node, tmp_path: Path) -> None:
    node.run("mount --bind /opt /opt && mount -o remount,bind,ro /opt")
    try:
        done = explained(node, tmp_path)
    finally:
        node.run("umount /opt")
    assert done.status != 0
    assert f"filesystem /opt below {ENGINES}: needs one that can be written to" in done.text
