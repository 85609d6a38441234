"""What a node serves and the way to it, as values: endpoint, tunnel, and a line that asks it.

Every word comes from a node or an operator and is checked or quoted before it is part of a line.
"""

from __future__ import annotations

import ipaddress
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuwright.plan import is_loopback, shown_address
from gpuwright.quoting import quoted

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/+-]{0,127}", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}", re.ASCII)
_PATH = re.compile(r"(?:/[A-Za-z0-9_][A-Za-z0-9._-]*)+", re.ASCII)
_SCOPED = re.compile(r"[0-9A-Fa-f:.]+(?:%[A-Za-z0-9._-]+)?", re.ASCII)
_QUESTION = "Say hello in one short sentence."

# Root reads the file itself; others ask sudo. Positional parameters keep outside words out of the
# script.
_READ_KEY = 'if [ -r "$2" ]; then sed -n "$1" "$2"; else sudo -n sed -n "$1" "$2"; fi'


@dataclass(frozen=True, kw_only=True, slots=True)
class Served:
    """One service as its node's record describes it, checked: plain words, an address, a port."""

    service: str
    served_model_name: str
    checkpoint: str
    engine: str
    release: str
    bind: str
    port: int
    key_name: str
    key_file: str

    @classmethod
    def from_record(cls, record: object) -> Served:
        """ValueError, with the key in it, where `record` is not one that a deploy writes."""
        if not isinstance(record, Mapping):
            raise ValueError(f"needs a mapping, found {type(record).__name__}")
        names = ("service", "served_model_name", "checkpoint", "engine", "release")
        words = {name: _matching(record, name, _NAME) for name in names}
        secrets = record.get("secret_names")
        first = secrets[0] if isinstance(secrets, list) and secrets else None
        return cls(
            **words,
            bind=_address(record),
            port=_port(record),
            key_name=_matching({"secret_names": first}, "secret_names", _VARIABLE),
            key_file=_matching(record, "environment_file", _PATH),
        )

    @property
    def loopback(self) -> bool:
        """Whether nobody but the node itself can reach it."""
        return is_loopback(self.bind)

    @property
    def everywhere(self) -> bool:
        """Whether it listens on every address of the node."""
        return ipaddress.ip_address(self.bind).is_unspecified

    @property
    def address_on_node(self) -> str:
        """Where the node itself reaches it."""
        if self.everywhere:
            return "::1" if ":" in self.bind else "127.0.0.1"
        return self.bind


def _matching(record: Mapping[str, Any], key: str, pattern: re.Pattern[str]) -> str:
    value = record.get(key)
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ValueError(f"{key}: {quoted(value)} is not what a deploy writes there")
    return value


def _address(record: Mapping[str, Any]) -> str:
    text = _matching(record, "bind", _SCOPED)
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise ValueError(f"bind: {quoted(text)} is not an IP address") from None


def _port(record: Mapping[str, Any]) -> int:
    port = record.get("port")
    if type(port) is not int or not 0 < port < 65536:
        raise ValueError(f"port: {quoted(port)}, needed 1 to 65535")
    return port


@dataclass(frozen=True, kw_only=True, slots=True)
class Connection:
    """One served model and the way to it from this machine."""

    host: str
    """The ssh destination, as the operator gave it."""
    ssh: tuple[str, ...]
    """The ssh command up to the destination: `("ssh", "-i", "key")`."""
    served: Served
    local_port: int
    hostname: str | None
    """Name or address under which a client reaches the node; None: through a tunnel only."""

    @property
    def endpoint(self) -> str:
        """The base URL for a client on this machine, through the tunnel where there is one."""
        if self.tunnel:
            return f"http://127.0.0.1:{self.local_port}/v1"
        served = self.served
        address = (self.hostname or "") if served.everywhere else served.bind
        return f"http://{shown_address(address).replace('%', '%25')}:{served.port}/v1"

    @property
    def tunnel(self) -> tuple[str, ...] | None:
        """The command that makes the service reachable here; None where none is needed.

        It has a connection of its own (-S none): a shared one would keep the port open after it.
        """
        if self.hostname is not None:
            return None
        target = f"{shown_address(self.served.address_on_node)}:{self.served.port}"
        forward = f"127.0.0.1:{self.local_port}:{target}"
        options = ("-N", "-S", "none", "-o", "ExitOnForwardFailure=yes", "-L", forward)
        return (*self.ssh, *options, "--", self.host)

    @property
    def key_header(self) -> tuple[str, ...]:
        """The command that prints the Authorization header; the key is in no argument list."""
        script = f"s/^{self.served.key_name}=/Authorization: Bearer /p"
        remote = shlex.join(["sh", "-c", _READ_KEY, "sh", script, self.served.key_file])
        return (*self.ssh, "--", self.host, remote)

    @property
    def curl(self) -> str:
        """A shell line that asks the model one question.

        No proxy may see the key, and one from the environment would be asked even for 127.0.0.1.
        """
        body = {
            "model": self.served.served_model_name,
            "messages": [{"role": "user", "content": _QUESTION}],
            "max_tokens": 64,
        }
        ask = ["curl", "-sS", "--noproxy", "*", "-H", "@-", "-H", "Content-Type: application/json"]
        ask += ["-d", json.dumps(body), f"{self.endpoint}/chat/completions"]
        return f"{shlex.join(self.key_header)} | {shlex.join(ask)}"

    def text(self) -> str:
        """For people."""
        served = self.served
        lines = [
            f"{served.service} on {self.host}: {served.served_model_name} ({served.checkpoint}) "
            f"on {served.engine} {served.release}",
            f"endpoint  {self.endpoint}",
        ]
        if self.tunnel:
            lines.append(
                f"tunnel    {shlex.join(self.tunnel)}  # keep it open, or connect --tunnel"
            )
        lines += [
            f"key       {served.key_name} in {served.key_file} on the node, root's alone",
            f"try       {self.curl}",
        ]
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """For machines; no secret in it."""
        served = self.served
        return {
            "host": self.host,
            "service": served.service,
            "model": served.served_model_name,
            "checkpoint": served.checkpoint,
            "engine": served.engine,
            "release": served.release,
            "endpoint": self.endpoint,
            "tunnel": list(self.tunnel) if self.tunnel else None,
            "key_name": served.key_name,
            "key_file": served.key_file,
            "key_header": list(self.key_header),
            "curl": self.curl,
        }
