"""`gpuwright connect HOST`: how to reach what a node serves, and the tunnel if asked."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from gpuwright.connection import Connection, Served
from gpuwright.layout import Layout

EXIT_OK = 0
EXIT_NO_ANSWER = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130
_SSH_FAILED = 255
_SERVICE = re.compile(r"[a-z0-9-]{1,32}", re.ASCII)
_HOSTNAME = re.compile(r"[A-Za-z0-9_:][A-Za-z0-9_.:%-]*", re.ASCII)
_PASSED_ON = {
    "-i": "private key file",
    "-p": "port of the node's sshd",
    "-l": "user on the node",
    "-F": "ssh configuration file",
    "-J": "jump host",
    "-o": "an option, as KEY=VALUE",
}


class _PassOn(argparse.Action):
    """Keep an option of ssh, in the order in which it was given: for ssh, the first one counts."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        namespace.ssh = [*namespace.ssh, self.option_strings[0], str(values)]


def configure(parser: argparse.ArgumentParser) -> None:
    """The arguments of `gpuwright connect`."""
    parser.epilog = "exit status: 0 done, 1 the node gave no answer, 2 bad input"
    parser.add_argument("host", help="an ssh destination: name, address or user@name")
    parser.add_argument("--service", default="llm", help="which service of the node (default: llm)")
    parser.add_argument("--tunnel", action="store_true", help="open a tunnel and keep it open")
    parser.add_argument("--port", type=int, help="its port on this machine (default: the node's)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    passed_on = parser.add_argument_group("passed on to ssh")
    for flag, help_text in _PASSED_ON.items():
        passed_on.add_argument(flag, dest="ssh", action=_PassOn, default=[], help=help_text)


def run(arguments: argparse.Namespace) -> int:
    """Ask the node what it serves, print the way to it. Exit status: 2 bad input, 1 no answer."""
    fault = _fault(arguments)
    if fault:
        print(f"gpuwright connect: {fault}", file=sys.stderr)
        return EXIT_BAD_INPUT
    try:
        connection = _connection(arguments)
        shown = json.dumps(connection.as_json()) if arguments.json else connection.text()
        print(shown, flush=True)
        return _hold(connection) if arguments.tunnel else EXIT_OK
    except _NoAnswerError as error:
        print(f"gpuwright connect: {arguments.host}: {error}", file=sys.stderr)
        return EXIT_NO_ANSWER
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


class _NoAnswerError(Exception):
    """The node cannot be asked, or what it says is no record of ours; the text says why."""


def _fault(arguments: argparse.Namespace) -> str | None:
    host = arguments.host
    if not host or host.startswith("-") or not host.isprintable() or " " in host:
        return f"host {host!r}, needed an ssh destination"
    if not _SERVICE.fullmatch(arguments.service):
        return f"service {arguments.service!r}, needed 1 to 32 of a-z, 0-9 and -"
    if arguments.port is not None and not 0 < arguments.port < 65536:
        return f"port {arguments.port}, needed 1 to 65535"
    return None


def _connection(arguments: argparse.Namespace) -> Connection:
    ssh = ("ssh", *arguments.ssh)
    path = Layout().plan_path(arguments.service)
    asked = _ask(ssh, arguments.host, ["cat", path])
    if asked.returncode == _SSH_FAILED:
        raise _NoAnswerError(_last_line(asked.stderr) or "ssh failed")
    if asked.returncode:
        why = _last_line(asked.stderr) or f"exit status {asked.returncode}"
        raise _NoAnswerError(f"no record of a service {arguments.service} ({why})")
    try:
        served = Served.from_record(json.loads(asked.stdout))
    except (ValueError, RecursionError) as error:
        raise _NoAnswerError(f"{path}: {_printable(str(error))}") from None
    hostname = None
    if not arguments.tunnel and not served.loopback:
        hostname = _hostname(ssh, arguments.host) if served.everywhere else served.bind
    return Connection(
        host=arguments.host,
        ssh=ssh,
        served=served,
        local_port=arguments.port or served.port,
        hostname=hostname,
    )


def _ask(
    ssh: tuple[str, ...], host: str, command: Sequence[str]
) -> subprocess.CompletedProcess[str]:
    """One command on the node. Nobody is there to type a password unless this is a terminal."""
    options = ["-o", "ConnectTimeout=15"]
    if not sys.stdin.isatty():
        options += ["-o", "BatchMode=yes"]
    return _captured([*ssh, *options, "--", host, shlex.join(command)])


def _hostname(ssh: tuple[str, ...], host: str) -> str:
    """What ssh would connect to: `host` may be an alias from its configuration."""
    asked = _captured([*ssh, "-G", "--", host])
    for line in asked.stdout.splitlines():
        word, _, name = line.partition(" ")
        if word == "hostname" and _HOSTNAME.fullmatch(name):
            return name
    raise _NoAnswerError("ssh -G names no host; --tunnel does without")


def _captured(words: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except FileNotFoundError:
        raise _NoAnswerError("ssh is not installed on this machine") from None


def _hold(connection: Connection) -> int:
    """Keep the tunnel open until it is told to end, by Ctrl-C or SIGTERM; it never outlives us."""
    command = connection.tunnel
    assert command is not None
    # ssh says it itself, once the port is open and not before.
    said = f"echo tunnel open on {connection.endpoint} until Ctrl-C >&2"
    options = ["-o", "PermitLocalCommand=yes", "-o", f"LocalCommand={said}"]
    options += ["-o", "ServerAliveInterval=15"]
    # Both said outright: whoever starts us in the background may have had SIGINT ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    with subprocess.Popen([command[0], *options, *command[1:]]) as tunnel:
        try:
            status = tunnel.wait()
        except KeyboardInterrupt:
            return EXIT_OK
        finally:
            tunnel.terminate()
    if status:
        raise _NoAnswerError("the tunnel broke off")
    return EXIT_OK


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return _printable(lines[-1].strip()) if lines else ""


def _printable(text: str) -> str:
    """What a node says may hold escape sequences that a terminal would obey."""
    return "".join(character if character.isprintable() else "?" for character in text[:500])
