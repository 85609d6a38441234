"""A whole pass on trixie, as an SSH user who is not root and has sudo without a password."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuwright.layout import Layout
from tests.lab.lab import Lab
from tests.lab.node import Node
from tests.lab.serving import NOT_SHARED, Run, inventory, run
from tests.lab.warm import boot_warm

pytestmark = pytest.mark.lab

USER = "deployer"
MODEL = "SmolLM2-135M-Instruct"
QUESTION = "What is the capital of France? Answer in one sentence."
UNIT = "gpuwright-llm.service"


@pytest.fixture(scope="module")
def node(lab: Lab) -> Iterator[Node]:
    booted = boot_warm(lab, "trixie", "trixie")
    booted.add_user(USER, sudo="nopasswd")
    yield booted
    booted.destroy()


@pytest.fixture(scope="module")
def path(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trixie")
    return inventory(folder / "hosts.py", [(node, {"gpuwright": {"model": MODEL}})], user=USER)


@pytest.fixture(scope="module")
def first(path: Path) -> Run:
    return run(path)


def test_user_without_sudo_is_refused_before_anything_is_touched(
    node: Node, tmp_path: Path
) -> None:
    data = {"gpuwright": {"model": MODEL}, "_sudo": False}
    done = run(inventory(tmp_path / "hosts.py", [(node, data)], user=USER), check=False)
    assert done.status != 0
    assert "sudo" in done.text
    assert "Traceback" not in done.text
    assert node.run(["test", "-e", "/etc/gpuwright"], check=False).returncode == 1


def test_first_run_serves(node: Node, first: Run) -> None:
    assert first.quiet == [*NOT_SHARED, "Engine and model are root's alone to change"]
    key = node.run(f"sed -n s/^LLAMA_API_KEY=//p {Layout().environment_path('llm')}").stdout.strip()
    body = {"messages": [{"role": "user", "content": QUESTION}]}
    ask = shlex.join(
        [
            "curl",
            "-sS",
            "-H",
            f"Authorization: Bearer {key}",
            "-d",
            json.dumps(body | {"max_tokens": 24, "temperature": 0}),
            "http://127.0.0.1:8080/v1/chat/completions",
        ]
    )
    answer = json.loads(node.run(ask).stdout)
    assert "Paris" in answer["choices"][0]["message"]["content"]
    assert key not in first.text


@pytest.mark.usefixtures("first")
def test_user_cannot_read_the_key(node: Node) -> None:
    done = node.run(["cat", Layout().environment_path("llm")], user=USER, check=False)
    assert done.returncode != 0
    assert "Permission denied" in done.stderr


@pytest.mark.usefixtures("first")
def test_unit_is_rated_at_most_1_5(node: Node) -> None:
    rating = node.run(f"systemd-analyze security --no-pager {UNIT} | tail -n 1").stdout
    assert float(rating.split(":")[1].split()[0]) <= 1.5, rating


def test_second_run_changes_nothing(path: Path, first: Run) -> None:
    second = run(path)
    assert second.changed == []
    assert sorted(second.quiet) == sorted([*first.changed, *first.quiet])
