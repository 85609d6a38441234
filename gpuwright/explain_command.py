"""`gpuwright explain`: decide offline, on a saved node document or on a sketch."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from gpuwright.cli import EXIT_OK, EXIT_REFUSED
from gpuwright.decision_json import decision_as_data, example_launch
from gpuwright.explain import explain_plan, explain_refusal
from gpuwright.plan import Plan
from gpuwright.question import (
    add_host_options,
    add_want_options,
    explain_node,
    read_question,
    read_wants,
)
from gpuwright.refusals import Refusal
from gpuwright.selection import decide
from gpuwright.want import Want


def configure(parser: argparse.ArgumentParser) -> None:
    add_host_options(parser)
    parser.add_argument(
        "--want", type=Path, metavar="FILE", help="a mapping of what can be pinned, YAML or JSON"
    )
    parser.add_argument("--model", metavar="NAME", help="the same as --pin model=NAME")
    add_want_options(parser)
    parser.add_argument("--json", action="store_true", help="the decision as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the decision; 3 where it is a refusal."""
    (want,) = read_wants(arguments)
    question = read_question(arguments, want)
    decision = decide(question.host, want, question.matrix)
    if arguments.json:
        data = decision_as_data(decision, want, question.assumed)
        sys.stdout.write(json.dumps(data, indent=2) + "\n")
    else:
        sys.stdout.write(f"{explain_node(question)}\n\n{_text(decision, want)}\n")
    return EXIT_REFUSED if isinstance(decision, Refusal) else EXIT_OK


def _text(decision: Plan | Refusal, want: Want) -> str:
    if isinstance(decision, Refusal):
        return explain_refusal(decision)
    start = example_launch(decision, want.layout)
    command = [f"  {name}={value}" for name, value in sorted(start.environment.items())]
    line = ""
    for word in start.argv:
        if word.startswith("--") and line:
            command.append(f"  {line}")
            line = ""
        line += f" {word}" if line else word
    command.append(f"  {line}")
    return "\n".join((explain_plan(decision), "", "command", *command))
