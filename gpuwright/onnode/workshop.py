"""The parts of a build: unpack, configure, compile, install, prove, publish."""

from __future__ import annotations

import errno
import os
import re
import shutil
import time
from typing import Any

from gpuwright.onnode.archives import clear, inside, unpack
from gpuwright.onnode.compiling import (
    c_compiler,
    driver_library,
    first_error,
    source_directory,
    steps,
)
from gpuwright.onnode.machine import memory
from gpuwright.onnode.outcome import NodeError, Progress, clean, say
from gpuwright.onnode.processes import Finished, run
from gpuwright.onnode.proving import drop_rights
from gpuwright.onnode.room import GIB, full
from gpuwright.onnode.stamps import read_stamp, stamped, vouched, write_stamp
from gpuwright.onnode.storage import put_in_place, sha256_of, sync_directory
from gpuwright.onnode.tree import Tree

_BYTES_A_JOB = 3 * GIB // 2
"""What one compiler of a large CUDA or C++ file takes at its worst."""
_PROOF_SECONDS = 60.0
_SHOWN_LINES = 20
_DEVICE = re.compile(r"\s+[A-Za-z]+\d+: ")
"""One of the cards that a binary lists: `  CUDA0: NVIDIA ...`."""


class Workshop:
    """One build: where it happens, with what, and how long each part took."""

    def __init__(self, spec: dict[str, Any], lock: int) -> None:
        self.spec = spec
        self.lock = lock
        self.engine_dir = str(spec["engine_dir"]).rstrip("/")
        self.name = os.path.basename(self.engine_dir)
        self.place = f"{spec['work_dir']}/{self.name}"
        self.partial = f"{self.engine_dir}.partial"
        self.target = str(spec["target"])
        self.seconds: dict[str, float] = {}
        self.compiler = str(spec.get("compiler") or "c++")
        self.devices: list[str] = []
        self.words: list[str] = []
        """Before what is proven: it may no more than the service's user."""

    def environment(self) -> dict[str, str]:
        """Everything a build may see: flags of whoever logged in do not belong to the key."""
        found = {
            "PATH": os.environ.get("PATH") or "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin",
            "HOME": self.place,
            "LC_ALL": "C",
            "TMPDIR": f"{self.place}/scratch",
            "CLICOLOR": "0",
            "NINJA_STATUS": "[%f/%t] ",
        }
        if self.spec.get("ccache_dir"):
            # The same file built in another directory is the same to ccache.
            found.update(
                CCACHE_DIR=str(self.spec["ccache_dir"]),
                CCACHE_BASEDIR=self.place,
                CCACHE_NOHASHDIR="1",
            )
        found.update({str(k): str(v) for k, v in (self.spec.get("env") or {}).items()})
        return found

    def timed(self, part: str, began: float) -> None:
        self.seconds[part] = round(time.monotonic() - began, 1)

    def compiler_version(self) -> str:
        told = run([self.compiler, "--version"], self.environment(), seconds=30)
        return clean(told.lines[0], 200) if told.lines and told.status == 0 else ""

    def jobs(self) -> int:
        """As many as asked for, but no more than memory carries."""
        available = memory(Tree())["available_bytes"]
        most = int(available) // _BYTES_A_JOB if isinstance(available, int) else 1
        return max(1, min(int(self.spec.get("jobs") or 1), most))

    def unpack(self) -> str:
        """The source tree's directory with its CMakeLists.txt."""
        began = time.monotonic()
        archive, wanted = str(self.spec["archive"]), self.spec["sha256"]
        if not os.path.isfile(archive):
            raise NodeError(
                f"the source archive {archive} is not there", "run again: it is fetched anew"
            )
        found = sha256_of(archive)
        if found != wanted:
            told = f"{archive}: sha256 is {found[:16]}..., needed {str(wanted)[:16]}..."
            raise NodeError(told, "run again: it is fetched anew")
        source = f"{self.place}/source"
        for path in (source, f"{self.place}/scratch"):
            os.makedirs(path)
        unpack(archive, source)
        top = source_directory(source, str(self.spec.get("source_subdir") or ""))
        for name, lines in (self.spec.get("additions") or {}).items():
            path = inside(top, name, name)
            if os.path.lexists(path):
                raise NodeError(f"{name} is to be added to the source, which has one of its own")
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "x", encoding="utf-8") as file:
                file.write("\n".join(lines) + "\n")
        self.timed("unpack", began)
        return top

    def configure(self, source: str) -> None:
        began = time.monotonic()
        arguments = ["cmake", "-S", source, "-B", f"{self.place}/build", "-G", "Ninja"]
        if self.spec.get("compiler"):
            arguments += [
                f"-DCMAKE_CXX_COMPILER={self.compiler}",
                f"-DCMAKE_C_COMPILER={c_compiler(self.compiler)}",
            ]
        ccache = shutil.which("ccache") if self.spec.get("ccache_dir") else None
        if ccache:
            os.makedirs(str(self.spec["ccache_dir"]), exist_ok=True)
            for language in ("C", "CXX", "CUDA"):
                arguments.append(f"-DCMAKE_{language}_COMPILER_LAUNCHER={ccache}")
        arguments += [str(argument) for argument in self.spec["cmake_args"]]
        arguments += driver_library(self.spec.get("driver_library") or [])
        say(f"build {self.name}: configuring")
        told = run(arguments, self.environment(), held=[self.lock])
        self.timed("configure", began)
        if told.status != 0:
            raise self.broken("cmake does not configure", told)

    def compile(self) -> int:
        """Compile with what memory allows; the number of jobs."""
        began = time.monotonic()
        jobs = self.jobs()
        progress, shown = Progress(), 0

        def hear(line: str) -> None:
            nonlocal shown
            share = steps(line)
            if share is None:
                return
            done, total = share
            percent = 100 * done // max(1, total)
            if (percent >= shown + 5 or done == total) and progress.due():
                shown = percent
                spent = time.monotonic() - began
                say(f"build {self.name}: {percent} %, {done} of {total}, {spent:.0f} s")

        nice = ["nice", "-n", "10"] if shutil.which("nice") else []
        command = [*nice, "ninja", "-C", f"{self.place}/build", f"-j{jobs}", self.target]
        told = run(command, self.environment(), hear, held=[self.lock])
        self.timed("compile", began)
        if told.status != 0:
            raise self.broken("the compiler fails", told)
        return jobs

    def broken(self, what: str, told: Finished) -> NodeError:
        """The first thing that went wrong as a sentence, and the last lines as they are."""
        output = [clean(line, 400) for line in told.lines[-_SHOWN_LINES:]]
        if any(os.strerror(errno.ENOSPC) in line for line in told.lines):
            return full(self.place, output=output)
        first = first_error(told.lines) or told.ending
        return NodeError(f"build {self.name}: {what}: {first}", "", output=output)

    def install(self) -> list[str]:
        """Copy what runs into the directory beside; the paths below it."""
        built = f"{self.place}/build/bin"
        names = [self.target]
        names += sorted(name for name in os.listdir(built) if re.search(r"\.so(\.|\Z)", name))
        os.makedirs(f"{self.partial}/bin")
        for name in names:
            path = f"{self.partial}/bin/{name}"
            shutil.copyfile(f"{built}/{name}", path, follow_symlinks=False)
            if not os.path.islink(path):
                os.chmod(path, 0o755)  # noqa: S103  everybody may run it
                with open(path, "rb") as file:
                    os.fsync(file.fileno())
        built_files = [name for name in names if not os.path.islink(f"{built}/{name}")]
        return [f"bin/{name}" for name in [*built_files, *self.bring_libraries()]]

    def bring_libraries(self) -> list[str]:
        """Put the toolkit's libraries beside the binary: linked where that is possible, since a
        copy takes as much as all the rest."""
        brought = []
        for library in self.spec.get("libraries") or []:
            source, name = os.path.realpath(str(library)), os.path.basename(str(library))
            target = f"{self.partial}/bin/{name}"
            if not os.path.isfile(source):
                raise NodeError(f"{library} is not there, and {self.target} needs it")
            try:
                os.link(source, target)
            except OSError:
                shutil.copyfile(source, target)
            os.chmod(target, 0o755)  # noqa: S103  everybody may load it
            brought.append(name)
        return brought

    def receive(self) -> tuple[list[str], str]:
        """Take the build that another node has made: its files, and the compiler's version.

        NodeError: it is not the one that is wanted, whole and as its stamp says.
        """
        began = time.monotonic()
        packed, wanted = str(self.spec["packed"]["path"]), self.spec["packed"]["sha256"]
        found = sha256_of(packed) if os.path.isfile(packed) else "nothing"
        if found != wanted:
            told = f"{packed}: sha256 is {found[:16]}..., needed {str(wanted)[:16]}..."
            raise NodeError(told, "run again: it is copied anew")
        os.makedirs(self.partial)
        unpack(packed, self.partial)
        clear(packed)
        stamp = read_stamp(self.partial)
        files = vouched(stamp)
        if stamp.get("key") != self.spec["key"] or f"bin/{self.target}" not in files:
            raise NodeError(f"{packed} holds another build than {self.spec['key']}")
        for name, entry in files.items():
            path = inside(self.partial, name, name)
            if os.path.islink(path) or not os.path.isfile(path):
                raise NodeError(f"{packed} lacks {name}")
            if not isinstance(entry, dict) or sha256_of(path) != entry.get("sha256"):
                raise NodeError(f"{packed}: {name} is not what its stamp says")
        self.timed("receive", began)
        return sorted(files), clean(str(stamp.get("compiler_version") or ""), 200)

    def prove(self) -> None:
        """Run what was installed, when the tree it was built in is gone, as the service will."""
        began = time.monotonic()
        self.words = drop_rights(str(self.spec["user"]))
        binary = f"{self.partial}/bin/{self.target}"
        arguments = [binary, *(str(one) for one in self.spec.get("proof_args") or ["--version"])]
        environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "HOME": "/nonexistent"}
        self.find_libraries(binary, environment)
        told = run([*self.words, *arguments], environment, seconds=_PROOF_SECONDS)
        self.timed("proof", began)
        expected = str(self.spec.get("proof_expect") or "")
        if told.status != 0:
            raise self.broken(f"the built {self.target} does not run", told)
        if expected not in "\n".join(told.lines):
            raise self.broken(f"the built {self.target} does not say {expected!r}", told)
        if self.spec.get("devices_args"):
            self.find_devices(binary, environment)

    def find_libraries(self, binary: str, environment: dict[str, str]) -> None:
        if not shutil.which("ldd"):
            return
        told = run([*self.words, "ldd", binary], environment, seconds=_PROOF_SECONDS)
        lacking = [line.split()[0] for line in told.lines if "not found" in line and line.split()]
        if lacking:
            raise self.broken(f"the built {self.target} lacks {', '.join(lacking)}", told)

    def find_devices(self, binary: str, environment: dict[str, str]) -> None:
        """A binary that sees no card serves on the CPU, in silence and a hundred times slower."""
        arguments = [binary, *(str(one) for one in self.spec["devices_args"])]
        told = run([*self.words, *arguments], environment, seconds=_PROOF_SECONDS)
        if told.status != 0:
            raise self.broken(f"the built {self.target} lists no devices", told)
        self.devices = [clean(line.strip(), 200) for line in told.lines if _DEVICE.match(line)]
        needed = int(self.spec.get("devices") or 0)
        if len(self.devices) < needed:
            found = len(self.devices)
            raise self.broken(f"the built {self.target} sees {found} cards of {needed}", told)

    def publish(self, files: list[str], version: str) -> None:
        """Stamp and rename: from then on the engine is there."""
        stamp = {
            "schema": 1,
            "key": self.spec["key"],
            "archive_sha256": self.spec["sha256"],
            "cmake_args": list(self.spec["cmake_args"]),
            "compiler_version": version,
            "files": {
                name: stamped(f"{self.partial}/{name}", sha256_of(f"{self.partial}/{name}"))
                for name in files
            },
            "seconds": self.seconds,
            "devices": self.devices,
        }
        sync_directory(f"{self.partial}/bin")
        write_stamp(self.partial, stamp)
        old = f"{self.partial}.old"
        put_in_place(self.partial, self.engine_dir, old)
        clear(old)
