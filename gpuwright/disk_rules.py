"""Whether a node's filesystems take what a plan writes: its model, its engine and what makes it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from gpuwright.engine_rows import BuildRow, BuildTagRow, ReleaseRow
from gpuwright.host import Host
from gpuwright.kernel_compilers import toolchain_on
from gpuwright.layout import ARCHIVES, SYSTEM
from gpuwright.lock_rows import LockRow
from gpuwright.model_rows import CheckpointRow
from gpuwright.refusals import DiskTooSmall, Reason
from gpuwright.rows import Device
from gpuwright.site import Site
from gpuwright.toolchains import Toolchain, stands_on, toolchain
from gpuwright.want import Want

DISK_MARGIN_BYTES = 2**30
"""Left free on a filesystem that is written to; the downloads themselves ask for as much."""
ENGINE_BYTES = 256 * 2**20
"""Room for a finished build of llama.cpp, with what the filesystem adds. Libraries of a toolkit
that lie beside it are links, and take none."""

_Need = tuple[str, int, str]
"""Where, how many bytes, and what for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Making:
    """An engine that is made on the node, and from what; nothing of it for one that is not."""

    release: ReleaseRow
    tag: BuildTagRow
    build: BuildRow | None = None
    toolchain: Toolchain | None = None
    lock: LockRow | None = None

    @property
    def installed_bytes(self) -> int:
        """What the packages of its lock take on a disk."""
        proofs = self.lock.proofs if self.lock is not None else ()
        return max((proof.installed_bytes for proof in proofs), default=0)

    @property
    def files(self) -> tuple[tuple[str, str | None, int], ...]:
        """Name, hash and size of each file that it is built from."""
        if self.build is None:
            return ()
        archive = self.build.archive
        wheels = self.toolchain.toolkit.wheels if self.toolchain is not None else ()
        return (
            (archive.filename, archive.sha256, archive.bytes or 0),
            *((wheel.filename, wheel.sha256, wheel.bytes) for wheel in wheels),
        )

    @property
    def toolkit_bytes(self) -> int:
        """Of a toolkit that we unpack."""
        row = self.toolchain.toolkit if self.toolchain is not None else None
        return row.room_bytes if row is not None and row.wheels else 0

    @property
    def fetched_package_bytes(self) -> int:
        """Of a toolkit that is packages, with all that they depend on."""
        return (self.toolchain.toolkit.fetched_bytes or 0) if self.toolchain is not None else 0

    @property
    def package_bytes(self) -> int:
        """The same, installed."""
        return (self.toolchain.toolkit.installed_bytes or 0) if self.toolchain is not None else 0

    @property
    def most_bytes(self) -> int:
        """At least what it takes on any node."""
        packages = self.fetched_package_bytes + self.package_bytes
        if self.build is None:
            return packages + self.installed_bytes
        files = sum(size for _, _, size in self.files)
        return packages + files + self.toolkit_bytes + self.build.work_bytes + ENGINE_BYTES

    def stands(self, host: Host, want: Want) -> bool:
        """Whether one that was made from the same stands on the node."""
        prefix = want.layout.engine_dir(self.release.engine, self.release.release, "")
        stamps = [stamp for path, stamp in host.stamps.items() if path.startswith(prefix)]
        return any(isinstance(stamp, dict) and self._made(stamp) for stamp in stamps)

    def _made(self, stamp: dict[str, object]) -> bool:
        if self.lock is not None:
            return stamp.get("lock") == f"locks/{self.lock.filename}"
        arguments = stamp.get("cmake_args")
        held = set(map(str, arguments)) if isinstance(arguments, list) else set()
        asked = set(self.build.cuda_args) if self.build is not None else set()
        return asked <= held if self.tag.device is Device.CUDA else not asked & held


def making_of(site: Site, release: ReleaseRow, tag: BuildTagRow) -> Making:
    """How the engine is made on this node, where it can be."""
    host, matrix = site.host, site.matrix
    if not tag.applicable:
        return Making(release=release, tag=tag)
    if release.build is not None:
        found = toolchain(host, tag, site.want, matrix)
        chain = found if isinstance(found, Toolchain) else None
        return Making(release=release, tag=tag, build=release.build, toolchain=chain)
    if release.environment is None:
        return Making(release=release, tag=tag)
    lock = matrix.lock(release.engine, release.release, tag.tag, host.architecture or "")
    found = toolchain_on(site, release)
    chain = found if isinstance(found, Toolchain) else None
    return Making(release=release, tag=tag, lock=lock, toolchain=chain)


