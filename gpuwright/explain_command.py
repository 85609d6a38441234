"""`gpuwright explain`: decide offline, on a saved node document or on a sketch."""

from __future__ import annotations

import argparse
import json
import shlex
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
)
from gpuwright.refusals import Refusal
from gpuwright.services import decide_services
from gpuwright.want import Want


def configure(parser: argparse.ArgumentParser) -> None:
    add_host_options(parser)
    parser.add_argument(
        "--want",
        type=Path,
        metavar="FILE",
        help="a mapping of what can be pinned, YAML or JSON; `services` in it lists several",
    )
    parser.add_argument("--model", metavar="NAME", help="the same as --pin model=NAME")
    add_want_options(parser)
    parser.add_argument("--json", action="store_true", help="the decision as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the decision; 3 where it is a refusal."""
    wants, question = read_question(arguments)
    decisions = decide_services(question.host, wants, question.matrix)
    pairs = list(zip(decisions, wants, strict=True))
    if arguments.json:
        data = [decision_as_data(each, want, question.assumed) for each, want in pairs]
        refused = any(each["verdict"] == "refusal" for each in data)
        verdict = "refusal" if refused else "plan"
        whole = data[0] if len(data) == 1 else {"verdict": verdict, "services": data}
        sys.stdout.write(json.dumps(whole, indent=2) + "\n")
    else:
        texts = [explain_node(question), *(_text(each, want) for each, want in pairs)]
        sys.stdout.write("\n\n".join(texts) + "\n")
    return EXIT_REFUSED if any(isinstance(each, Refusal) for each in decisions) else EXIT_OK


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
        quoted = shlex.quote(word)
        line += f" {quoted}" if line else quoted
    command.append(f"  {line}")
    return "\n".join((explain_plan(decision), "", "command", *command))
