"""HTTP as downloads need it: every hop seen, credentials only for the host they are meant for.

The standard library's opener is not used: it passes Authorization on to wherever it is redirected.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import ssl
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urljoin, urlsplit, urlunsplit
from urllib.request import getproxies, proxy_bypass

from gpuwright.onnode.addresses import WebError, basic, origin_of, proxy_parts, shown
from gpuwright.onnode.outcome import cause

_MOST_HOPS = 10
_OURSELVES = ("localhost", "127.0.0.1", "::1")
_REDIRECTS = (301, 302, 303, 307, 308)


def trusting(ca_bundle: str | None) -> ssl.SSLContext:
    """What is trusted with a CA bundle, or with the system's. WebError: the bundle is none."""
    try:
        return ssl.create_default_context(cafile=ca_bundle)
    except ssl.SSLError:
        word = "holds no certificate"
    except OSError as problem:
        word = f"cannot be read: {cause(problem)}"
    raise WebError(f"ca_bundle {ca_bundle} {word}", False)


class Answer:
    """One response. `headers` are its own; `hops` those of every response before it."""

    def __init__(self, url: str, response: http.client.HTTPResponse, hops: list[Any]) -> None:
        self.url = url
        self.response = response
        self.status = response.status
        self.headers = response.headers
        self.hops = hops
        length = self.headers.get("Content-Length", "")
        self.left = int(length) if length.isdigit() else None

    def header(self, name: str) -> str | None:
        """The first response's word on it: a hub tells of the file, its storage of the transfer."""
        for headers in [*self.hops, self.headers]:
            if headers.get(name):
                return str(headers[name])
        return None

    def read(self, size: int) -> bytes:
        """What has come, at most `size` bytes; b"" at the end, be it too early.

        Not `read`, which waits for all of `size` and loses what came before a stall. The length
        is counted here: `read1` of some Pythons does not. WebError: it stalled or broke.
        """
        if self.left is not None:
            size = min(size, self.left)
        if not size:
            return b""
        try:
            chunk = self.response.read1(size)
            if self.left is not None:
                self.left -= len(chunk)
            return chunk
        except socket.timeout:  # noqa: UP041  not the same before Python 3.10
            raise WebError("the connection stalled", True) from None
        except (OSError, http.client.HTTPException, ValueError) as problem:
            raise WebError(f"the connection broke ({type(problem).__name__})", True) from None


