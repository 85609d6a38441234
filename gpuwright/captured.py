"""What onnode/look.sh printed on a node: its files as a tree, and its commands' outputs.

Total: any lines give a capture.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gpuwright.onnode.outcome import clean
from gpuwright.onnode.tree import Tree

BEGIN = "@gpuwright 1"
END = "@end"


class Captured(Tree):
    """A node's files as they were printed. Nothing of this machine is read."""

    def __init__(self) -> None:
        super().__init__("/nonexistent")
        self.files: dict[str, str] = {}
        self.links: dict[str, str] = {}
        self.paths: set[str] = set()

    def data(self, path: str, limit: int = 16 << 20) -> bytes | None:
        text = self.files.get(path)
        return None if text is None else text.encode()[:limit]

    def link(self, path: str) -> str | None:
        return self.links.get(path)

    def names(self, path: str, limit: int = 10000) -> list[str]:
        head = path.rstrip("/") + "/"
        below = {one[len(head) :].split("/")[0] for one in self._known() if one.startswith(head)}
        return sorted(below)[:limit]

    def exists(self, path: str) -> bool:
        return any(one == path or one.startswith(f"{path}/") for one in self._known())

    def parsed(self, path: str, limit: int = 1 << 20) -> object:
        return None

    def _known(self) -> set[str]:
        return {*self.files, *self.links, *self.paths}


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """What a command printed, and its exit status: None where it did not end."""

    text: str
    status: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Capture:
    tree: Captured
    outputs: dict[str, Output]
    disks: dict[str, Output]
    whole: bool
    notes: list[str] = field(default_factory=list)

    def output(self, command: str) -> Output:
        """Of the first command that begins so; of none: not found, as a shell says it."""
        for name, output in self.outputs.items():
            if name.startswith(command):
                return output
        return Output(text="", status=127)

    def said(self, command: str) -> str | None:
        """What a command that ended well said, as one word or line."""
        output = self.output(command)
        return clean(output.text.strip(), 200) if output.status == 0 and output.text else None


def read(lines: Iterable[str]) -> Capture:
    """The frames that look.sh printed, from its first line on."""
    tree = Captured()
    outputs: dict[str, Output] = {}
    disks: dict[str, Output] = {}
    whole = False
    asked = None
    for head, body in _frames(lines):
        word, _, rest = head.partition(" ")
        if word == "@file":
            tree.files[rest] = "\n".join(body) + "\n"
        elif word == "@link" and body:
            tree.links[rest] = body[0]
        elif word == "@paths":
            tree.paths.update(line for line in body if line.startswith("/"))
        elif word == "@disk":
            asked = rest
        elif word == "@run" and rest.startswith("df ") and asked is not None:
            disks[asked] = _output(body)
            asked = None
        elif word == "@run":
            outputs[rest] = _output(body)
        whole = whole or head == END
    # Only the line of the container is printed, and it ends as the kernel writes it.
    if "/proc/1/environ" in tree.files:
        tree.files["/proc/1/environ"] = tree.files["/proc/1/environ"].replace("\n", "\0")
    return Capture(tree=tree, outputs=outputs, disks=disks, whole=whole)


def _frames(lines: Iterable[str]) -> Iterable[tuple[str, list[str]]]:
    head: str | None = None
    body: list[str] = []
    for line in lines:
        if line.startswith("@"):
            if head is not None:
                yield head, body
            head, body = clean(line.strip(), 1000), []
        elif line.startswith(" "):
            body.append(line[1:])
    if head is not None:
        yield head, body


def _output(body: Sequence[str]) -> Output:
    """Its last line is the exit status; without one the command was cut off."""
    match = re.fullmatch(r"exit (\d{1,3})", body[-1]) if body else None
    if match is None:
        return Output(text="\n".join(body), status=None)
    return Output(text="\n".join(body[:-1]).rstrip("\n"), status=int(match[1]))
