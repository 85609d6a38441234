"""URLs and proxies as they are used and as they are shown: what is none is a sentence."""

from __future__ import annotations

import base64
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

PROXY_RULE = "since the way to the proxy itself is plain HTTP, for downloads over https too"


class WebError(Exception):
    """A request that failed, as a clause for people. `again`: it may go better later."""

    def __init__(self, clause: str, again: bool, status: int | None = None, code: str = "") -> None:
        super().__init__(clause)
        self.clause = clause
        self.again = again
        self.status = status
        self.code = code
        """What a hub says in X-Error-Code, such as GatedRepo."""


def shown(url: str) -> str:
    """A URL for people: without user, password, query and fragment, which may be secrets."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "an address that is no URL"
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def origin_of(url: str) -> tuple[str, str, int]:
    """Scheme, host and port. WebError: it is no URL, be it ours or where we are redirected."""
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        raise WebError(f"{shown(url)}: needs an http or https URL", False) from None
    return parts.scheme, (parts.hostname or "").lower(), port


def proxy_parts(url: str) -> Any:
    """A proxy's URL in parts. WebError: it is not one that we can go through."""
    url = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise WebError(
            f"proxy {shown(url)}: needs an http:// URL with host and port", False
        ) from None
    if parts.scheme != "http":
        # An https:// one wants TLS to itself, which would be left out in silence here.
        raise WebError(f"proxy {shown(url)}: needs an http:// URL, {PROXY_RULE}", False)
    if not parts.hostname or port == 0:
        raise WebError(f"proxy {shown(url)}: needs an http:// URL with host and port", False)
    return parts


def basic(parts: Any) -> str | None:
    """The Authorization that a URL's own user and password mean."""
    if parts.username is None:
        return None
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return "Basic " + base64.b64encode(pair.encode()).decode()
