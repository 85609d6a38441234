"""`gpuwright connect HOST`: how to reach what a node serves, and the tunnel if asked."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from gpuwright.cli import EXIT_NO_ANSWER, EXIT_OK
from gpuwright.connection import Connection, Served
from gpuwright.layout import Layout
from gpuwright.quoting import quoted
from gpuwright.refusals import NoAnswerError, WantError

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
    parser.add_argument("host", help="an ssh destination: name, address or user@name")
    parser.add_argument("--service", default="llm", help="which service of the node (default: llm)")
    parser.add_argument("--tunnel", action="store_true", help="open a tunnel and keep it open")
    parser.add_argument("--port", help="its port on this machine (default: the node's)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    passed_on = parser.add_argument_group("passed on to ssh")
    for flag, help_text in _PASSED_ON.items():
        passed_on.add_argument(flag, dest="ssh", action=_PassOn, default=[], help=help_text)


def run(arguments: argparse.Namespace) -> int:
    """Ask the node what it serves, print the way to it. Exit status: 2 bad input, 1 no answer."""
    faults = tuple(_faults(arguments))
    if faults:
        raise WantError(*faults)
    try:
        connection = _connection(arguments)
    except _SilentError as error:
        raise NoAnswerError(f"{arguments.host}: {error}") from error
    shown = json.dumps(connection.as_json()) if arguments.json else connection.text()
    print(shown, flush=True)
    if arguments.tunnel and _hold(connection):
        # Not raised: with --json the one object of the answer stands there already.
        print(f"gpuwright: {arguments.host}: the tunnel broke off", file=sys.stderr)
        return EXIT_NO_ANSWER
    return EXIT_OK


class _SilentError(Exception):
    """The node cannot be asked, or what it says is no record of ours; the text says why."""


def _faults(arguments: argparse.Namespace) -> Iterator[str]:
    host, port = arguments.host, arguments.port
    if not host or host.startswith("-") or not host.isprintable() or " " in host:
        yield f"host: {quoted(host)} is no ssh destination; needs a name, address or user@name"
    if not _SERVICE.fullmatch(arguments.service):
        yield f"--service: {quoted(arguments.service)} needs 1 to 32 of a-z, 0-9 and -"
    if port is not None and not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536):
        yield f"--port: needs 1 to 65,535, found {quoted(port)}"


def _connection(arguments: argparse.Namespace) -> Connection:
    ssh = ("ssh", *arguments.ssh)
    path = Layout().plan_path(arguments.service)
    asked = _ask(ssh, arguments.host, ["cat", path])
    if asked.returncode == _SSH_FAILED:
        raise _SilentError(_last_line(asked.stderr) or "ssh failed")
    if asked.returncode:
        why = _last_line(asked.stderr) or f"exit status {asked.returncode}"
        raise _SilentError(f"no record of a service {arguments.service} ({why})")
    try:
        served = Served.from_record(json.loads(asked.stdout))
    except (ValueError, RecursionError) as error:
        raise _SilentError(f"{path}: {_printable(str(error))}") from None
    hostname = None
    if not arguments.tunnel and not served.loopback:
        hostname = _hostname(ssh, arguments.host) if served.everywhere else served.bind
    return Connection(
        host=arguments.host,
        ssh=ssh,
        served=served,
        local_port=int(arguments.port or served.port),
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
    raise _SilentError("ssh -G names no host; --tunnel does without")


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
        raise _SilentError("ssh is not installed on this machine") from None


def _hold(connection: Connection) -> bool:
    """Keep the tunnel open until it is told to end, by Ctrl-C or SIGTERM; it never outlives us.
    Whether it broke off before."""
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
            return False
        finally:
            tunnel.terminate()
    return status != 0


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return _printable(lines[-1].strip()) if lines else ""


def _printable(text: str) -> str:
    """What a node says may hold escape sequences that a terminal would obey."""
    return "".join(character if character.isprintable() else "?" for character in text[:500])
