"""Install a Python engine from its lock into a directory that is complete or not there."""

from __future__ import annotations

import errno
import os
import re
import time
from typing import Any

from gpuwright.onnode.archives import clear
from gpuwright.onnode.outcome import NodeError, clean, say
from gpuwright.onnode.processes import Finished, run
from gpuwright.onnode.proving import SHOWN_LINES, Prover, fault, versions_differ
from gpuwright.onnode.retire import retire
from gpuwright.onnode.room import full, on_disk, require_room
from gpuwright.onnode.stamps import (
    HASHED_BYTES,
    read_stamp,
    same_as_stamped,
    stamped,
    vouched,
    write_stamp,
)
from gpuwright.onnode.storage import locked, sha256_of, sync_directory

_PROOF_SECONDS = 300.0
# Imports by hand, one after the other, so that the first that fails is named.
_PROOF = """
import importlib, importlib.metadata, json, re, sys, traceback
asked = json.load(open(sys.argv[1]))
found = {"versions": {}, "failed": None}
for one in importlib.metadata.distributions():
    found["versions"][re.sub(r"[-_.]+", "-", one.metadata["Name"]).lower()] = one.version
for name in asked["imports"]:
    try:
        importlib.import_module(name)
    except BaseException:
        traceback.print_exc()
        found["failed"] = name
        break
print()
print(json.dumps(found), flush=True)
"""


class Installation:
    """One environment: beside its final name until it is proven."""

    def __init__(self, spec: dict[str, Any], lock: int) -> None:
        self.spec, self.held = spec, lock
        self.engine_dir = str(spec["engine_dir"]).rstrip("/")
        self.name = os.path.basename(self.engine_dir)
        self.partial = f"{self.engine_dir}.partial"
        self.scratch = f"{self.engine_dir}.partial.old/proof"
        self.cache = str(spec["cache_dir"])
        self.index = dict(spec["index"])
        self.requirements = dict(spec["requirements"])
        """`name==version` -> its hashes."""
        self.seconds: dict[str, float] = {}

    def uv(self, words: list[str], part: str) -> None:
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
            environment["SSL_CERT_FILE"] = str(self.index["ca_bundle"])
        if self.index.get("proxy"):
            environment.update(HTTPS_PROXY=self.index["proxy"], HTTP_PROXY=self.index["proxy"])
        told = run(
            [str(self.spec["uv"]), *words],
            environment,
            self.hear,
            held=[self.held],
        )
        self.seconds[part] = round(time.monotonic() - began, 1)
        if told.status != 0:
            raise self.broken(part, told)

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
        else:
            line = named_line(text, list(self.requirements))
            what = ": ".join(filter(None, (str(self.spec["lock_id"]), line)))
            places = ", ".join(self.places())
        said = "; ".join(reasons(told.lines)) or told.ending
        return NodeError(f"{what} cannot be installed from {places}: {said}", "", output=output)

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
                raise NodeError(f"{path} is not there, and {self.name} needs that Python")
            return path
        place = str(wanted["place"])
        path = f"{place}/{wanted['directory']}/bin/python{wanted['minor']}"
        if os.access(path, os.X_OK):
            return path
        os.makedirs(place, exist_ok=True)
        listing = f"{self.partial}.json"
        with open(listing, "w", encoding="utf-8") as file:
            file.write(str(wanted["listing"]))
        try:
            self.uv(
                [
                    *("python", "install", "--no-bin", "--install-dir", place),
                    *("--python-downloads-json-url", listing, str(wanted["version"])),
                ],
                "python",
            )
        finally:
            clear(listing)
        return path

    def install(self) -> None:
        """The environment beside its name, exactly what the lock says."""
        python = self.python()
        self.uv(["venv", "--no-project", "--relocatable", "--python", python, self.partial], "venv")
        listed = f"{self.partial}/requirements.txt"
        with open(listed, "w", encoding="utf-8") as file:
            for line, hashes in self.requirements.items():
                file.write(" ".join([line, *(f"--hash=sha256:{one}" for one in hashes)]) + "\n")
        self.uv(
            [
                *("pip", "sync", "--require-hashes", "--no-build", "--link-mode", "hardlink"),
                *("--python", f"{self.partial}/bin/python", *self.index_words(), listed),
            ],
            "packages",
        )
        # uv's own, and for everybody to write.
        clear(f"{self.partial}/.lock")

    def prove(self) -> None:
        """Versions are the lock's, and what must import does."""
        began = time.monotonic()
        prover = Prover(self.partial, self.scratch, str(self.spec["user"]), _PROOF_SECONDS)
        try:
            asked = {"imports": self.spec["imports"]}
            told, finished = prover.ask(_PROOF, asked, dict(self.spec.get("env") or {}))
        finally:
            prover.close()
        self.seconds["proof"] = round(time.monotonic() - began, 1)
        if told is None:
            raise fault(self.name, "its Python gave no answer", finished)
        wanted = dict(line.split("==", 1) for line in self.requirements)
        wrong = versions_differ(wanted, told["versions"])
        if wrong:
            raise NodeError(f"{self.spec['lock_id']}: " + "; ".join(wrong[:5]))
        if told["failed"]:
            module = clean(told["failed"], 100)
            raise fault(self.name, f"import {module} fails", finished)

    def files(self) -> list[str]:
        """What the stamp vouches for: each package's own list of its files, large libraries, and
        the scripts that the service may run."""
        found = ["pyvenv.cfg", "requirements.txt"]
        for place, directories, names in os.walk(self.partial):
            directories.sort()
            for name in sorted(names):
                path = f"{place}/{name}"
                record = name == "RECORD" and place.endswith(".dist-info")
                if os.path.islink(path):
                    continue
                large = ".so" in name and os.stat(path).st_size > HASHED_BYTES
                if record or large or place == f"{self.partial}/bin":
                    found.append(path[len(self.partial) + 1 :])
        return found

    def publish(self) -> None:
        """Stamp and rename: from then on the environment is there."""
        began = time.monotonic()
        files = {
            name: stamped(f"{self.partial}/{name}", sha256_of(f"{self.partial}/{name}"))
            for name in self.files()
        }
        # Tens of thousands of files: one call for all is quicker than one for each.
        os.sync()
        self.seconds["sync"] = round(time.monotonic() - began, 1)
        write_stamp(
            self.partial,
            {
                "schema": 1,
                "key": self.spec["key"],
                "lock": self.spec["lock_id"],
                "files": files,
                "seconds": self.seconds,
            },
        )
        old = f"{self.partial}.old"
        clear(old)
        if os.path.lexists(self.engine_dir):
            os.rename(self.engine_dir, old)
        os.rename(self.partial, self.engine_dir)
        sync_directory(os.path.dirname(self.engine_dir))
        clear(old)


