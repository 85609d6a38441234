"""`gpuwright doctor`: what is wrong with a box, from its saved document, with what mends it."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from gpuwright.cli import EXIT_OK, EXIT_REFUSED
from gpuwright.doctor import as_data, as_text, diagnose, verdict
from gpuwright.findings import unseen
from gpuwright.load import load_findings, load_matrix
from gpuwright.question import read_document


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
