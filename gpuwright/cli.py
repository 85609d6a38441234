"""The command line: one subcommand per module.

A command is a module with `configure(parser)` and `run(arguments) -> int`; a line in
COMMANDS makes it known. Its module is loaded only when it is the one that runs.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence
from importlib import import_module

from gpuwright import __version__
from gpuwright.refusals import HostError, MatrixError, WantError

COMMANDS = {
    "connect": ("gpuwright.connect", "how to reach what a node serves, and the tunnel to it"),
    "explain": ("gpuwright.explain_command", "what a node would serve, and why"),
    "fits": ("gpuwright.fits_command", "every model that a node can serve, best first"),
    "kv": ("gpuwright.kv_command", "what a KV cache of a given size holds, exactly"),
    "models": ("gpuwright.models_command", "models and checkpoints in the catalogue"),
    "gpus": ("gpuwright.gpus_command", "graphics cards in the catalogue"),
}

EXIT_OK = 0
EXIT_BAD_INPUT = 2
EXIT_REFUSED = 3
EXIT_MATRIX_FAULT = 4


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is 0, 2 for bad input, 3 for a refusal, 4 for a fault in
    our own data."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="gpuwright",
        description="Decides what a GPU node can serve, and says why.",
        epilog="exit status: 0 done, 1 a node gave no answer, 2 bad input, 3 refused, "
        "4 a fault in gpuwright's own data",
    )
    parser.add_argument("--version", action="version", version=f"gpuwright {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (module, help_text) in COMMANDS.items():
        command = commands.add_parser(name, help=help_text, description=help_text)
        if name in words:
            loaded = import_module(module)
            loaded.configure(command)
            command.set_defaults(run=loaded.run)
    arguments = parser.parse_args(words)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Names come from nodes and files: what this terminal cannot write must not end in a fault.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status: int = arguments.run(arguments)
    except (WantError, HostError) as error:
        for fault in error.faults:
            print(f"gpuwright: {_one_line(fault)}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except MatrixError as error:
        for fault in error.faults:
            print(f"gpuwright: matrix: {_one_line(fault)}", file=sys.stderr)
        return EXIT_MATRIX_FAULT
    except BrokenPipeError:
        # The reader has gone, as `| head` does; Python must not complain again while it exits.
        sys.stderr.close()
        return EXIT_OK
    return status


def _one_line(text: str) -> str:
    """`text` with what is no character to print as its escape: names come from files and nodes."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)
