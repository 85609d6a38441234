"""`gpuwright connect HOST`: how to reach what a node serves, and the tunnel if asked."""

import argparse
import json
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from gpuwright.layout import Layout

_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 - compared with, not bound to
_SERVICE = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
_QUESTION = "Say hello in one short sentence."


@dataclass(frozen=True, kw_only=True, slots=True)
class Connection:
    """One served model and the way to it from this machine."""

    host: str
    ssh: tuple[str, ...]
    """The ssh command up to the host, e.g. `("ssh", "-i", "key", "root@box")`."""
    record: dict[str, Any]
    """What the node says it serves (the record below Layout.plans)."""
    local_port: int

    @property
    def loopback(self) -> bool:
        return self.record["bind"] in _LOOPBACK

    @property
    def remote_address(self) -> str:
        bind = str(self.record["bind"])
        if bind in _EVERYWHERE or (not self.loopback and bind == ""):
            return self.host.rsplit("@", 1)[-1]
        return bind

    @property
    def endpoint(self) -> str:
        """The base URL for a client on this machine, through the tunnel where one is needed."""
        if self.loopback:
            return f"http://127.0.0.1:{self.local_port}/v1"
        address = self.remote_address
        shown = f"[{address}]" if ":" in address else address
        return f"http://{shown}:{self.record['port']}/v1"

    @property
    def tunnel(self) -> tuple[str, ...] | None:
        """The command that makes a loopback service reachable here; None where none is needed."""
        if not self.loopback:
            return None
        target = "[::1]" if self.record["bind"] == "::1" else "127.0.0.1"
        forward = f"127.0.0.1:{self.local_port}:{target}:{self.record['port']}"
        options = ("-N", "-o", "ExitOnForwardFailure=yes", "-L", forward)
        return (self.ssh[0], *options, *self.ssh[1:])

    @property
    def key_header(self) -> str:
        """A shell line that prints the Authorization header; the key is in no argument list."""
        name = self.record["secret_names"][0]
        script = f"s/^{name}=/Authorization: Bearer /p"
        remote = shlex.join(["sudo", "-n", "sed", "-n", script, self.record["environment_file"]])
        return shlex.join([*self.ssh, remote])

    @property
    def curl(self) -> str:
        """A shell line that asks the model one question."""
        body = {
            "model": self.record["served_model_name"],
            "messages": [{"role": "user", "content": _QUESTION}],
            "max_tokens": 64,
        }
        ask = [
            "curl",
            "-sS",
            "-H",
            "@-",
            "-H",
            "Content-Type: application/json",
            "-d",
            json.dumps(body),
            f"{self.endpoint}/chat/completions",
        ]
        return f"{self.key_header} | {shlex.join(ask)}"

    def text(self) -> str:
        """For people."""
        record = self.record
        lines = [
            f"{record['service']} on {self.host}: {record['served_model_name']} "
            f"({record['checkpoint']}) on {record['engine']} {record['release']}",
            f"endpoint  {self.endpoint}",
        ]
        if self.tunnel:
            lines.append(f"tunnel    {shlex.join(self.tunnel)}")
        lines += [
            f"key       {self.record['environment_file']} on the node, readable by root only",
            f"try       {self.curl}",
        ]
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """For machines; no secret in it."""
        return {
            "host": self.host,
            "endpoint": self.endpoint,
            "tunnel": list(self.tunnel) if self.tunnel else None,
            "key_file": self.record["environment_file"],
            "curl": self.curl,
            "record": self.record,
        }


def configure(parser: argparse.ArgumentParser) -> None:
    """The arguments of `gpuwright connect`."""
    parser.add_argument("host", help="an ssh destination: name, address or user@name")
    parser.add_argument("--service", default="llm", help="which service of the node (default: llm)")
    parser.add_argument("--port", type=int, help="port on this machine (default: the service's)")
    parser.add_argument("-i", dest="identity", help="private key file, as for ssh")
    parser.add_argument("-p", dest="ssh_port", type=int, help="port of the node's sshd")
    parser.add_argument(
        "-o", dest="options", action="append", default=[], help="ssh option, as for ssh -o"
    )
    parser.add_argument("--tunnel", action="store_true", help="open the tunnel and keep it open")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Ask the node what it serves, print the way to it. Exit status: 2 bad input, 1 no answer."""
    fault = _fault(arguments)
    if fault:
        print(f"gpuwright connect: {fault}", file=sys.stderr)
        return 2
    ssh = ["ssh"]
    if arguments.identity:
        ssh += ["-i", arguments.identity]
    if arguments.ssh_port:
        ssh += ["-p", str(arguments.ssh_port)]
    for option in arguments.options:
        ssh += ["-o", option]
    ssh.append(arguments.host)
    path = Layout().plan_path(arguments.service)
    asked = subprocess.run(
        [*ssh[:-1], "-o", "BatchMode=yes", ssh[-1], shlex.join(["cat", path])],
        capture_output=True,
        text=True,
        check=False,
    )
    if asked.returncode:
        why = (asked.stderr.strip().splitlines() or ["no answer"])[-1]
        print(f"gpuwright connect: {arguments.host}: {why}", file=sys.stderr)
        return 1
    try:
        record = json.loads(asked.stdout)
        connection = Connection(
            host=arguments.host,
            ssh=tuple(ssh),
            record=record,
            local_port=arguments.port or record["port"],
        )
        shown = json.dumps(connection.as_json()) if arguments.json else connection.text()
    except (ValueError, KeyError, TypeError, IndexError) as error:
        print(f"gpuwright connect: {arguments.host}:{path}: {error!r}", file=sys.stderr)
        return 1
    print(shown)
    if not arguments.tunnel or connection.tunnel is None:
        return 0
    print(f"tunnel open on {connection.endpoint} until Ctrl-C", file=sys.stderr, flush=True)
    try:
        return subprocess.run(connection.tunnel, check=False).returncode
    except KeyboardInterrupt:
        return 0


def _fault(arguments: argparse.Namespace) -> str | None:
    if arguments.host.startswith("-") or not arguments.host.strip():
        return f"host {arguments.host!r}, needed an ssh destination"
    if not _SERVICE.fullmatch(arguments.service):
        return f"service {arguments.service!r}, needed lower case letters, digits and dashes"
    if arguments.port is not None and not 0 < arguments.port < 65536:
        return f"port {arguments.port}, needed 1 to 65535"
    return None
