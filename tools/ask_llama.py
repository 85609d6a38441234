"""Writes the record of a llama.cpp release: every flag that its server's own help names.

python -m tools.ask_llama b11434 /path/to/llama-server
"""

from __future__ import annotations

import argparse
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpuwright.records import RECORDS
from tools.record_text import flags_text

_ENTRY = re.compile(r"--?[A-Za-z]")
_REMOVED = "the argument has been removed"
_CHOICE = re.compile(r"[\[{<]([^\]}>]*)[\]}>]|([a-z0-9-]+(?:,[a-z0-9-]+)+)")
_ALLOWED = re.compile(r"allowed values: (.*)")


def flags(help_text: str) -> Iterator[dict[str, Any]]:
    """Flags of a help text, as a record has them; those that only say they were removed are not."""
    entries: list[list[str]] = []
    for line in help_text.splitlines():
        if _ENTRY.match(line):
            entries.append([line])
        elif entries and line.strip() and not line.startswith("-----"):
            entries[-1].append(line)
    for first, *rest in entries:
        # What a flag means stands from column 40 on; under it where its names are longer.
        wide = first[39:40].strip() or re.match(r"[-<{\[]", first[40:])
        names, value = _names(first if wide else first[:40])
        if _REMOVED in " ".join([first, *rest]):
            continue
        allowed = _ALLOWED.search(" ".join(rest[:1]))
        yield {
            "names": names,
            "takes": "1" if value else "0",
            "values": allowed.group(1).split(", ") if allowed else _choices(value),
        }


def _names(head: str) -> tuple[list[str], str]:
    """`-a, --b VALUE` -> its names, its value."""
    names = re.findall(r"(?:^|,\s*)(-{1,2}[A-Za-z][A-Za-z0-9-]*)", head.strip())
    value = head.strip()
    for name in names:
        value = value.replace(name, "", 1)
    return names, value.strip(" ,")


def _choices(value: str) -> list[str]:
    found = _CHOICE.fullmatch(value)
    if not found:
        return []
    words = re.split(r"[|,]", found.group(1) or found.group(2))
    return words if len(words) > 1 and all(re.fullmatch(r"[a-z0-9-]+", w) for w in words) else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("release")
    parser.add_argument("server", type=Path)
    asked = parser.parse_args()
    said = subprocess.run([asked.server, "--help"], capture_output=True, text=True, check=True)
    path = RECORDS / f"llama.cpp-{asked.release}.yaml"
    found = flags(said.stdout)
    path.write_text(
        flags_text("llama.cpp", asked.release, found, tool="ask_llama", asked="help names")
    )


if __name__ == "__main__":
    main()