def disk_reason(
    host: Host, want: Want, checkpoints: tuple[CheckpointRow, ...], making: Making
) -> Reason | None:
    """The first filesystem that cannot take all that is still to be written to it, or None.
    `checkpoints`: the model's, and those that stand beside it, of which the last is left out first:
    the row is the first that is too much.

    What interrupted runs left is finished or removed, so it is room either way.
    """
    layout = want.layout
    most = sum(map(_most_bytes, checkpoints)) + DISK_MARGIN_BYTES + making.most_bytes
    places = (layout.model_store, layout.cache, layout.engines, ARCHIVES, SYSTEM)
    disks = [host.disks.get(path) for path in places]
    if all(disk is None or disk.free_bytes >= most for disk in disks):
        return None
    stored: list[_Need] = [
        (layout.model_store, missing_bytes(host, want, each), each.id) for each in checkpoints
    ]
    needs = list(stored)
    if not making.stands(host, want):
        needs += _making_needs(host, want, making)
    by_mount: dict[str, tuple[str, int, int, list[str]]] = {}
    for path, size, what in needs:
        disk = host.disks.get(path)
        if disk is None or size <= 0:
            continue
        first_path, sum_bytes, _, names = by_mount.get(disk.mount, (path, 0, 0, []))
        by_mount[disk.mount] = (first_path, sum_bytes + size, disk.free_bytes, [*names, what])
    for mount, (path, size, free, names) in by_mount.items():
        over = size + DISK_MARGIN_BYTES - free
        if over > 0:
            return DiskTooSmall(
                path=path,
                mount=mount,
                needed_bytes=size + DISK_MARGIN_BYTES,
                free_bytes=free,
                what=" and ".join(names),
                row=_too_much(stored, over),
            )
    return None


def _too_much(stored: list[_Need], over: int) -> str:
    """The first checkpoint of `stored` for which there is no room; all are too much by `over`."""
    for _, size, name in reversed(stored[1:]):
        over -= size
        if over <= 0:
            return name
    return stored[0][2]


def _making_needs(host: Host, want: Want, making: Making) -> list[_Need]:
    layout, build, found = want.layout, making.build, making.toolchain
    packages: list[_Need] = []
    if found is not None and not stands_on(found.toolkit, host):
        packages = [
            (ARCHIVES, making.fetched_package_bytes, "packages of a toolkit"),
            (SYSTEM, making.package_bytes, "what they install"),
        ]
    if build is None:
        # Its packages are linked into it from uv's cache, or copied where that is another disk.
        return [*packages, (layout.engines, making.installed_bytes, "the engine")]
    sources = f"{layout.cache}/sources"
    lacking = _unstamped(host, sources, [(name, sha256) for name, sha256, _ in making.files])
    files = sum(size for name, _, size in making.files if name in lacking)
    prefix = layout.engine_dir(making.release.engine, making.release.release, "")
    left = sum(
        held
        for path, held in host.partials.items()
        if path.startswith(prefix) and path.endswith((".partial", ".partial.old"))
    )
    toolkit = f"{found.directory(layout)}/gpuwright.json" if found is not None else None
    stands = toolkit is not None and isinstance(host.stamps.get(toolkit), dict)
    unpacked = 0 if stands else making.toolkit_bytes
    if found is not None:
        unpacked -= _left(host, f"{found.directory(layout)}.partial")
    what = "its source and toolkit" if making.toolkit_bytes else "its source"
    return [
        (layout.cache, files - _left(host, f"{sources}/.partial"), what),
        (layout.engines, unpacked, "the unpacked toolkit"),
        (layout.cache, build.work_bytes - _left(host, f"{layout.cache}/build"), "the build"),
        (layout.engines, ENGINE_BYTES - left, "the engine"),
        *packages,
    ]


@lru_cache(maxsize=1 << 10)
def _most_bytes(checkpoint: CheckpointRow) -> int:
    """At least what `missing_bytes` says on any node."""
    if checkpoint.files is None:
        return checkpoint.disk_bytes or 0
    sources = [source for file in checkpoint.files for source in file.sources]
    return sum(file.bytes for file in checkpoint.files) + sum(each.bytes or 0 for each in sources)


def missing_bytes(host: Host, want: Want, checkpoint: CheckpointRow) -> int:
    """Bytes still to be written for `checkpoint`: files that no stamp vouches for, and a package
    that one of them is unpacked from, less what an interrupted download left of them."""
    directory = want.layout.checkpoint_dir(checkpoint.id)
    files = checkpoint.files
    if files is None:
        needed = checkpoint.disk_bytes or 0
    else:
        names = _unstamped(host, directory, [(file.path, file.sha256) for file in files])
        missing = [file for file in files if file.path in names]
        packages = [
            source.bytes or 0 for file in missing for source in file.sources if source.member
        ]
        needed = sum(file.bytes for file in missing) + max(packages, default=0)
    return max(0, needed - _left(host, f"{directory}/.partial"))


def _unstamped(host: Host, directory: str, files: Iterable[tuple[str, str | None]]) -> set[str]:
    """Names of `files` (name, sha256) that are not there as the stamp of `directory` says."""
    stamp = host.stamps.get(f"{directory}/gpuwright.json")
    held = stamp.get("files") if isinstance(stamp, dict) else None
    held = held if isinstance(held, dict) else {}
    return {
        name
        for name, sha256 in files
        if not isinstance(held.get(name), dict)
        or held[name].get("sha256") != sha256
        or (host.files or {}).get(f"{directory}/{name}", True) is None
    }


def _left(host: Host, directory: str) -> int:
    return host.partials.get(directory, 0)
