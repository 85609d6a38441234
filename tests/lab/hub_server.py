"""The hub's listeners: requests recorded, ranges honoured, faults done to answers."""

import http.server
import re
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from tests.lab.hub_content import Answer, Content, Fault, body


@dataclass(kw_only=True, slots=True)
class Request:
    """One request as it came in, and how much of an answer went out."""

    listener: str
    method: str
    path: str
    authorization: str | None
    range: str | None
    status: int = 0
    sent: int = 0


class Ledger:
    """What both listeners share: the requests seen, the faults in force, and the end."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.closing = threading.Event()
        self._faults: list[list[Any]] = []
        self._lock = threading.Lock()

    def add(self, fault: Fault) -> None:
        with self._lock:
            self._faults.append([fault, fault.times])

    def clear(self) -> None:
        with self._lock:
            self._faults.clear()

    def take(self, listener: str, method: str, path: str) -> list[Fault]:
        """The faults that strike this request; each that does is counted down."""
        struck = []
        with self._lock:
            for entry in self._faults:
                fault, left = entry
                if left != 0 and fault.strikes(listener, method, path):
                    entry[1] = None if left is None else left - 1
                    struck.append(fault)
        return struck


class Listener(http.server.ThreadingHTTPServer):
    """One address and port; `answer(path, query, headers)` says what is there."""

    daemon_threads = True
    # Many downloads at once are a legal thing to test.
    request_queue_size = 128

    def __init__(
        self,
        name: str,
        address: tuple[str, int],
        ledger: Ledger,
        answer: Callable[[str, dict[str, str], Any], Answer],
    ) -> None:
        super().__init__(address, Handler)
        self.name, self.ledger, self.answer = name, ledger, answer
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}"

    def stop(self) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A client that goes away in the middle is what tests are made of.
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 60
    server: Listener

    def do_GET(self) -> None:
        self._handle()

    def do_HEAD(self) -> None:
        self._handle()

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are recorded in the ledger instead."""

    def _handle(self) -> None:
        ledger = self.server.ledger
        url = urllib.parse.urlsplit(self.path)
        path = urllib.parse.unquote(url.path)
        self.seen = Request(
            listener=self.server.name,
            method=self.command,
            path=path,
            authorization=self.headers.get("Authorization"),
            range=self.headers.get("Range"),
        )
        ledger.requests.append(self.seen)
        faults = ledger.take(self.server.name, self.command, path)
        if any(fault.hang for fault in faults):
            ledger.closing.wait()
            self.close_connection = True
            return
        status = next((fault.status for fault in faults if fault.status), None)
        if status is not None:
            answer = Answer(status=status)
        else:
            answer = self.server.answer(path, dict(urllib.parse.parse_qsl(url.query)), self.headers)
        self._send(answer, faults)

    def _send(self, answer: Answer, faults: list[Fault]) -> None:
        content, status, headers = answer.content, answer.status, dict(answer.headers)
        length = next((fault.length for fault in faults if fault.length is not None), None)
        size = content.size if length is None else length
        start, end = 0, size
        if answer.etag is not None:
            headers["ETag"] = f'"{answer.etag}"'
            headers["Accept-Ranges"] = "bytes"
            asked = None if any(fault.ignore_range for fault in faults) else self._range(size)
            if asked is not None and self.headers.get("If-Range") in (None, headers["ETag"]):
                start, end = asked
                status = 206
                headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
                if start >= end:
                    content, start, end, status = Content(b""), 0, 0, 416
                    headers["Content-Range"] = f"bytes */{size}"
        self.seen.status = status
        self.send_response(status, HTTPStatus(status).phrase)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(end - start))
        self.end_headers()
        if self.command == "GET":
            self._transmit(content, start, end, faults)

    def _range(self, size: int) -> tuple[int, int] | None:
        """First byte and the one past the last of a single range (RFC 9110, 14.2)."""
        match = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if match is None or match[0] == "bytes=-":
            return None
        if not match[1]:
            return max(0, size - int(match[2])), size
        return int(match[1]), min(size, int(match[2]) + 1 if match[2] else size)

    def _transmit(self, content: Content, start: int, end: int, faults: list[Fault]) -> None:
        closing = self.server.ledger.closing
        drop = next((fault.drop_after for fault in faults if fault.drop_after is not None), None)
        stall = next((fault.stall_after for fault in faults if fault.stall_after is not None), None)
        rate = next((fault.rate for fault in faults if fault.rate), None)
        limit = min((n for n in (drop, stall) if n is not None), default=None)
        started = time.monotonic()
        for whole in body(content, start, end, any(fault.wrong_bytes for fault in faults)):
            # A slow sender sends little and often, or a reader's time-out would strike.
            step = len(whole) if rate is None else max(1, min(len(whole), rate // 20))
            for at in range(0, len(whole), step):
                piece = whole[at : at + step]
                if limit is not None:
                    piece = piece[: limit - self.seen.sent]
                self.wfile.write(piece)
                self.seen.sent += len(piece)
                if limit is not None and self.seen.sent >= limit:
                    if limit == stall:
                        closing.wait()
                    self.close_connection = True
                    return
                if rate is not None:
                    ahead = self.seen.sent / rate - (time.monotonic() - started)
                    if closing.wait(max(0.0, ahead)):
                        self.close_connection = True
                        return
