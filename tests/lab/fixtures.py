"""Fixtures of tests that need real nodes; they skip where no lab can be had, but never under CI."""

import os
from collections.abc import Iterator
from typing import Any, NoReturn, Protocol

import pytest

from tests.lab.hub import Hub
from tests.lab.lab import Lab
from tests.lab.node import Node


class BootNode(Protocol):
    """Boot a node by its name; options as for Lab.boot. It is destroyed after the test."""

    def __call__(self, name: str = ..., suite: str = ..., **options: Any) -> Node: ...


def do_without_lab(reason: str) -> NoReturn:
    """Skip, but fail where CI=true: there the lab is known to be had, and a skip would hide it."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """The run's lab, taken down after the last test."""
    ok, reason = Lab.available()
    if not ok:
        do_without_lab(reason)
    with Lab() as opened:
        yield opened


@pytest.fixture
def boot_node(lab: Lab) -> Iterator[BootNode]:
    """Boots nodes that last as long as the test."""
    booted: list[str] = []

    def boot(name: str = "node", suite: str = "bookworm", **options: Any) -> Node:
        booted.append(name)
        return lab.boot(name, suite, **options)

    yield boot
    for node in lab.nodes():
        if node.name in booted:
            node.destroy()


@pytest.fixture
def hub(lab: Lab) -> Iterator[Hub]:
    """A model hub that nodes reach."""
    with lab.hub() as opened:
        yield opened
