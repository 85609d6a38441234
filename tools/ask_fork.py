"""Writes the record of an ik_llama.cpp release: every option that its server's own parser takes.

python -m tools.ask_fork 0.1.5 /path/to/llama-server

Its help leaves options out, and values. So names come from the help and from the program's strings,
and the parser is asked one by one: behind an option that takes no value it answers `--version`.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpuwright.records import RECORDS
from tools.record_text import flags_text

_NAME = re.compile(r"(?:^|[\s,])(--?[A-Za-z][A-Za-z0-9-]*)")
_CHOICES = re.compile(r"[\[({]([^\])}]*[|,][^\])}]*)[\])}]$")
_STRING = re.compile(rb"\0(--[a-z][a-z0-9-]+)(?=\0)")
_HEAD = 34
"""What an option means stands from this column on; under it where its names are longer."""


def flags(server: Path) -> Iterator[dict[str, Any]]:
    """Options as a record has them, those of the help first."""
    help_text = _said(server, "--help")
    seen: set[str] = set()
    for head in _heads(help_text):
        names = [name for name in _NAME.findall(head) if name not in seen]
        takes = {name: found for name in names if (found := _takes(server, name)) is not None}
        if takes:
            seen.update(takes)
            yield _flag(list(takes), next(iter(takes.values())), _choices(head))
    for name in sorted({found.decode() for found in _STRING.findall(server.read_bytes())} - seen):
        if (found := _takes(server, name)) is not None:
            yield _flag([name], found, [])


def _flag(names: list[str], takes: str, values: list[str]) -> dict[str, Any]:
    return {"names": names, "takes": takes, "values": values if takes == "1" else []}


def _heads(help_text: str) -> Iterator[str]:
    """Names and value of each entry, without what it means."""
    for line in help_text.splitlines():
        if re.match(r"  (?:-| {7}--)", line):
            yield line.strip() if line[_HEAD - 1 : _HEAD].strip() else line[:_HEAD].strip()


def _choices(head: str) -> list[str]:
    found = _CHOICES.search(head.replace(" ", ""))
    return re.split(r"[|,]", found.group(1)) if found else []


def _takes(server: Path, name: str) -> str | None:
    """How many values the parser wants behind `name`; None where it does not know it."""
    said = _said(server, name, "--version")
    if f"unknown argument: {name}\n" in said:
        return None
    return "0" if "\nversion: " in f"\n{said}" else "1"


def _said(server: Path, *arguments: str) -> str:
    with tempfile.TemporaryDirectory() as empty:
        done = subprocess.run(
            [server, *arguments],
            cwd=empty,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=30,
        )
    return done.stdout + done.stderr


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("release")
    parser.add_argument("server", type=Path)
    asked = parser.parse_args()
    path = RECORDS / f"ik_llama.cpp-{asked.release}.yaml"
    found = flags(asked.server.resolve())
    path.write_text(
        flags_text("ik_llama.cpp", asked.release, found, tool="ask_fork", asked="parser takes")
    )


if __name__ == "__main__":
    main()
