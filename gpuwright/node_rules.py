"""Rules about the node as a whole: all of them are asked, and all that fail are reported."""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import ip_address

from gpuwright.adapters import rank_reasons
from gpuwright.catalogue import Matrix
from gpuwright.expected import directories
from gpuwright.host import Entry, Host, Listener
from gpuwright.layout import Layout
from gpuwright.named_files import naming_reasons
from gpuwright.onnode.machine import CONTAINERS
from gpuwright.refusals import GpusUnusable, Needs, PortTaken, Reason, Unlisted
from gpuwright.remedies import Remedy
from gpuwright.versions import at_least
from gpuwright.want import Want

MIN_PYTHON = "3.8"
"""What the programs that run on a node need."""

_UVM = "/dev/nvidia-uvm"
_WRITABLE_BY_OTHERS = 0o022
_READABLE_BY_ALL = 0o005
_UNKNOWN_MODE = 0o777

GPU_REMEDIES = {
    "no_driver": "the NVIDIA driver installed and loaded",
    "driver_mismatch": "a reboot, so that kernel module and libraries are of one version",
    "gpu_lost": "a power cycle of the machine, and a look at the kernel log for Xid lines",
    "unreadable": "a driver that answers; see what nvidia-smi says",
}


def node_reasons(host: Host, want: Want, matrix: Matrix) -> Iterator[Reason]:
    """Everything about the node that no choice of engine or model can mend."""
    reasons = list(_reasons(host, want, matrix))
    yield from reasons
    if host.gpu_status not in ("ok", "no_gpu") and not want.cpu_only:
        yield GpusUnusable(
            status=host.gpu_status,
            detail=host.gpu_detail,
            help=_gpu_remedy(host),
            cpu_instead=not reasons,
        )


def _reasons(host: Host, want: Want, matrix: Matrix) -> Iterator[Reason]:
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
    yield from filter(None, (_bind_reason(host, want),))
    yield from _port_taken(host, want)
    yield from naming_reasons(want, host.named)
    yield from rank_reasons(want, host.named)
    yield from _directory_reasons(host, want)
    yield from filter(None, (_uvm_reason(host, want),))
    yield from _mount_reasons(host, want)


def _uvm_reason(host: Host, want: Want) -> Reason | None:
    """A container has the files in /dev that its host passed; on its own, a node makes them."""
    nodes = host.device_nodes
    passed = host.virtualization in CONTAINERS and host.virtualization != "wsl"
    if want.cpu_only or not host.gpus or nodes is None or not passed or _UVM in nodes:
        return None
    return Needs(
        subject=f"container ({host.virtualization})",
        needed=f"{_UVM} from its host, without which CUDA does not start",
        found=", ".join(sorted(nodes)) or "no file of NVIDIA's in /dev",
        help=f"{_UVM} passed into the container",
    )


def _gpu_remedy(host: Host) -> str:
    known = host.driver.remedy() if host.gpu_status == "no_driver" else None
    return known or GPU_REMEDIES[host.gpu_status]


def _mount_reasons(host: Host, want: Want) -> Iterator[Reason]:
    """What is written to must be writable, and engines must be allowed to run where they lie."""
    layout = want.layout
    for path in dict.fromkeys((layout.engines, layout.model_store, layout.cache)):
        disk = host.disks.get(path)
        if disk is not None and disk.read_only:
            yield Needs(
                subject=f"filesystem {disk.mount} below {path}",
                needed="one that can be written to",
                found="mounted read-only",
                help=f"mount -o remount,rw {disk.mount}, or what the kernel log says of it",
            )
        elif disk is not None and disk.noexec and path == layout.engines:
            yield Needs(
                subject=f"filesystem {disk.mount} below {path}",
                needed="one whose programs may run",
                found="mounted noexec",
                help=f"mount -o remount,exec {disk.mount}",
            )


def _directory_reasons(host: Host, want: Want) -> Iterator[Reason]:
    """A directory that is there already must be one that is safe to keep verified files in.

    The operator's own is not repaired, only judged: its owner and mode have their reasons. Ours is.
    """
    ours = Layout()
    for key, path, default in (
        ("model_store", want.model_store, ours.model_store),
        ("cache", want.cache, ours.cache),
    ):
        entry = (host.files or {}).get(path)
        if entry is not None:
            reason = _directory_reason(f"{key} {path}", path, entry, chosen=path != default)
            if reason is not None:
                yield reason
    keys = (want.model_store, want.cache)
    for path in (row.path for row in directories(want.layout) if row.path not in keys):
        entry = (host.files or {}).get(path)
        if entry is not None and entry.type != "dir":
            yield Needs(
                subject=path,
                needed="a directory, or another disk mounted there",
                found="a link" if entry.type == "link" else "another kind of file",
                help=f"what it leads to mounted there (mount --bind), in place of the link {path}"
                if entry.type == "link"
                else f"{path} moved away",
            )


def _directory_reason(subject: str, path: str, entry: Entry, *, chosen: bool) -> Reason | None:
    if entry.type == "link":
        help = "the path that the link leads to, in its place"
        return Needs(subject=subject, needed="a directory", found="a link", help=help)
    if entry.type != "dir":
        return Needs(subject=subject, needed="a directory", found="another kind of file")
    if not chosen:
        return None
    found = f"mode {entry.mode}, owner {entry.owner}"
    if entry.owner not in ("root", "0"):
        return Needs(
            subject=subject,
            needed="a directory of root's",
            found=found,
            help=f"a directory of its own below {path}, or chown root {path}",
        )
    mode = int(entry.mode, 8) if re.fullmatch("[0-7]{1,4}", entry.mode) else _UNKNOWN_MODE
    if mode & _WRITABLE_BY_OTHERS:
        return Needs(
            subject=subject,
            needed="a directory that root alone writes to",
            found=found,
            help=f"a directory of its own below {path}, or chmod go-w {path}",
        )
    if mode & _READABLE_BY_ALL != _READABLE_BY_ALL:
        return Needs(
            subject=subject,
            needed="a directory that the service's user may enter and read",
            found=found,
            help=f"chmod o+rx {path}",
        )
    return None


def _bind_reason(host: Host, want: Want) -> Reason | None:
    """A service cannot listen on an address that is not the node's."""
    known, bind = host.addresses, ip_address(want.bind)
    if known is None or want.bind in known:
        return None
    if bind.version == 4 and (bind.is_loopback or bind.is_unspecified):
        return None
    if bind.is_loopback and "::" in known:
        return None
    every = "0.0.0.0"  # noqa: S104  said to people, and bound only if they want it
    return Needs(
        subject=f"bind {want.bind}",
        needed=f"an address of the node: {', '.join(['127.0.0.1', *known])}, or {every} for all",
        found="none of them",
        help=Remedy(words="`bind: 127.0.0.1`, for this node alone", want=(("bind", "127.0.0.1"),)),
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
