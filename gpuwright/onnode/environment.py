"""Install a Python engine from its lock into a directory that is complete or not there."""

from __future__ import annotations

import os
import time
from typing import Any

from gpuwright.onnode.archives import clear
from gpuwright.onnode.contents import Stock, difference, misfits, seal, take_stock
from gpuwright.onnode.kit import lay
from gpuwright.onnode.outcome import NodeError, clean, say
from gpuwright.onnode.proving import Prover, fault, move_as, versions_differ
from gpuwright.onnode.retire import retire
from gpuwright.onnode.room import on_disk, require_room
from gpuwright.onnode.stamps import read_stamp
from gpuwright.onnode.storage import locked, put_in_place, sha256_of, sync_filesystem
from gpuwright.onnode.uv import Uv

_PROOF_SECONDS = 600.0
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
        self.spec = spec
        self.engine_dir = str(spec["engine_dir"]).rstrip("/")
        self.name = os.path.basename(self.engine_dir)
        self.partial = f"{self.engine_dir}.partial"
        self.scratch = f"{self.engine_dir}.partial.old/proof"
        self.requirements = dict(spec["requirements"])
        """`name==version` -> its hashes."""
        self.compiled = f"{spec['kept']}/python" if spec.get("kept") else None
        """Where the service's Python keeps what it compiles; half of the time of an import."""
        self.uv = Uv(spec, self.partial, lock)
        self.seconds = self.uv.seconds

    def install(self) -> None:
        """The environment beside its name, exactly what the lock says."""
        python = self.uv.python()
        self.uv(["venv", "--no-project", "--relocatable", "--python", python, self.partial], "venv")
        with open(f"{self.partial}/requirements.txt", "w", encoding="utf-8") as file:
            for line, hashes in self.requirements.items():
                file.write(" ".join([line, *(f"--hash=sha256:{one}" for one in hashes)]) + "\n")
        self.fill()
        if self.spec.get("toolkit"):
            lay(self.partial, self.spec["toolkit"], str(self.spec["lock_id"]))

    def fill(self, *more: str) -> None:
        """The packages of the lock; `more` words say which come anew."""
        words = ["pip", "sync", "--require-hashes", "--no-build", "--link-mode", "hardlink", *more]
        words += ["--python", f"{self.partial}/bin/python", *self.uv.index_words()]
        self.uv([*words, f"{self.partial}/requirements.txt"], "packages")
        # uv's own, and for everybody to write.
        clear(f"{self.partial}/.lock")

    def prove(self) -> None:
        """Versions are the lock's, and what must import does."""
        began = time.monotonic()
        prover = Prover(self.partial, self.scratch, str(self.spec["user"]), _PROOF_SECONDS)
        try:
            environment = dict(self.spec.get("env") or {})
            if self.compiled:
                prover.give(str(self.spec["kept"]))
                environment["PYTHONPYCACHEPREFIX"] = self.compiled
            told, finished = prover.ask(_PROOF, {"imports": self.spec["imports"]}, environment)
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

    def examine(self) -> dict[str, str]:
        """Prove it; meanwhile all of it comes to the disk, and is hashed: the hashes."""
        stock = Stock(self.partial)
        try:
            self.prove()
            began = time.monotonic()
            taken = stock.taken()
            self.seconds["sync"] = round(time.monotonic() - began, 1)
        finally:
            stock.close()
        return taken

    def make(self) -> None:
        """Install, examine and publish.

        Files are links to those in uv's cache: what was written into an older environment comes
        from there again. So a package with a file that is not what its RECORD says is fetched anew.
        What is the same then is the wheel's own, by the lock's hash, and its RECORD is wrong.
        """
        self.install()
        failed: NodeError | None = None
        try:
            stock = self.examine()
        except NodeError as problem:
            failed, stock = problem, take_stock(self.partial)
        wrong = misfits(self.partial, stock)
        if wrong:
            say(f"install {self.name}: {', '.join(sorted(wrong))} not as packed: fetching anew")
            self.uv(["cache", "clean", "--quiet", *wrong], "packages")
            self.fill(*(word for name in wrong for word in ("--reinstall-package", name)))
            paths = {name: f"{self.partial}/{name}" for files in wrong.values() for name in files}
            anew = {name: sha256_of(path) for name, path in paths.items() if os.path.isfile(path)}
            if any(stock.get(name) != anew.get(name) for name in paths):
                failed, stock = None, self.examine()
            sync_filesystem(self.partial)
        if failed:
            raise failed
        self.publish(stock)

    def publish(self, stock: dict[str, str]) -> None:
        """Stamp and rename: from then on the environment is there."""
        value = {"key": self.spec["key"], "lock": self.spec["lock_id"], "seconds": self.seconds}
        if self.uv.brought:
            value["python"] = self.uv.brought
        seal(self.partial, stock, value)
        old = f"{self.partial}.old"
        clear(old)
        put_in_place(self.partial, self.engine_dir, old)
        clear(old)
        if self.compiled:
            # Compiled under the other name, and good for this one: its sources are the same.
            names = (f"{self.compiled}{self.partial}", f"{self.compiled}{self.engine_dir}")
            move_as(str(self.spec["user"]), *names)


def standing(spec: dict[str, Any]) -> bool:
    """Whether the environment of this key is there, as its stamp vouches for, with its Python."""
    directory = str(spec["engine_dir"]).rstrip("/")
    stamp = read_stamp(directory)
    if stamp.get("key") != spec["key"] or not os.access(f"{directory}/bin/python", os.X_OK):
        return False
    thorough = spec.get("verify") == "full"
    trees = [directory, *([str(stamp["python"])] if stamp.get("python") else [])]
    return all(difference(tree, thorough) is None for tree in trees)


def main(spec: dict[str, Any], carried: str | None) -> dict[str, Any]:
    """Make the environment of `key` stand in `engine_dir`.

    spec: key, engine_dir, lock, lock_id, requirements {"name==version": [sha256]}, python
    {executable} or {place, directory, minor, version, listing, mirror}, uv, cache_dir, index
    {default, extra, find_links, offline, ca_bundle, proxy, timeout_seconds}, imports, env, user,
    kept (the directory that the unit's CacheDirectory= names, or null), need_bytes, toolkit (None,
    or as in kit.lay), retire (see `retire.retire`), verify. Answers with
    `engine` ("kept" | "installed"), `seconds` of each part, `removed` (old ones).
    """
    began = time.monotonic()
    for key in ("engine_dir", "lock", "uv", "cache_dir"):
        if not str(spec[key]).startswith("/"):
            raise NodeError(f"{key} {spec[key]!r} is not absolute")
    name = os.path.basename(str(spec["engine_dir"]).rstrip("/"))
    waiting = f"another run is installing {name}: waiting"
    with locked(str(spec["lock"]), waiting) as lock, on_disk(str(spec["engine_dir"])):
        work = Installation(spec, lock)
        for leftover in (work.partial, f"{work.partial}.old"):
            clear(leftover)
        if standing(spec):
            return {"ok": True, "engine": "kept", "seconds": {}, "removed": []}
        os.chmod(str(spec["uv"]), 0o755)  # noqa: S103  everybody may run it
        require_room(work.partial, int(spec["need_bytes"]), f"installing {name}")
        try:
            work.make()
        finally:
            clear(work.partial)
            clear(f"{work.partial}.old")
        removed = retire(spec["retire"], work.engine_dir)
    work.seconds["all"] = round(time.monotonic() - began, 1)
    return {"ok": True, "engine": "installed", "seconds": work.seconds, "removed": removed}
