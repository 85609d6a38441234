"""One file over HTTP into a partial file: resumed where it stopped, never longer than expected."""

from __future__ import annotations

import hashlib
import os
import re
import time
from typing import Any

from gpuwright.onnode.addresses import WebError
from gpuwright.onnode.outcome import Progress, say
from gpuwright.onnode.room import unwritable
from gpuwright.onnode.web import Answer, Web

_CHUNK = 1 << 20
_TRIES = 3
_CANNOT_RESUME = 416
_WORTH_ANOTHER_TRY = 4 << 20
"""Bytes that must have come for the tries to be counted anew."""


class SourceError(Exception):
    """A source that does not deliver the file, as a clause for people."""


class Meter:
    """Progress lines of one file: `fetch NAME: 34 %, 33 of 98 MB, 12 MB/s`."""

    def __init__(self, verb: str, name: str, total: int | None) -> None:
        self.verb, self.name, self.total = verb, name, total
        self.progress = Progress()
        self.began = time.monotonic()
        self.first: int | None = None

    def at(self, done: int) -> None:
        if self.first is None:
            self.first = done
        if not self.progress.due():
            return
        rate = (done - self.first) / max(0.001, time.monotonic() - self.began) / 1e6
        of = f" of {self.total // 10**6}" if self.total else ""
        share = f"{100 * done // self.total} %, " if self.total else ""
        say(f"{self.verb} {self.name}: {share}{done // 10**6}{of} MB, {rate:.0f} MB/s")


def digest_of_start(path: str, meter: Meter) -> Any:
    """The running hash over what a partial file holds already."""
    digest = hashlib.sha256()
    done = 0
    with open(path, "rb", buffering=0) as file:
        while True:
            chunk = file.read(_CHUNK)
            if not chunk:
                return digest
            digest.update(chunk)
            done += len(chunk)
            meter.at(done)


class Transfer:
    """The download of one URL to one partial file."""

    def __init__(
        self,
        web: Web,
        url: str,
        partial: str,
        size: int | None,
        sha256: str,
        name: str,
        authorization: str | None = None,
        backoff_seconds: float = 1.0,
    ) -> None:
        self.web, self.url, self.partial, self.size = web, url, partial, size
        self.sha256, self.name, self.authorization = sha256, name, authorization
        self.backoff_seconds = backoff_seconds
        self.received = 0
        self._digest = hashlib.sha256()

    def run(self) -> None:
        """Leave the whole, verified, durable content in the partial file.

        SourceError: this source does not deliver it; a wrong whole is not left behind, an
        unfinished one is, for the next source or run. A resumed whole with a wrong hash may be
        the old part's fault: it is fetched once more from the start.
        """
        if self.size is None and self._held():
            os.unlink(self.partial)  # whether it is whole cannot be known
        resumed = self._held() > 0
        found = self._whole()
        if found != self.sha256 and resumed:
            say(f"fetch {self.name}: what an earlier run left was not right, starting over")
            os.unlink(self.partial)
            found = self._whole()
        if found != self.sha256:
            os.unlink(self.partial)
            raise SourceError(f"its sha256 is {found[:16]}..., needed {self.sha256[:16]}...")

    def _held(self) -> int:
        try:
            held = os.stat(self.partial).st_size
        except FileNotFoundError:
            return 0
        if self.size is not None and held > self.size:
            os.unlink(self.partial)
            return 0
        return held

    def _whole(self) -> str:
        """Get what is missing, over as many connections as it takes; the hash of the whole."""
        meter = Meter("fetch", self.name, self.size)
        tries = 0
        self._digest = hashlib.sha256()
        if self._held():
            self._digest = digest_of_start(self.partial, Meter("check", self.name, self._held()))
        while self.size is None or self._held() < self.size:
            before = self._held()
            try:
                self._pull(meter)
                break
            except WebError as problem:
                if problem.status == _CANNOT_RESUME and before:
                    os.unlink(self.partial)
                    self._digest = hashlib.sha256()
                    continue
                if not problem.again:
                    raise
                tries = 1 if self._held() - before >= _WORTH_ANOTHER_TRY else tries + 1
                if tries > _TRIES:
                    raise
                say(f"fetch {self.name}: {problem.clause}, try {tries} of {_TRIES}")
                time.sleep(self.backoff_seconds * 2 ** (tries - 1))
        if not self._held():
            with open(self.partial, "ab"):
                pass  # an empty file is a file too
        return str(self._digest.hexdigest())

    def _pull(self, meter: Meter) -> None:
        """One connection's worth. WebError: it broke off; what came is in the partial file.

        The running hash is that of the partial file's content at every moment.
        """
        held = self._held()
        headers = {"Range": f"bytes={held}-"} if held else {}
        with self.web.open(self.url, headers, authorization=self.authorization) as answer:
            if answer.headers.get("Content-Encoding", "identity") != "identity":
                raise SourceError("it is served compressed")
            total = self._total(answer, held)
            if total is not None and self.size is not None and total != self.size:
                raise SourceError(f"it is served with {total} bytes, needed {self.size}")
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(self.partial, flags, 0o600), "wb", buffering=0) as file:
                if answer.status == 200:
                    # Also the answer of a server that knows no ranges: it starts over.
                    held, self._digest = 0, hashlib.sha256()
                file.truncate(held)
                file.seek(held)
                self._copy(answer, file, held, total if self.size is None else self.size, meter)
                os.fsync(file.fileno())

    def _total(self, answer: Answer, held: int) -> int | None:
        """The whole file's size as the server states it."""
        if answer.status == 206:
            told = answer.headers.get("Content-Range", "")
            match = re.match(r"bytes (\d+)-\d+/(\d+|\*)\Z", told)
            if not match or int(match.group(1)) != held:
                raise WebError("it is served from another place", False, _CANNOT_RESUME)
            return int(match.group(2)) if match.group(2).isdigit() else None
        length = answer.headers.get("Content-Length", "")
        return int(length) if length.isdigit() else None

    def _copy(
        self,
        answer: Answer,
        file: Any,
        held: int,
        whole: int | None,
        meter: Meter,
    ) -> None:
        while whole is None or held < whole:
            chunk = answer.read(_CHUNK if whole is None else min(_CHUNK, whole - held))
            if not chunk:
                break
            written_out(file, chunk, self.partial)
            self._digest.update(chunk)
            held += len(chunk)
            self.received += len(chunk)
            meter.at(held)
        if whole is not None and held < whole:
            raise WebError(f"the connection ended {whole - held} bytes early", True)


def written_out(file: Any, chunk: bytes, path: str) -> None:
    """Write all of `chunk` to a raw file. NodeError: the disk is full or broken."""
    view = memoryview(chunk)
    try:
        while view:
            view = view[file.write(view) :]
    except OSError as problem:
        raise unwritable(problem, path) from None
