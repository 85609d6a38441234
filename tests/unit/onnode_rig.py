"""Running carried programs as a node does, and HTTP servers that misbehave as told."""

import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpuwright import carry


def program_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This environment, with our own Python first on PATH and no proxy."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    kept = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
    return {**kept, "PATH": path, **(extra or {})}


def run(
    name: str,
    spec: dict[str, Any],
    *,
    stdin: str = "",
    environment: Mapping[str, str] | None = None,
    seconds: float = 60,
) -> tuple[dict[str, Any], "subprocess.CompletedProcess[str]"]:
    """Carry a program to this machine's shell; its answer and how it ended."""
    finished = subprocess.run(
        ["sh", "-c", carry.command(name, spec)],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=seconds,
        env=program_environment(environment),
    )
    assert "Traceback" not in finished.stderr, finished.stderr
    return carry.parse(finished.stdout.splitlines()), finished


def in_namespace(script: str) -> "subprocess.CompletedProcess[str]":
    """Run a shell script where a filesystem can be mounted that goes when the script ends."""
    return subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        env=program_environment(),
    )


Handler = Callable[["Exchange"], None]


class Exchange(http.server.BaseHTTPRequestHandler):
    """One request; the site's handler answers it."""

    protocol_version = "HTTP/1.1"
    site: "Site"

    def handle_any(self) -> None:
        self.site.seen.append((self.command, self.path, dict(self.headers)))
        self.site.handler(self)

    do_GET = do_HEAD = do_POST = handle_any  # noqa: N815 - http.server's names

    def log_message(self, *arguments: object) -> None:
        pass

    def reply(
        self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def reply_json(self, value: object, status: int = 200) -> None:
        self.reply(status, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def reply_ranged(self, content: bytes) -> None:
        """A whole file, or the rest of it that a Range header asks for."""
        asked = self.headers.get("Range", "")
        if not asked.startswith("bytes="):
            self.reply(200, content)
            return
        first, _, last = asked[len("bytes=") :].partition("-")
        start, end = int(first), int(last or len(content) - 1)
        told = {"Content-Range": f"bytes {start}-{end}/{len(content)}"}
        self.reply(206, content[start : end + 1], told)

    def break_off(self, content: bytes, sent: int) -> None:
        """Promise all of `content`, send a part, close."""
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[:sent])
        self.close_connection = True


class Site:
    """A running server: its address, and every request that it saw."""

    def __init__(self, server: http.server.ThreadingHTTPServer, handler: Handler) -> None:
        self.port = server.server_address[1]
        self.handler = handler
        self.seen: list[tuple[str, str, dict[str, str]]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def site(handler: Handler) -> Iterator[Site]:
    """A local HTTP server in a thread; `handler` answers each request."""
    exchange = type("ThisExchange", (Exchange,), {})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), exchange)
    server.daemon_threads = True
    exchange.site = Site(server, handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield exchange.site
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def put(root: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write files below `root` under the names that a node gives them."""
    for name, content in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def listen(
    root: Path, port: int, unit: str, *, pid: int | None = 77, process: str = "llama-server"
) -> None:
    """Let a process of `unit` hold 127.0.0.1:`port` of a fake node; no `pid`: none that is seen."""
    row = f"0: 0100007F:{port:04X} 0:0 0A 0:0 0:0 0 0 0 5150 1"
    table = f"head\n {row}\n 1: 0100007F:0016 0:0 0A 0:0 0:0 0 0 0 99 1\n"
    put(root, {"/proc/net/tcp": table})
    for held in root.glob("proc/*/fd"):
        (held / "3").unlink(missing_ok=True)
    if pid is not None:
        place = f"/proc/{pid}"
        cgroup = f"0::/system.slice/{unit}\n"
        put(root, {f"{place}/comm": f"{process}\n", f"{place}/cgroup": cgroup})
        (root / f"proc/{pid}/fd").mkdir(exist_ok=True)
        (root / f"proc/{pid}/fd/3").symlink_to("socket:[5150]")
