"""Rules about the node as a whole: all of them are asked, and all that fail are reported."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address

from gpuwright.catalogue import Matrix
from gpuwright.engine_rows import BuildRow
from gpuwright.host import Host, Listener
from gpuwright.model_rows import CheckpointRow
from gpuwright.refusals import DiskTooSmall, GpusUnusable, Needs, PortTaken, Reason, Unlisted
from gpuwright.versions import at_least
from gpuwright.want import Want

MIN_PYTHON = "3.8"
"""What the programs that run on a node need."""
DISK_MARGIN_BYTES = 512 * 2**20
ENGINE_BYTES = 256 * 2**20
"""Room for a finished build of llama.cpp, with what the filesystem adds."""

GPU_REMEDIES = {
    "no_driver": "the NVIDIA driver installed and loaded",
    "driver_mismatch": "a reboot, so that kernel module and libraries are of one version",
    "gpu_lost": "a power cycle of the machine, and a look at the kernel log for Xid lines",
    "unreadable": "a driver that answers; see what nvidia-smi says",
}


def node_reasons(host: Host, want: Want, matrix: Matrix) -> Iterator[Reason]:
    """Everything about the node that no choice of engine or model can mend."""
    if host.uid != 0:
        found = "unknown" if host.uid is None else f"user id {host.uid}"
        yield Needs(
            subject="privileges",
            needed="root",
            found=found,
            help="a connection as root, or sudo for this host",
        )
    if not host.systemd_running:
        inside = host.virtualization not in (None, "none")
        found = "another program" + (f" ({host.virtualization})" if inside else "")
        yield Needs(subject="process 1", needed="systemd", found=found)
    if matrix.find_distro(host) is None:
        name = host.os_name or f"{host.os_id or 'unknown'} {host.os_version or ''}".strip()
        yield Unlisted(subject=name, file="distros.yaml")
    if host.python is None or not at_least(host.python, MIN_PYTHON):
        yield Needs(subject="Python", needed=f">= {MIN_PYTHON}", found=host.python or "none")
    yield from _port_taken(host, want)
    if host.gpu_status not in ("ok", "no_gpu") and not want.cpu_only:
        yield GpusUnusable(
            status=host.gpu_status,
            detail=host.gpu_detail,
            help=GPU_REMEDIES[host.gpu_status],
        )


def _port_taken(host: Host, want: Want) -> Iterator[Reason]:
    for listener in host.listeners:
        if listener.port != want.port or not _overlap(listener.address, want.bind):
            continue
        if _is_ours(listener, host, want):
            continue
        yield PortTaken(
            address=listener.address,
            port=listener.port,
            process=listener.process,
            pid=listener.pid,
            unit=listener.unit,
        )
        return


def _is_ours(listener: Listener, host: Host, want: Want) -> bool:
    if listener.unit == want.layout.unit_name(want.service):
        return True
    return host.service is not None and listener.pid in host.service.pids


def _overlap(listening: str, wanted: str) -> bool:
    """Whether a socket on `listening` keeps one from binding `wanted`."""
    if listening == wanted:
        return True
    try:
        found, asked = ip_address(listening.split("%")[0]), ip_address(wanted)
    except ValueError:
        return True
    # A wildcard of IPv6 takes the IPv4 port too, unless the program opted out: not visible to us.
    if found.version == 6 and found.is_unspecified:
        return True
    if asked.version == 6 and asked.is_unspecified:
        return True
    same_family = found.version == asked.version
    return same_family and (found == asked or found.is_unspecified or asked.is_unspecified)


def disk_reason(
    host: Host, want: Want, checkpoint: CheckpointRow, engine: str, build: BuildRow | None
) -> Reason | None:
    """The first filesystem that cannot take what is still to be written, or None."""
    layout = want.layout
    needs = [(layout.model_store, missing_bytes(host, want, checkpoint), checkpoint.id)]
    engine_prefix = f"{layout.engines}/{engine}-"
    if build is not None and not any(path.startswith(engine_prefix) for path in host.stamps):
        archive = build.archive.bytes or 0
        needs.append((layout.cache, build.work_bytes + archive, "the build"))
        needs.append((layout.engines, ENGINE_BYTES, "the engine"))
    by_mount: dict[str, tuple[str, int, int, list[str]]] = {}
    for path, size, what in needs:
        disk = host.disks.get(path)
        if disk is None or size == 0:
            continue
        first_path, sum_bytes, _, names = by_mount.get(disk.mount, (path, 0, 0, []))
        by_mount[disk.mount] = (first_path, sum_bytes + size, disk.free_bytes, [*names, what])
    for mount, (path, size, free, names) in by_mount.items():
        if size + DISK_MARGIN_BYTES > free:
            return DiskTooSmall(
                path=path,
                mount=mount,
                needed_bytes=size + DISK_MARGIN_BYTES,
                free_bytes=free,
                what=" and ".join(names),
            )
    return None


def missing_bytes(host: Host, want: Want, checkpoint: CheckpointRow) -> int:
    """Bytes of `checkpoint` that are not on the node yet, by the stamp beside them."""
    stamp = host.stamps.get(f"{want.layout.checkpoint_dir(checkpoint.id)}/gpuwright.json")
    held = stamp.get("files") if isinstance(stamp, dict) else None
    held = held if isinstance(held, dict) else {}
    if checkpoint.files is None:
        return checkpoint.max_bytes
    return sum(
        file.bytes
        for file in checkpoint.files
        if not isinstance(held.get(file.path), dict) or held[file.path].get("sha256") != file.sha256
    )