def reasons(lines: list[str]) -> list[str]:
    """What uv gives as its error and its causes, without its ornaments."""
    found: list[str] = []
    for line in lines:
        match = re.match(r"[\s×╰─▶├│]*(error|cause|Caused by|Because|hint)\b:? ?(.*)", line)
        if match and match.group(2) and match.group(1) != "hint":
            found.append(clean(match.group(2).strip(), 200))
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


def standing(spec: dict[str, Any]) -> bool:
    """Whether the environment of this key is there, as its stamp vouches for."""
    directory = str(spec["engine_dir"]).rstrip("/")
    stamp = read_stamp(directory)
    files = vouched(stamp)
    if stamp.get("key") != spec["key"] or "pyvenv.cfg" not in files:
        return False
    if not os.access(f"{directory}/bin/python", os.X_OK):
        return False
    full_check = spec.get("verify") == "full"
    for name, entry in files.items():
        path = f"{directory}/{name}"
        if not same_as_stamped(path, entry):
            return False
        if (full_check or entry["bytes"] <= HASHED_BYTES) and sha256_of(path) != entry["sha256"]:
            return False
    return True


def main(spec: dict[str, Any], carried: str | None) -> dict[str, Any]:
    """Make the environment of `key` stand in `engine_dir`.

    spec: key, engine_dir, lock, lock_id, requirements {"name==version": [sha256]}, python
    {executable} or {place, directory, minor, version, listing, mirror}, uv, cache_dir, index
    {default, extra, find_links, offline, ca_bundle, proxy, timeout_seconds}, imports, env, user,
    need_bytes, retire (see `retire.retire`), verify. Answers with
    `engine` ("kept" | "installed"), `seconds` of each part, `removed` (old ones).
    """
    began = time.monotonic()
    for key in ("engine_dir", "lock", "uv", "cache_dir"):
        if not str(spec[key]).startswith("/"):
            raise NodeError(f"{key} {spec[key]!r} is not absolute")
    name = os.path.basename(str(spec["engine_dir"]).rstrip("/"))
    waiting = f"another run is installing {name}: waiting"
    with locked(str(spec["lock"]), waiting) as lock, on_disk(str(spec["engine_dir"])):
        if standing(spec):
            return {"ok": True, "engine": "kept", "seconds": {}, "removed": []}
        work = Installation(spec, lock)
        for leftover in (work.partial, f"{work.partial}.old"):
            clear(leftover)
        os.chmod(str(spec["uv"]), 0o755)  # noqa: S103  everybody may run it
        require_room(work.partial, int(spec["need_bytes"]), f"installing {name}")
        try:
            work.install()
            work.prove()
            work.publish()
        finally:
            clear(work.partial)
            clear(f"{work.partial}.old")
        removed = retire(spec["retire"], work.engine_dir)
    work.seconds["all"] = round(time.monotonic() - began, 1)
    return {"ok": True, "engine": "installed", "seconds": work.seconds, "removed": removed}
