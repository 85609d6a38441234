"""uv on a node: what it is told of the site, and what it says when it cannot do its work."""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import re
import stat
import time
from typing import Any

from gpuwright.onnode.addresses import WebError
from gpuwright.onnode.archives import clear
from gpuwright.onnode.contents import difference, seal, take_stock
from gpuwright.onnode.outcome import NodeError, clean, say
from gpuwright.onnode.processes import Finished, run
from gpuwright.onnode.proving import SHOWN_LINES
from gpuwright.onnode.room import full
from gpuwright.onnode.storage import locked, put_in_place, sync_filesystem
from gpuwright.onnode.web import trusting


class Uv:
    """uv with one environment's lock and the site's settings."""

    def __init__(self, spec: dict[str, Any], partial: str, held: int) -> None:
        self.spec, self.partial, self.held = spec, partial, held
        self.name = os.path.basename(str(spec["engine_dir"]).rstrip("/"))
        self.cache = str(spec["cache_dir"])
        self.index = dict(spec["index"])
        self.brought: str | None = None
        """The directory of a Python that was brought, where one is needed."""
        self.seconds: dict[str, float] = {}

    def __call__(self, words: list[str], part: str, *held: int) -> None:
        """One command of uv; it may see nothing that whoever logged in has set for it."""
        began = time.monotonic()
        environment = {
            name: value
            for name, value in os.environ.items()
            if name.lower() in ("https_proxy", "http_proxy", "all_proxy", "no_proxy")
            or name in ("SSL_CERT_FILE", "SSL_CERT_DIR")
        }
        environment.update(
            PATH="/usr/local/bin:/usr/bin:/bin",
            # uv keeps a lock beside credentials in its home, even where there are none.
            HOME=self.cache,
            LC_ALL="C.UTF-8",
            UV_CACHE_DIR=self.cache,
            UV_HTTP_TIMEOUT=str(int(self.index.get("timeout_seconds") or 60)),
            UV_HTTP_RETRIES="2",
            UV_NO_PROGRESS="1",
            UV_SYSTEM_CERTS="1",
            UV_NO_CONFIG="1",
        )
        if self.index.get("ca_bundle"):
            # uv passes over one that it cannot read, and trusts others instead.
            bundle = str(self.index["ca_bundle"])
            try:
                trusting(bundle)
            except WebError as problem:
                hint = "name a file there with certificates in PEM, or leave the key out"
                raise NodeError(f"{problem.clause}, and {self.name} needs it", hint) from None
            environment["SSL_CERT_FILE"] = bundle
        if self.index.get("proxy"):
            environment.update(HTTPS_PROXY=self.index["proxy"], HTTP_PROXY=self.index["proxy"])
        told = run(
            [str(self.spec["uv"]), *words],
            environment,
            self.hear,
            held=[self.held, *held],
        )
        self._tighten()
        self.seconds[part] = self.seconds.get(part, 0.0) + round(time.monotonic() - began, 1)
        if told.status != 0:
            raise self.broken(part, told)

    def _tighten(self) -> None:
        """Take from everybody what uv gives to everybody: its lock files are 0666, whatever umask.

        What it has unpacked is not among them, and is left out: tens of thousands of files.
        """
        for place, directories, names in os.walk(self.cache):
            if place == self.cache:
                directories[:] = [one for one in directories if one != "archive-v0"]
            for path in (f"{place}/{name}" for name in names):
                with contextlib.suppress(FileNotFoundError):  # another run is at work, too
                    mode = os.lstat(path).st_mode
                    if stat.S_ISREG(mode) and mode & 0o022:
                        os.chmod(path, stat.S_IMODE(mode) & ~0o022)

    def hear(self, line: str) -> None:
        """What people want to know of it: not each of hundreds of packages."""
        if line.strip() and not line.startswith((" + ", " - ", " ~ ")):
            say(f"install {self.name}: {line}")

    def broken(self, part: str, told: Finished) -> NodeError:
        """What uv said, as one sentence that names the row or the lock's line, and where it was
        looked for."""
        output = [clean(line, 400) for line in told.lines[-SHOWN_LINES:]]
        text = "\n".join(told.lines)
        if os.strerror(errno.ENOSPC) in text:
            return full(self.partial, output=output)
        if part == "python":
            wanted = self.spec["python"]
            what, places = f"pythons.yaml: Python {wanted['version']}", str(wanted["mirror"])
            keys = "`python_mirror`"
        else:
            line = named_line(text, list(self.spec["requirements"]))
            what = ": ".join(filter(None, (str(self.spec["lock_id"]), line)))
            places = ", ".join(self.places())
            keys = "`python_index`, `python_find_links` or `python_offline`"
        if self.index.get("proxy"):
            places += f" through the proxy {self.index['proxy']}"
        said = "; ".join(reasons(told.lines)) or told.ending
        hint = f"{keys} can name another place; `proxy` and `ca_bundle` say how it is reached"
        return NodeError(f"{what} cannot be installed from {places}: {said}", hint, output=output)

    def places(self) -> list[str]:
        """Where packages come from, for people."""
        index = self.index
        if index.get("offline"):
            return [str(index["offline"])]
        return [str(index["default"]), *index.get("extra", ()), *index.get("find_links", ())]

    def index_words(self) -> list[str]:
        index = self.index
        if index.get("offline"):
            return ["--no-index", "--offline", "--find-links", str(index["offline"])]
        words = ["--default-index", str(index["default"])]
        for url in index.get("extra", ()):
            words += ["--index", str(url)]
        for place in index.get("find_links", ()):
            words += ["--find-links", str(place)]
        return words

    def python(self) -> str:
        """The interpreter: the node's own, or the one that uv has brought."""
        wanted = self.spec["python"]
        if wanted.get("executable"):
            path = str(wanted["executable"])
            if not os.access(path, os.X_OK):
                raise NodeError(
                    f"{path} is not there, and {self.name} needs that Python",
                    "run again: a Python is chosen among those that the node has then",
                )
            return path
        place = str(wanted["place"])
        self.brought = f"{place}/{wanted['directory']}"
        locks = os.path.dirname(str(self.spec["lock"]))
        with locked(f"{locks}/pythons.lock", "another run is at work on a Python: waiting") as lock:
            if difference(self.brought, self.spec.get("verify") == "full") is not None:
                self._bring(self.brought, lock)
        return f"{self.brought}/bin/python{wanted['minor']}"

    def _bring(self, directory: str, lock: int) -> None:
        """Install a Python beside, then put it in place of one that is not what was installed."""
        wanted = self.spec["python"]
        partial, listing = f"{directory}.partial", f"{directory}.partial.json"
        aside, made = f"{partial}.old", f"{partial}/{os.path.basename(directory)}"
        os.makedirs(os.path.dirname(directory), exist_ok=True)
        clear(partial)
        clear(aside)
        try:
            with open(listing, "w", encoding="utf-8") as file:
                file.write(str(wanted["listing"]))
            words = ["python", "install", "--no-bin", "--install-dir", partial]
            words += ["--python-downloads-json-url", listing, str(wanted["version"])]
            self(words, "python", lock)
            tell_place(made, directory)
            sync_filesystem(made)
            seal(made, take_stock(made), {"version": wanted["version"]})
            put_in_place(made, directory, aside)
        finally:
            for leftover in (partial, listing, aside):
                clear(leftover)


