"""What identifies a Python engine's environment, and what the node is told to make it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import quote

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gpuwright.catalogue import Matrix
from gpuwright.engine_rows import EnvironmentRow, OwnToolkit, ReleaseRow
from gpuwright.host import Host
from gpuwright.interpreters import Interpreter, interpreter
from gpuwright.kernel_compilers import knows_all, node_toolchain
from gpuwright.layout import DRIVER_LIBRARIES, RUNTIME, TOOLKIT, USER, Layout
from gpuwright.lock_rows import LOCKS, LockRow
from gpuwright.plan import ModelFile, Plan
from gpuwright.python_index import default_index_url
from gpuwright.python_rows import PYTHON_RELEASES, PythonRow, UvRow
from gpuwright.refusals import MatrixError
from gpuwright.retiring import retire_spec
from gpuwright.rows import DistroRow
from gpuwright.toolchains import Toolchain
from gpuwright.want import Want

SCHEMA = 1
_SPARE_PERCENT = 10
"""Room beyond what an environment took where it was proven: filesystems differ."""
_SILENCE_SECONDS = 20
"""How long an index may say nothing, each of three times."""
_HASH = "--hash=sha256:"


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """One environment: its content key, and the rows that it is made from."""

    key: str
    lock: LockRow
    row: EnvironmentRow
    python: Interpreter
    uv: UvRow
    requirements: dict[str, tuple[str, ...]]
    toolchain: Toolchain | None = None
    """The node's own that it compiles with."""

    @property
    def toolchain_packages(self) -> tuple[str, ...]:
        """What of the distribution it compiles kernels with."""
        found = self.toolchain
        if found is None:
            return ()
        return (found.compiler, *found.kernel_packages)

    @property
    def archive(self) -> ModelFile:
        """What has to be fetched before anything can be installed."""
        return self.uv.file

    @property
    def files(self) -> tuple[ModelFile, ...]:
        return (self.archive,)

    @property
    def bytes(self) -> int:
        """Room that it takes."""
        installed = self.lock.proof(self.python.minor).installed_bytes
        return installed * (100 + _SPARE_PERCENT) // 100


def environment_of(
    *, want: Want, plan: Plan, release: ReleaseRow, distro: DistroRow, node: Host, matrix: Matrix
) -> Environment:
    """The environment of a plan that can be applied. MatrixError: a row of it is missing."""
    tag, architecture = release.build_tag(plan.build_tag), node.architecture or ""
    lock = matrix.lock(release.engine, release.release, tag.tag, architecture)
    python = interpreter(node, release, tag, matrix)
    uv = next((row for row in matrix.uv if row.architecture == architecture), None)
    if release.environment is None or lock is None or lock.sha256 is None:
        raise MatrixError(f"{release.id}: nothing is locked of its build {tag.tag}")
    if python is None or uv is None:
        missing = "pythons.yaml" if python is None else "uv.yaml"
        raise MatrixError(f"{release.id}: {missing} has no row for it on {architecture}")
    found = node_toolchain(node, release, want, matrix)
    if found is not None and not isinstance(found, Toolchain):
        raise MatrixError(f"{release.id}: {found.sentence()}")
    if found is not None and not knows_all(
        found, (gpu.compute_capability for gpu in plan.gpus), matrix
    ):
        found = None
    return Environment(
        key=content_key(
            lock.sha256, python, f"{distro.id}-{architecture}", release.environment.toolkit
        ),
        lock=lock,
        row=release.environment,
        python=python,
        uv=uv,
        requirements=requirements(lock, python.minor, architecture),
        toolchain=found,
    )


def content_key(
    lock_sha256: str, python: Interpreter, platform: str, toolkit: OwnToolkit | None = None
) -> str:
    """Twelve hex digits over the lock, the Python, the platform and the links of a toolkit.

    Of a Python of the distribution's own only the minor version counts: what is installed for it
    serves all its patches, and an update of the system's installs nothing anew.
    """
    content: dict[str, Any] = {
        "schema": SCHEMA,
        "lock": lock_sha256,
        "python": python.row.sha256 if python.row else [python.minor, python.executable],
        "platform": platform,
    }
    if toolkit is not None:
        content["toolkit"] = [toolkit.root, toolkit.links, toolkit.driver]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


