"""A Python package index for tests: over HTTP or HTTPS, and as a proxy in front of one."""

import contextlib
import http.server
import select
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from tests.lab.hub_index import Index

NOWHERE = "index.example"
"""A host that no resolver knows: who gets an answer from it asked a proxy."""


@dataclass(kw_only=True, slots=True)
class Site:
    """One listener; `seen` are the requests' methods and targets, as they came."""

    folder: Path
    scheme: str = "http"
    tunnel_to: int = 0
    """Port of the listener that CONNECT leads to, whatever host is asked for."""
    plain: bool = False
    """Pages of HTML alone, which tell no size."""
    port: int = 0
    seen: list[tuple[str, str]] = field(default_factory=list)

    @property
    def root(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.root}/simple"


@contextlib.contextmanager
def serve(site: Site, context: ssl.SSLContext | None = None) -> Iterator[Site]:
    """The site, listening until the block ends."""
    index = Index(site.folder)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            site.seen.append((self.command, self.path))
            accept = "text/html" if site.plain else self.headers.get("Accept", "")
            found = index.answer(urlsplit(self.path).path.lstrip("/"), accept)
            content = b"".join(found.content.read(0, found.content.size)) if found else b""
            self.send_response(200 if found else 404)
            for name, value in (found.headers if found else {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def do_CONNECT(self) -> None:
            site.seen.append((self.command, self.path))
            self.send_response(200)
            self.end_headers()
            with socket.create_connection(("127.0.0.1", site.tunnel_to), timeout=10) as other:
                ends = {self.connection: other, other: self.connection}
                while ready := select.select(list(ends), [], [], 10)[0]:
                    for end in ready:
                        data = end.recv(65536)
                        if not data:
                            return
                        ends[end].sendall(data)

        def log_message(self, *_: object) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            pass  # who distrusts a certificate hangs up

    server = Server(("127.0.0.1", 0), Handler)
    if context is not None:
        site.scheme = "https"
        server.socket = context.wrap_socket(server.socket, server_side=True)
    site.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def certificates(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """An authority that nobody knows, and what a server shows that it vouches for."""
    authority, name = folder / "authority.pem", f"subjectAltName=IP:127.0.0.1,DNS:{NOWHERE}"
    _openssl(
        *("req", "-x509", "-subj", "/CN=Authority of a test", "-addext", "keyUsage=keyCertSign"),
        *("-keyout", str(folder / "authority.key"), "-out", str(authority)),
    )
    _openssl(
        *("req", "-x509", "-subj", "/CN=127.0.0.1", "-addext", name, "-CA", str(authority)),
        *("-addext", "basicConstraints=critical,CA:FALSE", "-CAkey", str(folder / "authority.key")),
        *("-keyout", str(folder / "server.key"), "-out", str(folder / "server.pem")),
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    return authority, context


def _openssl(*words: str) -> None:
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc", "-days", "2")
    subprocess.run(["openssl", *words, *key], check=True, capture_output=True)
