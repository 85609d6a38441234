"""`gpuwright explain`: decide offline on a saved node document."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import yaml

from gpuwright.cli import EXIT_OK, EXIT_REFUSED
from gpuwright.explain import explain_host, explain_plan, explain_refusal
from gpuwright.host import Host
from gpuwright.launch import launch
from gpuwright.load import load_matrix
from gpuwright.plan import Plan
from gpuwright.refusals import HostError, Refusal, WantError
from gpuwright.selection import decide
from gpuwright.want import KEYS, Want


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--host", type=Path, required=True, metavar="FILE", help="node document, as the probe saves"
    )
    parser.add_argument("--model", help="model id or alias; the same as --set model=...")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="settings",
        help=f"a key of the host's gpuwright dict, the value in YAML: {', '.join(KEYS)}",
    )
    parser.add_argument("--json", action="store_true", help="the decision as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the decision; 3 where it is a refusal."""
    want = Want.from_data(_settings(arguments))
    host = Host.from_document(_document(arguments.host))
    matrix = load_matrix(want.extra_models)
    decision = decide(host, want, matrix)
    if arguments.json:
        sys.stdout.write(json.dumps(decision_as_data(decision), indent=2) + "\n")
    else:
        sys.stdout.write(f"{explain_host(host, matrix)}\n\n{_text(decision, want)}\n")
    return EXIT_REFUSED if isinstance(decision, Refusal) else EXIT_OK


def decision_as_data(decision: Plan | Refusal) -> dict[str, Any]:
    """The decision as JSON data, with one key that says which of the two it is."""
    kind = "refusal" if isinstance(decision, Refusal) else "plan"
    return {"decision": kind} | dataclasses.asdict(decision)


def _text(decision: Plan | Refusal, want: Want) -> str:
    if isinstance(decision, Refusal):
        return explain_refusal(decision)
    layout = want.layout
    model_path = layout.checkpoint_dir(decision.checkpoint)
    if decision.files and decision.engine == "llama.cpp":
        model_path += f"/{decision.files[0].path}"
    elif decision.engine == "llama.cpp":
        model_path += "/MODEL.gguf"
    engine_dir = layout.engine_dir(decision.engine, decision.release, "KEY")
    start = launch(decision, layout, model_path, engine_dir)
    command = [f"  {name}={value}" for name, value in sorted(start.environment.items())]
    line = ""
    for word in start.argv:
        if word.startswith("--") and line:
            command.append(f"  {line}")
            line = ""
        line += f" {word}" if line else word
    command.append(f"  {line}")
    return "\n".join((explain_plan(decision), "", "command", *command))


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for entry in arguments.settings:
        key, separator, value = entry.partition("=")
        if not separator:
            raise WantError(f"--set {entry}: needs KEY=VALUE")
        try:
            data = yaml.safe_load(value)
        except yaml.YAMLError:
            data = value
        # A release is text however much it looks like a number.
        settings[key] = value if isinstance(data, float) else data
    if arguments.model is not None:
        settings["model"] = arguments.model
    return settings


def _document(path: Path) -> object:
    """The document in a file, also as `pyinfra INVENTORY fact facts.node.Node --json` prints it."""
    try:
        found: object = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(found, dict) and set(found) == {"facts.node.Node"}:
            hosts = found["facts.node.Node"]
            if not isinstance(hosts, dict) or len(hosts) != 1:
                raise HostError(f"{path}: holds facts of several hosts, needed one (--limit)")
            (found,) = hosts.values()
        return found
    except OSError as error:
        raise HostError(f"{path}: {error.strerror}") from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise HostError(f"{path}: not JSON: {error}") from error
