"""What the hub sends: contents with their hashes, answers, and the faults put upon them."""

import fnmatch
import functools
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

CHUNK = 1 << 16


class Content:
    """A file's bytes, from memory or from disk; hashes are worked out once."""

    def __init__(self, source: bytes | Path) -> None:
        self.source = source
        self.size = len(source) if isinstance(source, bytes) else source.stat().st_size

    def read(self, start: int, end: int) -> Iterator[bytes]:
        """The bytes from `start` up to `end`, in pieces."""
        if isinstance(self.source, bytes):
            for at in range(start, end, CHUNK):
                yield self.source[at : min(at + CHUNK, end)]
            return
        with self.source.open("rb") as handle:
            handle.seek(start)
            while start < end and (piece := handle.read(min(CHUNK, end - start))):
                start += len(piece)
                yield piece

    @functools.cached_property
    def sha256(self) -> str:
        digest = hashlib.sha256()
        for piece in self.read(0, self.size):
            digest.update(piece)
        return digest.hexdigest()

    @functools.cached_property
    def blob_id(self) -> str:
        """git's name for the file."""
        digest = hashlib.sha1(f"blob {self.size}\0".encode())
        for piece in self.read(0, self.size):
            digest.update(piece)
        return digest.hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """One response before faults; content may be asked for in ranges where `etag` is set."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    content: Content = field(default_factory=lambda: Content(b""))
    etag: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """What goes wrong with requests whose path matches; several may act on one request.

    `match` is a shell pattern on the URL's path ("*model.gguf" names a file on hub and CDN),
    `on` hub, cdn or any, `times` how many requests it strikes (None: all).
    """

    match: str = "*"
    on: str = "any"
    methods: tuple[str, ...] = ("GET",)
    times: int | None = None
    # Answer with this status and nothing else.
    status: int | None = None
    # Take the request and never answer.
    hang: bool = False
    # Break the connection after so many bytes of the body.
    drop_after: int | None = None
    # Go silent after so many bytes of the body, with the connection open.
    stall_after: int | None = None
    # Bytes per second.
    rate: int | None = None
    # One byte in the middle of the file is another one.
    wrong_bytes: bool = False
    # The server's file has this length: cut off, or filled up with zeros.
    length: int | None = None
    # Send the whole file, status 200, whatever range was asked for.
    ignore_range: bool = False

    def strikes(self, listener: str, method: str, path: str) -> bool:
        if self.on not in ("any", listener) or method not in self.methods:
            return False
        return fnmatch.fnmatchcase(path, self.match)


def body(content: Content, start: int, end: int, wrong_bytes: bool) -> Iterator[bytes]:
    """Bytes `start` to `end` of a file that may be shorter than that, or spoilt in its middle."""
    at, spoilt = start, content.size // 2
    for piece in content.read(start, min(end, content.size)):
        if wrong_bytes and at <= spoilt < at + len(piece):
            changed = bytearray(piece)
            changed[spoilt - at] ^= 0xFF
            yield bytes(changed)
        else:
            yield piece
        at += len(piece)
    while at < end:
        size = min(CHUNK, end - at)
        at += size
        yield bytes(size)
