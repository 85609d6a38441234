"""What `gpuwright connect` prints works as it stands: its tunnel opens, its line gets an answer."""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuwright.layout import Layout
from tests.lab.lab import Lab
from tests.lab.node import Node
from tests.lab.serving import ROOT, inventory, run
from tests.lab.warm import boot_warm

pytestmark = pytest.mark.lab

MODEL = "SmolLM2-135M-Instruct"
USER = "deployer"
PORT = 18080


@pytest.fixture(scope="module")
def node(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    booted = boot_warm(lab, "connect")
    booted.add_user(USER, sudo="nopasswd")
    folder = tmp_path_factory.mktemp("connect")
    run(inventory(folder / "hosts.py", [(booted, {"gpuwright": {"model": MODEL}})]))
    yield booted
    booted.destroy()


@pytest.fixture(scope="module")
def key(node: Node) -> str:
    path = Layout().environment_path("llm")
    return node.run(["sed", "-n", "s/^LLAMA_API_KEY=//p", path]).stdout.strip()


def command(node: Node, *arguments: str, user: str = "root") -> list[str]:
    words = [sys.executable, "-m", "gpuwright", "connect", "-F", str(node.ssh_config)]
    return [*words, "--port", str(PORT), f"{user}@{node.address}", *arguments]


def shown(node: Node, user: str = "root") -> dict[str, Any]:
    done = subprocess.run(
        command(node, "--json", user=user), cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    data: dict[str, Any] = json.loads(done.stdout)
    return data


def open_port() -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", PORT)) == 0


@contextmanager
def tunnel_as_printed(line: list[str]) -> Iterator[None]:
    """The printed tunnel, through a shell, until the port is there."""
    with subprocess.Popen(["sh", "-c", f"exec {shlex.join(line)}"]) as process:
        deadline = time.monotonic() + 30
        while not open_port() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        try:
            yield
        finally:
            process.terminate()


def arguments_here() -> str:
    """The arguments of every process of this machine."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
        except OSError:
            continue
    return "\n".join(found)


@pytest.mark.parametrize("user", ["root", USER])
def test_printed_curl_line_gets_an_answer_through_the_printed_tunnel(
    node: Node, key: str, user: str
) -> None:
    found = shown(node, user)
    assert found["endpoint"] == f"http://127.0.0.1:{PORT}/v1"
    assert key not in json.dumps(found)
    seen = ""
    with (
        tunnel_as_printed(found["tunnel"]),
        subprocess.Popen(
            ["sh", "-c", found["curl"]],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as asking,
    ):
        while asking.poll() is None:
            seen += arguments_here() + node.run(["ps", "axww", "-o", "args"]).stdout
        out, err = asking.communicate(timeout=60)
    assert asking.returncode == 0, err
    assert json.loads(out)["choices"][0]["message"]["content"].strip()
    # The line itself was seen at work, so a key in it would have been seen, too.
    assert "/v1/chat/completions" in seen
    assert key not in seen


def test_tunnel_opens_when_it_says_so_and_is_gone_after_sigint(node: Node) -> None:
    process = subprocess.Popen(
        command(node, "--tunnel"),
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        assert process.stderr is not None
        said = process.stderr.readline()
        assert said == f"tunnel open on http://127.0.0.1:{PORT}/v1 until Ctrl-C\n"
        assert open_port()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert not open_port()
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_taken_port_is_said_and_exit_1(node: Node) -> None:
    with socket.create_server(("127.0.0.1", PORT)):
        done = subprocess.run(
            command(node, "--tunnel"), cwd=ROOT, capture_output=True, text=True, timeout=60
        )
    assert done.returncode == 1
    assert "Address already in use" in done.stderr
    assert "until Ctrl-C" not in done.stderr


def test_service_that_was_never_applied_is_named(node: Node) -> None:
    done = subprocess.run(
        command(node, "--service", "other"), cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "no record of a service other" in done.stderr
