"""Rows about engines: releases and their builds."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from gpuwright.attention_rows import AutoOrder
from gpuwright.plan import Source
from gpuwright.rows import Claim, Device, hash_faults

_INSIDE = re.compile(r"(?!.*//)(?:(?!\.\.?/)[\w.+-]+/)*(?!\.\.?\Z)[\w.+-]+", re.ASCII)


class MemoryModel(StrEnum):
    """Whose arithmetic says what a service takes; `unknown` plans nothing."""

    VLLM = "vllm"
    VLLM_CPU = "vllm-cpu"
    """The same pool, in RAM, which the plan sizes."""
    SGLANG = "sglang"
    LLAMA_CPP = "llama.cpp"
    COARSE = "coarse"
    """Nobody printed the engine's own arithmetic: upper ends of what others take."""
    COARSE_EXPERTS_IN_RAM = "coarse-experts-in-ram"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class ArchiveRow:
    """Source of an engine's build; `sha256: null` with `unpinned` is never installed from."""

    kind: str
    filename: str
    subdir: str
    """Directory that holds the top CMakeLists.txt, below the archive's own top directory."""
    sha256: str | None
    bytes: int | None = None
    project: str | None = None
    version: str | None = None
    url: str | None = None
    unpinned: str | None = None

    def faults(self) -> Iterator[str]:
        if self.kind not in ("python_package", "url"):
            yield f".kind: {self.kind!r} is none of python_package, url"
        if self.kind == "python_package" and not (self.project and self.version):
            yield ": a python_package needs project and version"
        if self.kind == "url" and not self.url:
            yield ".url: missing"
        yield from hash_faults(self.sha256)

    def source(self) -> Source:
        return Source(
            kind=self.kind,
            project=self.project,
            version=self.version,
            filename=self.filename,
            sha256=self.sha256,
            bytes=self.bytes,
            url=self.url,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheKernels:
    """Which types of the cache a build for cards has attention kernels for."""

    option: str
    """Names them to CMake, as pairs of the types of keys and values."""
    always: tuple[str, ...]
    planned: tuple[str, ...]
    """Only where the plan has this type: kernels take long to compile."""

    def argument(self, dtype: str) -> str:
        dtypes = (*self.always, *(each for each in self.planned if each == dtype))
        return f"-D{self.option}={';'.join(f'{each}-{each}' for each in dtypes)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildRow:
    """How an engine is built on the node; `cmake_args` are those of every build tag."""

    sources: tuple[ArchiveRow, ...]
    cmake_args: tuple[str, ...]
    cpu_options: dict[str, str]
    """CPU flag of /proc/cpuinfo -> the CMake option that it allows."""
    target: str
    proof_args: tuple[str, ...]
    proof_expect: str
    work_bytes: int
    """Room that unpacking and building take, beyond the archive."""
    memory_bytes_per_job: int
    cuda_args: tuple[str, ...] = ()
    """Those of a build for cards, beside what the toolkit and the cards say."""
    devices_args: tuple[str, ...] = ()
    """Asks the finished binary for the cards that it can use."""
    cache_kernels: CacheKernels | None = None
    additions: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Files that the archive lacks and its build needs, below `subdir` -> their lines."""

    @property
    def archive(self) -> ArchiveRow:
        """The first source whose hash is known: the only kind that is installed from."""
        return next(source for source in self.sources if source.sha256 is not None)

    @property
    def archive_sha256(self) -> str:
        sha256 = self.archive.sha256
        assert sha256 is not None
        return sha256

    @property
    def source_subdir(self) -> str:
        return self.archive.subdir

    def faults(self) -> Iterator[str]:
        if all(source.sha256 is None for source in self.sources):
            yield ".sources: none of them has a sha256"
        for path in self.additions:
            if path.startswith("/") or ".." in path.split("/"):
                yield f".additions: {path!r} is no path below the source"


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnToolkit:
    """A CUDA toolkit whose parts are in the environment's wheels, laid out by links in a directory
    of its own as compilers look for one."""

    cuda: str
    """The compiler's own version."""
    root: str
    """Where the wheels put it, below site-packages."""
    links: dict[str, str]
    """Name below the toolkit's directory -> what it leads to, below `root`."""
    driver: str
    """Name of the link that leads to the driver's own library, which no wheel brings."""

    def faults(self) -> Iterator[str]:
        if "bin" not in self.links:
            yield ".links: bin is missing"
        for name in (self.root, self.driver, *self.links, *self.links.values()):
            if not _INSIDE.fullmatch(name):
                yield f": {name!r} is no path below another"


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeToolkit:
    """A CUDA toolkit of the node, for an environment whose wheels bring no compiler."""

    cuda: str
    """Those that go with its torch, as a range."""
    needed: bool
    """Whether nothing is served without one, so that it is installed; else it is used where it
    stands."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvironmentRow:
    """How a Python engine's environment is proven and what serves in it."""

    imports: tuple[str, ...]
    """Modules that must import, the compiled ones among them."""
    serve: tuple[str, ...]
    """The server's command below the environment, without its arguments."""
    libraries: tuple[str, ...] = ()
    """Shared libraries of the system that its wheels do not bring."""
    compiles: bool = False
    """Whether it compiles code as it runs, against Python's headers."""
    toolkit: OwnToolkit | None = None
    """With which it compiles kernels for cards."""
    node_toolkit: NodeToolkit | None = None
    """The same, where its wheels bring none."""
    kernels: tuple[str, ...] = ()
    """Shared objects of its wheels, below site-packages, that must hold code for every card."""

    def faults(self) -> Iterator[str]:
        for name in ("imports", "serve"):
            if not getattr(self, name):
                yield f".{name}: empty"
        if self.toolkit is not None and self.node_toolkit is not None:
            yield ".node_toolkit: stands only where its wheels bring no toolkit"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class BuildTagRow:
    """One build of a release: the device it runs on and the code its binaries hold."""

    tag: str
    device: Device
    capabilities: tuple[str, ...]
    applicable: bool
    cuda: str | None = None
    not_applicable: str | None = None
    """One line: why this version of gpuwright does not install it."""
    cmake_args: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    """Where it is had, if not wherever the release is."""
    capabilities_on: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Architecture -> what its binaries hold code for there, where that is not `capabilities`."""
    only_pinned: bool = False
    """Whether it serves only who pins its engine."""

    def faults(self) -> Iterator[str]:
        if self.applicable != (self.not_applicable is None):
            yield ".not_applicable: stands exactly where applicable is false"
        if (self.device is Device.CUDA) != (self.cuda is not None):
            yield ".cuda: stands exactly where device is cuda"

    def carried(self, architecture: str | None) -> tuple[str, ...]:
        """Compute capabilities that its binaries hold code for on a node of this architecture."""
        return self.capabilities_on.get(architecture or "", self.capabilities)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ReleaseRow:
    id: str
    engine: str
    release: str
    memory_model: MemoryModel
    formats: tuple[str, ...]
    architectures: tuple[str, ...]
    glibc: str | None
    python: tuple[str, ...]
    """Python minor versions that its wheels serve; empty: it is no Python program."""
    kv_cache_dtypes: tuple[str, ...]
    """All that it takes; those after the first `auto_kv_cache_dtypes` only when asked for."""
    auto_kv_cache_dtypes: int
    """How many of them, from the first on, a plan may choose by itself."""
    auto_order: tuple[AutoOrder, ...]
    build_tags: tuple[BuildTagRow, ...]
    sources: tuple[Claim, ...]
    build: BuildRow | None = None
    guarded: bool = True
    """Whether its server asks for a key; one that does not is bound to loopback alone."""
    environment: EnvironmentRow | None = None
    glibc_on: dict[str, str] = field(default_factory=dict)
    """Architecture -> the oldest C library there, where it is another than `glibc`."""
    unknown: dict[str, str] = field(default_factory=dict)

    def oldest_glibc(self, architecture: str | None) -> str | None:
        return self.glibc_on.get(architecture or "", self.glibc)

    def build_tag(self, tag: str) -> BuildTagRow:
        return next(row for row in self.build_tags if row.tag == tag)
