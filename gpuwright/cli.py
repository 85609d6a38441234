"""The command line: one subcommand per module.

A command is a module with `configure(parser)` and `run(arguments) -> int`; a line in
COMMANDS makes it known. Its module is loaded only when it is the one that runs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn, TextIO

from gpuwright import __version__
from gpuwright.quoting import nearest, quoted
from gpuwright.refusals import HostError, MatrixError, NoAnswerError, WantError

COMMANDS = {
    "explain": ("gpuwright.explain_command", "what a node would serve, and why"),
    "fits": ("gpuwright.fits_command", "every model that a node can serve, best first"),
    "kv": ("gpuwright.kv_command", "what a KV cache of a given size holds, exactly"),
    "models": ("gpuwright.models_command", "models and checkpoints in the catalogue"),
    "gpus": ("gpuwright.gpus_command", "graphics cards in the catalogue"),
    "doctor": ("gpuwright.doctor_command", "what is wrong with a node, worst first"),
    "connect": ("gpuwright.connect", "how to reach what a node serves, and the tunnel to it"),
}

EXIT_OK = 0
EXIT_NO_ANSWER = 1
EXIT_BAD_INPUT = 2
EXIT_REFUSED = 3
EXIT_MATRIX_FAULT = 4
EXIT_INTERRUPTED = 130
EXIT_NO_READER = 141
"""What a shell says of a program that a closed pipe ends."""
STATUSES = (
    "exit status: 0 done, 1 no answer, or nowhere to write it, 2 bad input, 3 refused, or a node "
    "that cannot serve, 4 a fault in gpuwright's own data"
)
EXAMPLES = {
    "explain": (
        'gpuwright explain --gpu "RTX 3090" --gpu "RTX 3090" --model qwen3.6-27b',
        "gpuwright explain --gpu 5090 --driver 580 --pin engine=vllm --pin max_model_len=65536",
    ),
    "fits": ('gpuwright fits --gpu "RTX 5090" --memory-gib 96',),
    "kv": (
        "gpuwright kv --model qwen3.6-27b --engine vllm --kv-cache-dtype fp8 --available-gib 10.85",
    ),
    "models": ("gpuwright models --json",),
    "gpus": ("gpuwright gpus",),
    "doctor": ("gpuwright doctor --host facts-cache/box.lan.json",),
    "connect": ("gpuwright connect root@box.lan --tunnel",),
}
_KINDS: dict[type[Exception], tuple[str, str, int]] = {
    WantError: ("bad input", "", EXIT_BAD_INPUT),
    HostError: ("bad input", "", EXIT_BAD_INPUT),
    MatrixError: ("matrix fault", "matrix: ", EXIT_MATRIX_FAULT),
    NoAnswerError: ("no answer", "", EXIT_NO_ANSWER),
}
"""Family of errors -> its name in JSON, what stands before each of its lines, the exit status."""


class _Once(argparse.Action):
    """An option of one value: another one for it is a fault, where argparse forgets the first."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        before = getattr(namespace, self.dest, self.default)
        if before not in (self.default, values):
            parser.error(
                f"{option_string or self.dest}: said twice, {quoted(str(before))} and "
                f"{quoted(str(values))}"
            )
        setattr(namespace, self.dest, values)


class Parser(argparse.ArgumentParser):
    """A parser whose faults are ours, so that they are printed as all others are."""

    def __init__(self, **keys: Any) -> None:
        super().__init__(**keys)
        self.register("action", None, _Once)

    def error(self, message: str) -> NoReturn:
        raise WantError(f"{message}; `{self.prog} --help` says what is legal")

    def _print_message(self, message: str, file: Any = None) -> None:
        # argparse takes no notice of help that could not be written.
        if message:
            (file or sys.stdout).write(message)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is as `STATUSES` says."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if sys.stdout is None:
            raise OSError("is closed")
        status = _run(words)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has gone, as `| head` does, and knows it.
        _forget(sys.stdout)
        return EXIT_NO_READER
    except OSError as error:
        _forget(sys.stdout)
        where = "standard output" if error.filename is None else quoted(error.filename)
        _complain([f"{where}: {error.strerror or error}"])
        return EXIT_NO_ANSWER
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return status


def _run(words: list[str]) -> int:
    """One command, with its faults as lines and, where JSON is asked for, as data, too."""
    try:
        arguments = _read(words)
        if isinstance(sys.stdout, io.TextIOWrapper):
            # Names come from nodes and files: what this terminal cannot write must not be a fault.
            sys.stdout.reconfigure(errors="backslashreplace")
        status: int = arguments.run(arguments)
        return status
    except SystemExit:
        # What --help and --version have written may not reach its reader, either.
        sys.stdout.flush()
        raise
    except (WantError, HostError, MatrixError, NoAnswerError) as error:
        kind, before, status = _KINDS[type(error)]
        faults = list(error.faults)
        if "--json" in words:
            found = {"verdict": "error", "kind": kind, "faults": faults}
            sys.stdout.write(json.dumps(found, indent=2) + "\n")
            sys.stdout.flush()
        _complain([before + fault for fault in faults])
        return status


def _read(words: list[str]) -> argparse.Namespace:
    """The arguments of the command among `words`; WantError for what is none of its."""
    parser = Parser(
        prog="gpuwright",
        description="Decides what a GPU node can serve, and says why.",
        epilog=_epilog("explain", "fits", "kv", "doctor", "connect") + "\n\n" + STATUSES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"gpuwright {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    known: dict[str, Parser] = {}
    for name, (module, help_text) in COMMANDS.items():
        known[name] = commands.add_parser(
            name,
            help=help_text,
            usage=f"gpuwright {name} {'HOST ' if name == 'connect' else ''}[options]",
            description=f"Says {help_text}.",
            epilog=_epilog(name),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        if name in words:
            loaded = import_module(module)
            loaded.configure(known[name])
            known[name].set_defaults(run=loaded.run)
    command = next((word for word in words if not word.startswith("-")), None)
    if command is not None and command not in COMMANDS:
        raise WantError(f"command: {quoted(command)} is unknown{nearest(command, COMMANDS)}")
    arguments, unknown = parser.parse_known_args(words)
    if unknown:
        options = [*known[arguments.command]._option_string_actions]
        raise WantError(*(_not_known(word, arguments.command, options) for word in unknown))
    return arguments


def _epilog(*names: str) -> str:
    lines = [EXAMPLES[name][0] for name in names] if len(names) > 1 else EXAMPLES[names[0]]
    return "\n".join(("examples:" if len(lines) > 1 else "example:", *(f"  {x}" for x in lines)))


def _not_known(word: str, command: str, options: list[str]) -> str:
    name = word.split("=", 1)[0]
    if name.startswith("--"):
        return f"{quoted(name)}: unknown option of {command}{nearest(name, options)}"
    return f"{quoted(word)}: no argument of {command}; `gpuwright {command} --help` lists them"


def _complain(faults: Sequence[str]) -> None:
    """A line each on standard error; where that is closed or full, the exit status must do."""
    if sys.stderr is None:
        return
    try:
        for fault in faults:
            print(f"gpuwright: {fault}", file=sys.stderr)
        sys.stderr.flush()
    except OSError:
        _forget(sys.stderr)


def _forget(stream: TextIO | None) -> None:
    """Send what `stream` still holds nowhere, or Python complains of it while it exits."""
    with contextlib.suppress(OSError, AttributeError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())  # type: ignore[union-attr]
        os.close(nowhere)
