"""The whole node in one remote command: hardware, system and what is ours on it."""

from typing import Any

from pyinfra.api import FactBase, HiddenValue, StringCommand

from gpuwright import carry


def carried(program: str, spec: dict[str, Any]) -> StringCommand:
    """A program of ours as one command; hidden from -vv, where it would be pages of base64."""
    return StringCommand(HiddenValue(carry.command(program, spec), f"gpuwright: {program}"))


class Node(FactBase[dict[str, Any]]):
    """The node document, schema 2 (docs/node-document.md).

    Total: a broken driver or a missing interpreter is a status or an `error`, never a failed host.
    `spec` is the probe's (gpuwright/onnode/probe.py); without one it looks at everything but a
    service.
    """

    def command(self, spec: dict[str, Any] | None = None) -> StringCommand:
        return carried("probe", spec or {})

    @staticmethod
    def default() -> dict[str, Any]:
        return {"ok": False, "error": "the probe gave no answer"}

    def process(self, output: list[str]) -> dict[str, Any]:
        return carry.parse(output)


class Section(FactBase[Any]):
    """One section of the node document, or one part of it, asked for alone."""

    abstract = True
    section: str
    part: str | None = None
    beside: tuple[str, ...] = ()
    """Sections that this one takes a value from."""

    def command(self) -> StringCommand:
        return carried("probe", {"sections": [self.section, *self.beside]})

    @staticmethod
    def default() -> Any:
        return None

    def process(self, output: list[str]) -> Any:
        document = carry.parse(output)
        if self.section not in document:
            return {"error": document.get("error")}
        found = document[self.section]
        return found if self.part is None else found[self.part]


class Reachable(FactBase[dict[str, Any]]):
    """Whether every file of a fetch spec can be had from the node, changing nothing."""

    def command(self, spec: dict[str, Any]) -> StringCommand:
        return carried("fetch", spec)

    @staticmethod
    def default() -> dict[str, Any]:
        return {"ok": False, "error": "the preflight gave no answer"}

    def process(self, output: list[str]) -> dict[str, Any]:
        return carry.parse(output)
