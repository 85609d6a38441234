"""Checks of a want's paths and addresses on the network, as those of values.py."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from gpuwright.quoting import clipped, quoted
from gpuwright.values import read_name, read_text

_EMPTIED = ("/tmp", "/var/tmp", "/run", "/var/run", "/var/lock")  # noqa: S108  refused, not used
"""Directories that a boot, or a timer, empties."""
_HIDDEN = (*_EMPTIED, "/proc", "/sys", "/dev", "/home", "/root")
"""What a service has of its own, or does not see."""
_PLAIN_PATH = re.compile(r"[A-Za-z0-9._/+-]+", re.ASCII)
_NOT_ON_DISK = ("/proc", "/sys", "/dev")
_SYSTEM = (
    "/",
    "/bin",
    "/boot",
    "/etc",
    "/home",
    *("/lib", "/lib32", "/lib64", "/libx32"),
    "/lost+found",
    "/media",
    "/mnt",
    "/opt",
    "/root",
    "/sbin",
    "/srv",
    *("/usr", "/usr/bin", "/usr/lib", "/usr/local", "/usr/sbin", "/usr/share"),
    *("/var", "/var/cache", "/var/lib", "/var/log"),
)
"""Directories of the system's own, which must not become ours; one below them may."""


def read_node_path(value: object) -> str:
    text = read_text(str(value) if isinstance(value, Path) else value)
    if not text.startswith("/") or ".." in text.split("/"):
        raise ValueError(f"{quoted(text)} is not an absolute path; needs one from / on, without ..")
    return "/" + "/".join(part for part in text.split("/") if part not in ("", "."))


def read_directory(value: object) -> str:
    path = read_node_path(value)
    for place in (*_EMPTIED, *_NOT_ON_DISK):
        if f"{path}/".startswith(f"{place}/"):
            fault = "is not on a disk" if place in _NOT_ON_DISK else "is emptied by the system"
            raise ValueError(f"{quoted(path)} cannot be kept: {place} {fault}")
    if path in _SYSTEM:
        raise ValueError(f"{quoted(path)} is the system's own, needs a directory below it")
    return path


def _read_plain_path(value: object) -> str:
    path = read_node_path(value)
    if not _PLAIN_PATH.fullmatch(path) or path == "/":
        raise ValueError(
            f"{quoted(path)} needs an absolute path of letters, digits and . _ / + - alone"
        )
    return path


def read_cache(value: object) -> str:
    """A directory that compilers, and pyinfra's own commands as root, are told unquoted."""
    return _read_plain_path(read_directory(value))


def read_served_path(value: object) -> str:
    """A path that the service itself reads; some engines part lists of such at = and commas."""
    path = _read_plain_path(value)
    place = hidden_from_services(path)
    if place is not None:
        raise ValueError(f"{quoted(path)} is hidden from the service, as all of {place} is")
    return path


def read_template(value: object) -> str:
    """The path of a file that the service reads; one that can only be a directory is none."""
    path = read_served_path(value)
    if path in _SYSTEM or str(value).endswith(("/", "/.")):
        raise ValueError(f"{quoted(value)} is a directory, needs a file")
    return path


def hidden_from_services(path: str) -> str | None:
    """The directory above `path`, or itself, that a service does not see as the node has it."""
    return next((place for place in _HIDDEN if f"{path}/".startswith(f"{place}/")), None)


_MOST_ADAPTERS = 16


def read_adapters(value: object) -> dict[str, str]:
    """Name of each adapter -> its path on the node."""
    if not isinstance(value, Mapping) or not 1 <= len(value) <= _MOST_ADAPTERS:
        found = f"{len(value)} of them" if isinstance(value, Mapping) else quoted(value)
        raise ValueError(f"needs 1 to {_MOST_ADAPTERS} adapters as name: path, found {found}")
    adapters: dict[str, str] = {}
    for name, path in value.items():
        try:
            adapters[read_name(name)] = read_served_path(path)
        except ValueError as error:
            raise ValueError(f"{clipped(name)}: {error}") from None
    return adapters


def read_local_path(value: object) -> Path:
    text = read_text(str(value) if isinstance(value, Path) else value)
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ValueError(f"{quoted(text)}: no such user's home") from None


def read_url(value: object) -> str:
    text = read_text(value)
    try:
        parts = urlsplit(text)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and " " not in text
        _ = parts.port
    except ValueError:
        fits = False
    # Not quoted: the URL may hold a password.
    if not fits:
        raise ValueError("is not an http or https URL, such as https://index.example/simple")
    if "@" in parts.netloc:
        raise ValueError(
            "holds credentials, which every user of the node could read in its process list; "
            "keep them in the node's own environment (/etc/environment) or use a mirror without"
        )
    # A token in a query is read in process lists as a password is, and paths are added at the end.
    if "?" in text or "#" in text:
        raise ValueError("needs an address without ? and #: paths are added to it")
    return text.rstrip("/")


def read_url_or_node_path(value: object) -> str:
    text = read_text(value)
    return read_node_path(text) if text.startswith("/") else read_url(text)


def read_proxy(value: object) -> str:
    """As read_url; the way to the proxy itself is plain HTTP, for downloads over https too."""
    if not read_text(value).startswith("http://"):
        raise ValueError(
            "needs an http:// URL, such as http://proxy.example:3128: the way to the proxy itself "
            "is plain HTTP"
        )
    return read_url(value)