@cache
def requirements(lock: LockRow, minor: str, architecture: str) -> dict[str, tuple[str, ...]]:
    """`name==version` -> hashes: the lines of the lock that are for this Python and platform.

    MatrixError: the file is not the one of its row.
    """
    try:
        text = (LOCKS / lock.filename).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not text"
        raise MatrixError(f"locks/{lock.filename}: {reason}") from error
    if hashlib.sha256(text.encode()).hexdigest() != lock.sha256:
        raise MatrixError(f"locks/{lock.filename}: its sha256 is not that of its row")
    place = {
        "python_version": minor,
        "python_full_version": f"{minor}.0",
        "platform_machine": architecture,
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    found: dict[str, tuple[str, ...]] = {}
    for line in text.replace("\\\n", " ").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        words, *hashes = line.split(_HASH)
        each = Requirement(words.strip())
        if each.marker is None or each.marker.evaluate({**place, "extra": ""}):
            version = str(each.specifier).removeprefix("==")
            found[f"{canonicalize_name(each.name)}=={version}"] = tuple(
                one.strip() for one in hashes
            )
    return found


def environment_spec(
    environment: Environment, want: Want, engine_dir: str, *, verify: str
) -> dict[str, Any]:
    """The carried environment program's spec."""
    layout, toolkit = want.layout, environment.row.toolkit
    return {
        "key": environment.key,
        "engine_dir": engine_dir,
        "lock": f"{RUNTIME}/{engine_dir.rsplit('/', 1)[-1]}.lock",
        "lock_id": f"locks/{environment.lock.filename}",
        "requirements": {name: list(found) for name, found in environment.requirements.items()},
        "python": _python(environment.python, want, layout),
        "uv": f"{layout.cache}/sources/{environment.archive.path}",
        "cache_dir": f"{layout.cache}/uv",
        "index": index_of(want),
        "toolkit": toolkit and toolkit_links(toolkit, environment.python.minor),
        "imports": list(environment.row.imports),
        "env": dict(PROOF_ENVIRONMENT),
        "user": USER,
        "kept": layout.kernels(environment.lock.engine, environment.lock.release),
        "need_bytes": environment.bytes,
        "retire": retire_spec(want),
        "verify": verify,
    }


def toolkit_links(
    row: OwnToolkit, minor: str, driver: Sequence[str] = DRIVER_LIBRARIES
) -> dict[str, Any]:
    """What the carried program makes a toolkit of; `driver`: places of the driver's library."""
    root = f"lib/python{minor}/site-packages/{row.root}"
    return {
        "links": {f"{TOOLKIT}/{name}": f"{root}/{to}" for name, to in row.links.items()},
        "driver": {f"{TOOLKIT}/{row.driver}": list(driver)},
    }


PROOF_ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
"""Nothing that is asked of an engine may reach for the network."""


def index_of(want: Want) -> dict[str, Any]:
    """Where a node's packages come from."""
    offline = want.python_offline
    return {
        "default": None if offline else (want.python_index or default_index_url()),
        "extra": list(want.python_extra_indexes or ()),
        "find_links": list(want.python_find_links or ()),
        "offline": offline,
        "ca_bundle": want.ca_bundle,
        "proxy": want.proxy,
        "timeout_seconds": _SILENCE_SECONDS,
    }


def _python(python: Interpreter, want: Want, layout: Layout) -> dict[str, Any]:
    if python.row is None:
        return {"executable": python.executable}
    mirror = want.python_mirror or PYTHON_RELEASES
    if mirror.startswith("/"):
        mirror = f"file://{quote(mirror)}"
    return {
        "place": layout.pythons,
        "directory": python.row.directory,
        "minor": python.minor,
        "version": python.row.python,
        "mirror": mirror,
        "listing": json.dumps(_listing(python.row, mirror)),
    }


def _listing(row: PythonRow, mirror: str) -> dict[str, Any]:
    """The one row as uv's own list has it, so that uv checks the archive by our hash."""
    major, minor, patch = (int(part) for part in row.python.split("."))
    entry = {
        "name": "cpython",
        "arch": {"family": row.architecture, "variant": None},
        "os": "linux",
        "libc": "gnu",
        "major": major,
        "minor": minor,
        "patch": patch,
        "prerelease": "",
        "url": f"{mirror}/{quote(row.path)}",
        "sha256": row.sha256,
        "variant": None,
        "build": row.path.split("/")[0],
    }
    return {f"cpython-{row.python}-linux-{row.architecture}-gnu": entry}
