"""A node whose system is too old or too new for what is wanted is refused by the rule's row, while
what was serving serves on."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.lab.cards import change_cards, put_cards
from tests.lab.lab import Lab
from tests.lab.node import Node
from tests.lab.serving import NOT_SHARED, Run, inventory, run
from tests.lab.warm import MODEL, boot_warm
from tests.nvml import rigs

pytestmark = pytest.mark.lab

UNIT = "gpuwright-llm.service"


class Box:
    """A Debian 11, on which the small model serves from the CPU, and which looks as if it had a
    card."""

    def __init__(self, node: Node, folder: Path) -> None:
        self.node, self.folder = node, folder
        self.hosts = self.hosts_with("cpu.py", {"model": MODEL, "gpus": "none"})
        self.first = run(self.hosts)

    def hosts_with(self, name: str, want: dict[str, Any]) -> Path:
        return inventory(self.folder / name, [(self.node, {"gpuwright": want})])

    def pid(self) -> str:
        """The process that answers."""
        self.node.run("curl -fsS http://127.0.0.1:8080/health")
        return self.node.run(f"systemctl show -p MainPID --value {UNIT}").stdout.strip()

    def refused(self, want: dict[str, Any]) -> Run:
        """A run that is refused before anything is done; what serves has not noticed."""
        before = self.pid()
        done = run(self.hosts_with("big.py", {"service": "big", "port": 8090} | want), check=False)
        assert done.status != 0, done.text
        assert "Traceback" not in done.text, done.text
        assert f"{self.node.name}: no way to serve" in done.text
        assert "(nothing was touched)" in done.text
        assert self.pid() == before
        return done

    @contextmanager
    def called(self, name: str, version: str) -> Iterator[None]:
        """The node says that it is another distribution: what it has of compilers follows."""
        path = "/usr/lib/os-release"
        said = f"ID={name}\nVERSION_ID={version}\nPRETTY_NAME={name}-{version}\n"
        self.node.run(f"cp {path} /root/own && printf %s {shlex.quote(said)} > {path}")
        try:
            yield
        finally:
            self.node.run(f"cat /root/own > {path}")


@pytest.fixture(scope="module")
def box(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    node = boot_warm(lab, "old", "bullseye")
    folder = tmp_path_factory.mktemp("old")
    put_cards(node, folder, rigs.ONE_3090)
    yield Box(node, folder)
    node.destroy()


def test_the_oldest_system_serves_and_a_second_run_changes_nothing(box: Box) -> None:
    quiet = {*NOT_SHARED, "Engine and model are root's alone to change"}
    assert set(box.first.quiet) <= quiet
    pid = box.pid()
    assert run(box.hosts).changed == []
    assert box.pid() == pid


def test_a_c_library_older_than_the_wheels_need_is_refused(box: Box) -> None:
    change_cards(box.node, rigs.ONE_3090)
    done = box.refused({"model": "Qwen3.6-27B", "engine": "sglang"})
    assert "glibc: needs >= 2.34, found 2.31" in done.text
    assert "a release of the node's distribution with glibc 2.34 or newer" in done.text
    told = run(
        box.hosts_with("told.py", {"model": "Qwen3.6-27B", "engine": "sglang", "port": 8090}),
        deploy="deploys/explain.py",
        check=False,
    )
    assert "glibc: needs >= 2.34, found 2.31 [sglang-0.5.23]" in told.text


def test_a_compiler_newer_than_the_toolkit_takes_is_refused(box: Box) -> None:
    change_cards(box.node, rigs.ONE_P40)
    want = {"model": MODEL, "engine": "llama.cpp", "cuda_repository": True}
    with box.called("ubuntu", "26.04"):
        done = box.refused(want)
    assert "C++ compiler for CUDA 12.8: needs gcc <= 14, found g++-15 of ubuntu-26.04" in done.text
    assert "`older_compilers`" in done.text