class Web:
    """Requests with one site's settings: CA bundle, proxy, patience."""

    def __init__(
        self, ca_bundle: str | None = None, proxy: str | None = None, seconds: float = 60.0
    ) -> None:
        self.ca_bundle = ca_bundle
        self.proxy = proxy_parts(proxy) if proxy else None
        self.seconds = seconds
        self._context: ssl.SSLContext | None = None

    @contextlib.contextmanager
    def open(
        self,
        url: str,
        headers: dict[str, str] | None = None,
        method: str = "GET",
        authorization: str | None = None,
    ) -> Iterator[Answer]:
        """The response behind all redirects, with status 200 or 206; others are a WebError.

        `authorization` goes to the origin of `url` and to no other one.
        """
        connection, answer = self._followed(url, headers or {}, method, authorization)
        try:
            yield answer
        finally:
            connection.close()

    def _followed(
        self, url: str, headers: dict[str, str], method: str, authorization: str | None
    ) -> tuple[http.client.HTTPConnection, Answer]:
        origin = origin_of(url)
        hops: list[Any] = []
        for _ in range(_MOST_HOPS):
            sent = {
                "User-Agent": "gpuwright",
                "Accept": "*/*",
                "Accept-Encoding": "identity",
                "Connection": "close",
                **headers,
            }
            credentials = basic(urlsplit(url))
            if credentials is None and origin_of(url) == origin:
                credentials = authorization
            if credentials:
                sent["Authorization"] = credentials
            connection = self._send(url, method, sent)
            try:
                response = connection.getresponse()
                where = response.headers.get("Location")
                if response.status not in _REDIRECTS or not where:
                    self._check(url, response, self._way(url))
                    return connection, Answer(url, response, hops)
            except socket.timeout:  # noqa: UP041  not the same before Python 3.10
                connection.close()
                raise WebError(f"{shown(url)} does not answer{self._way(url)}", True) from None
            except (OSError, http.client.HTTPException) as problem:
                connection.close()
                said = f"{cause(problem)}{self._way(url)}"
                raise WebError(f"{shown(url)}: {said}", True) from None
            except WebError:
                connection.close()
                raise
            connection.close()
            hops.append(response.headers)
            url = self._next(url, where)
        raise WebError(f"{shown(url)}: redirected more than {_MOST_HOPS} times", False)

    def _next(self, url: str, where: str) -> str:
        try:
            return urljoin(url, where)
        except ValueError:
            raise WebError(f"{shown(url)} redirects to what is not a URL", False) from None

    def _check(self, url: str, response: http.client.HTTPResponse, way: str) -> None:
        if response.status in (200, 206):
            return
        again = response.status >= 500 or response.status in (408, 425, 429)
        code = response.headers.get("X-Error-Code") or ""
        clause = f"{shown(url)} answers {response.status} {response.reason}".strip() + way
        raise WebError(clause, again, response.status, str(code))

    def _send(self, url: str, method: str, headers: dict[str, str]) -> http.client.HTTPConnection:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise WebError(f"{shown(url)}: needs an http or https URL", False)
        if re.search(r"[\x00-\x20\x7f]", url):
            raise WebError(f"{shown(url)}: a URL with blanks or control characters", False)
        proxy = self._proxy_for(parts)
        host, port = origin_of(url)[1:]
        target = urlunsplit(("", "", quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._"), "", ""))
        if parts.query:
            target += "?" + parts.query
        if proxy is not None:
            through, extra = proxy.hostname or "", {}
            if basic(proxy):
                extra = {"Proxy-Authorization": basic(proxy) or ""}
            connection = self._connection(parts.scheme, through, proxy.port or 8080)
            if parts.scheme == "https":
                connection.set_tunnel(host, port, headers=extra)
            else:
                target = f"http://{parts.netloc.rpartition('@')[2]}{target}"
                headers = {**headers, **extra}
        else:
            connection = self._connection(parts.scheme, host, port)
        try:
            connection.request(method, target, headers=headers)
        except ssl.SSLCertVerificationError as problem:
            connection.close()
            reason = f"{shown(url)}: its certificate is not trusted ({problem.verify_message})"
            raise WebError(f"{reason}; ca_bundle names another CA file", False) from None
        except (OSError, http.client.HTTPException, ValueError) as problem:
            connection.close()
            reason = "no such host" if isinstance(problem, socket.gaierror) else cause(problem)
            clause = f"{shown(url)} is not reached{self._way(url)}: {reason}"
            raise WebError(clause, True) from None
        return connection

    def _connection(self, scheme: str, host: str, port: int) -> http.client.HTTPConnection:
        if scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=self.seconds)
        if self._context is None:
            self._context = trusting(self.ca_bundle)
        return http.client.HTTPSConnection(host, port, timeout=self.seconds, context=self._context)

    def _way(self, url: str) -> str:
        """The end of a clause that names the proxy, where a request goes through one."""
        proxy = self._proxy_for(urlsplit(url))
        return f" through the proxy {shown(proxy.geturl())}" if proxy else ""

    def _proxy_for(self, parts: Any) -> Any:
        """The proxy to go through: the one we were told, else that of the environment."""
        if (parts.hostname or "") in _OURSELVES or proxy_bypass(parts.hostname or ""):
            return None
        found = getproxies()
        url = found.get(parts.scheme) or found.get("all")
        return self.proxy or (proxy_parts(url) if url else None)
