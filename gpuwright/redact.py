"""A node document without what names a machine or its people, and still good to decide on.

What is replaced is replaced alike wherever it stands, so that entries still belong together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from ipaddress import ip_address
from typing import Any

_UUID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE)
_MAC = re.compile(r"\b[0-9a-f]{2}([:-])[0-9a-f]{2}(?:\1[0-9a-f]{2}){4}\b", re.IGNORECASE)
_PRIVATE_PATH = re.compile(r"(/home/|/Users/|/media/)([^\s:'\",;()\[\]\\]+)")
_SERIAL = re.compile(r"(?i)(\bserial(?: number)?[ :=]+)([0-9a-z-]{6,})")
_ADDRESS = re.compile(r"(?<![\w.:-])(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9a-fA-F:]*::?[0-9a-fA-F:.]+)")
_PUBLIC = re.compile(
    r"(?:^|\.)(?:debian\.org|ubuntu\.com|nvidia\.com|pypi\.org|fedoraproject\.org)$"
)
_SENTENCES = frozenset(("notes", "detail", "error", "about"))
"""Keys of text for people, in which anything may be named."""
_ADDRESSES = frozenset(("address", "addresses", "bind"))
_ACCOUNTS = frozenset(("root", "gpuwright", "nobody", "nogroup", "users"))
_URL_HOST = re.compile(
    r"([a-z][a-z0-9+.-]*://)(?:[^\s/?#]*@)?(\[[^\]]*\]|[^\s/:?#]+)", re.IGNORECASE
)
"""A user and a password before the host are left out."""


def redacted(document: Any, names: Iterable[str] = ()) -> Any:
    """A copy without UUIDs, serial numbers, names of hosts and users, addresses, the machine's
    identity and paths in people's homes. `names` are words to be found in sentences, too."""
    return _Redaction(names).value(document, "", "")


class _Redaction:
    """What was replaced so far, by kind: each kind is counted in the order of its finding."""

    def __init__(self, names: Iterable[str]) -> None:
        self.known: dict[str, dict[str, str]] = {}
        words = sorted((re.escape(name) for name in set(names) if len(name) > 1), key=len)
        self.names = re.compile(rf"(?<![\w-])(?:{'|'.join(reversed(words))})(?![\w-])")
        self.named = bool(words)

    def alias(self, kind: str, found: str, make: Callable[[int], str]) -> str:
        known = self.known.setdefault(kind, {})
        if found not in known:
            known[found] = make(len(known) + 1)
        return known[found]

    def value(self, value: Any, key: str, path: str) -> Any:
        if isinstance(value, dict):
            # The hash of a file of secrets tells whether a guessed one is in it.
            guessable = "variables" in value and "sha256" in value
            return {
                self.text(name, "", path): self.value(inner, name, f"{path}.{name}")
                for name, inner in (value | {"sha256": None} if guessable else value).items()
            }
        if isinstance(value, list):
            return [self.value(inner, key, path) for inner in value]
        return self.text(value, key, path) if isinstance(value, str) else value

    def text(self, text: str, key: str, path: str) -> str:
        if path == ".os.identity":
            return self.alias("identity", text, lambda count: f"{count:016x}")
        if key in ("owner", "group") or path == ".ours.user.name":
            return self.account(text)
        if path in (".settings.apt_mirrors", ".settings.pip_index"):
            return self.host(text)
        if key in _ADDRESSES:
            return self.address(text)
        text = _UUID.sub(lambda match: self.uuid(match[0].lower()), text)
        text = _PRIVATE_PATH.sub(lambda match: match[1] + self.private(match[2]), text)
        text = _URL_HOST.sub(lambda match: match[1] + self.host(match[2]), text)
        return self.sentence(text) if key in _SENTENCES else text

    def sentence(self, text: str) -> str:
        text = _MAC.sub("00:00:00:00:00:00", text)
        text = _SERIAL.sub(lambda match: match[1] + "0" * len(match[2]), text)
        text = _ADDRESS.sub(lambda match: self.address(match[0]), text)
        if not self.named:
            return text
        return self.names.sub(lambda match: self.alias("host", match[0], _host), text)

    def uuid(self, found: str) -> str:
        return self.alias("uuid", found, lambda count: f"00000000-0000-4000-8000-{count:012x}")

    def private(self, path: str) -> str:
        user, _, rest = path.partition("/")
        parts = [self.alias("part", part, lambda count: f"p{count}") for part in rest.split("/")]
        return "/".join([self.account(user), *(parts if rest else [])])

    def account(self, name: str) -> str:
        if name in _ACCOUNTS or name.isdigit():
            return name
        return self.alias("account", name, lambda count: f"user{count}")

    def host(self, name: str) -> str:
        bare = name.strip("[]")
        if _is_address(bare):
            return self.address(bare) if bare == name else f"[{self.address(bare)}]"
        if name == "localhost" or _PUBLIC.search(name):
            return name
        return self.alias("host", name, _host)

    def address(self, text: str) -> str:
        """Another address of the same family; who listens where stays told of loopback and all."""
        bare = text.partition("%")[0]
        if not _is_address(bare):
            return text
        found = ip_address(bare)
        if found.is_loopback or found.is_unspecified:
            return text
        if found.version == 4:
            return self.alias("v4", bare, lambda count: f"198.51.{count // 250}.{count % 250 + 1}")
        return self.alias("v6", bare, lambda count: f"2001:db8::{count:x}")


def _host(count: int) -> str:
    return f"host{count}.invalid"


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