def tell_place(made: str, directory: str) -> None:
    """Put `directory` where uv has written of a Python that it lies at `made`: in what compilers
    are told."""
    for pattern in ("lib/python*/_sysconfigdata_*.py", "lib/pkgconfig/*.pc"):
        for path in glob.glob(f"{glob.escape(made)}/{pattern}"):
            if os.path.islink(path):
                continue
            with open(path, "r+", encoding="utf-8") as file:
                text = file.read()
                if made in text:
                    file.seek(0)
                    file.truncate()
                    file.write(text.replace(made, directory))


def reasons(lines: list[str]) -> list[str]:
    """What uv gives as its error and its causes, without its ornaments.

    Of an index that refuses it says that packages are not there; a hint alone has the status.
    """
    found: list[str] = []
    for line in lines:
        match = re.match(r"[\s×╰─▶├│]*(error|cause|Caused by|Because|hint)\b:? ?(.*)", line)
        if not match or not match.group(2):
            continue
        if match.group(1) != "hint":
            found.append(clean(match.group(2).strip(), 200))
        elif status := re.match(r"An index .* returned a \d{3} [\w ]+", match.group(2)):
            found.insert(0, clean(status.group(0), 200))
    return found[:4]


def named_line(text: str, lines: list[str]) -> str | None:
    """The line of the lock that uv's words are about."""
    shown = re.sub(r"[-_.]+", "-", text.lower())
    for line in lines:
        name, _, version = line.partition("==")
        exact = re.escape(re.sub(r"[-_.]+", "-", f"{name}=={version}".lower()))
        if re.search(rf"(?<![\w-]){exact}(?![\w-])", shown):
            return line
    for line in lines:
        name = re.escape(line.partition("==")[0])
        if re.search(rf"(?<![\w-]){name} was not found|`{name}`|/{name}[-/]", shown):
            return line
    return None
