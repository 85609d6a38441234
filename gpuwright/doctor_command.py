"""`gpuwright doctor`: what is wrong with a box, from its saved document, with what mends it."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from pathlib import Path
from typing import Any

from gpuwright.cli import EXIT_OK, EXIT_REFUSED
from gpuwright.doctor import diagnose, verdict
from gpuwright.findings import Finding, unseen
from gpuwright.load import load_findings, load_matrix
from gpuwright.question import read_document

_WIDTH = 100


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--host",
        type=Path,
        metavar="FILE",
        required=True,
        help="a node document, as deploys/facts.py saves it",
    )
    parser.add_argument("--json", action="store_true", help="the findings as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the findings; 3 where one of them keeps a card, or the node, from serving."""
    document, rows = read_document(arguments.host), load_findings()
    found, dark = diagnose(document, rows, load_matrix()), unseen(document, rows)
    text = json.dumps(as_data(found, dark), indent=2) if arguments.json else as_text(found, dark)
    sys.stdout.write(text + "\n")
    return EXIT_REFUSED if verdict(found) == "blocked" else EXIT_OK


def as_data(found: tuple[Finding, ...], dark: tuple[str, ...]) -> dict[str, Any]:
    return {
        "verdict": verdict(found),
        "findings": [
            {
                "id": each.id,
                "severity": each.severity.value,
                "says": list(each.says),
                "remedy": each.remedy,
                "sources": [claim.url for claim in each.sources],
            }
            for each in found
        ],
        "unseen": list(dark),
    }


def as_text(found: tuple[Finding, ...], dark: tuple[str, ...]) -> str:
    lines = []
    for each in found:
        for index, sentence in enumerate(each.says):
            lines += _wrapped(f"{each.severity:<8}" if index == 0 else " " * 8, sentence)
        lines += _wrapped("   mend ", each.remedy)
        if each.sources:
            lines += _wrapped("   see  ", ", ".join(claim.url for claim in each.sources))
        lines.append("")
    if verdict(found) == "healthy":
        lines.append("nothing that keeps this node from serving was found")
    if dark:
        lines += _wrapped("not known: ", ", ".join(dark))
    return "\n".join(lines).rstrip("\n")


def _wrapped(first: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_long_words=False,
        break_on_hyphens=False,
    )
