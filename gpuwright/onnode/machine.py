"""What a node is: its distribution, C library, processor, memory, init and kind of machine."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sys

from gpuwright.onnode.dpkg import packages
from gpuwright.onnode.outcome import NodeError, clean
from gpuwright.onnode.topology import cores, memory_limit
from gpuwright.onnode.tree import Tree

CONTAINERS = ("lxc", "lxc-libvirt", "systemd-nspawn", "docker", "podman", "wsl", "rkt", "openvz")
"""Kinds that see a host's PCI bus and driver rather than their own."""

_SYSTEMD_LIBRARIES = ("/usr/lib/systemd", "/lib/systemd", "/usr/lib64/systemd")
_VENDORS = (
    ("QEMU", "qemu"),
    ("KVM", "kvm"),
    ("VMware", "vmware"),
    ("innotek", "oracle"),
    ("VirtualBox", "oracle"),
    ("Xen", "xen"),
    ("Amazon EC2", "amazon"),
    ("Google Compute Engine", "google"),
    ("Bochs", "bochs"),
    ("Parallels", "parallels"),
    ("Virtual Machine", "microsoft"),
)


def os_release(text: str) -> dict[str, str]:
    """The assignments of an os-release file: shell quoting removed, other lines passed over."""
    found = {}
    for line in text.splitlines():
        name, sign, content = line.strip().partition("=")
        if not sign or not re.match(r"[A-Za-z_][A-Za-z0-9_]*\Z", name):
            continue
        content = content.strip()
        if len(content) >= 2 and content[0] == content[-1] and content[0] in "\"'":
            content = content[1:-1]
        found[name] = clean(re.sub(r"\\(.)", r"\1", content), 200)
    return found


def system(tree: Tree) -> dict[str, object]:
    text = tree.text("/etc/os-release") or tree.text("/usr/lib/os-release") or ""
    named = os_release(text)
    kernel = os.uname()
    return {
        "id": named.get("ID"),
        "version_id": named.get("VERSION_ID"),
        "codename": named.get("VERSION_CODENAME"),
        "name": named.get("PRETTY_NAME") or named.get("NAME"),
        "kernel": tree.word("/proc/sys/kernel/osrelease") or kernel.release,
        "architecture": kernel.machine,
        "identity": identity(tree),
    }


def identity(tree: Tree) -> str | None:
    """Sixteen hex digits that are equal exactly for two looks at one running machine.

    Machine ids are cloned with images, and containers share their host's boot id: only with the
    start of process 1 beside them are they one machine's alone. None: none of this can be read.
    """
    started = (tree.text("/proc/1/stat") or "").rpartition(")")[2].split()[19:20]
    words = [tree.word("/etc/machine-id"), tree.word("/proc/sys/kernel/random/boot_id"), *started]
    if not all(words) or not started:
        return None
    return hashlib.sha256(" ".join(str(word) for word in words).encode()).hexdigest()[:16]


def glibc() -> str | None:
    """The C library's version; None where it is not glibc."""
    try:
        answer = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        return None
    name, _, version = answer.partition(" ")
    return version if name == "glibc" else None


def python() -> dict[str, object]:
    return {
        "version": "{}.{}.{}".format(*sys.version_info[:3]),
        "executable": sys.executable or None,
    }


def cpu(tree: Tree) -> dict[str, object]:
    """Model and flags of the first processor; the kernel may need long to describe all of them."""
    model = flags = None
    for line in (tree.text("/proc/cpuinfo", 64 << 10) or "").splitlines():
        key, _, content = line.partition(":")
        key = key.strip().lower()
        if key in ("model name", "cpu model") and model is None:
            model = clean(content.strip(), 200)
        elif key in ("flags", "features") and flags is None:
            flags = content.split()
    return {
        "model": model or None,
        "threads": _online(tree.word("/sys/devices/system/cpu/online")) or os.cpu_count(),
        "flags": flags,
        **cores(tree),
    }


def _online(ranges: str | None) -> int | None:
    """How many processors a list such as `0-3,8` names."""
    total = 0
    for part in (ranges or "").split(","):
        first, _, last = part.partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            return None
        total += max(0, int(last or first) - int(first) + 1)
    return total or None


def memory(tree: Tree) -> dict[str, object]:
    found = {}
    for line in (tree.text("/proc/meminfo", 64 << 10) or "").splitlines():
        match = re.match(r"(MemTotal|MemAvailable|SwapTotal):\s+(\d+) kB\s*\Z", line)
        if match:
            found[match.group(1)] = int(match.group(2)) * 1024
    return {
        "total_bytes": found.get("MemTotal"),
        "available_bytes": found.get("MemAvailable"),
        "swap_total_bytes": found.get("SwapTotal"),
        "limit_bytes": memory_limit(tree),
    }


def systemd(tree: Tree) -> dict[str, object]:
    """systemd's version, told by its own library's name, and whether it is PID 1."""
    version = None
    for directory in (*_SYSTEMD_LIBRARIES, f"/usr/lib/{os.uname().machine}-linux-gnu/systemd"):
        for name in tree.names(directory):
            match = re.match(r"libsystemd-shared-(\d+)", name)
            if match:
                version = int(match.group(1))
    if version is None:
        with contextlib.suppress(NodeError):
            match = re.match(r"(?:\d+:)?(\d+)", packages(tree, ["systemd"])["systemd"] or "")
            version = int(match.group(1)) if match else None
    running = tree.exists("/run/systemd/system") and tree.word("/proc/1/comm") == "systemd"
    return {"version": version, "running": running}


def virtualization(tree: Tree) -> str:
    """What this machine runs in, in the words of systemd-detect-virt; `none` for bare metal."""
    return _container(tree) or _virtual_machine(tree) or "none"


def _container(tree: Tree) -> str | None:
    if "microsoft" in (tree.word("/proc/sys/kernel/osrelease") or "").lower():
        return "wsl"
    for path in ("/run/systemd/container", "/run/host/container-manager"):
        named = tree.word(path)
        if named:
            return clean(named, 40)
    for entry in (tree.data("/proc/1/environ", 1 << 20) or b"").split(b"\0"):
        if entry.startswith(b"container=") and len(entry) > len(b"container="):
            return clean(entry[len(b"container=") :].decode("utf-8", "replace"), 40)
    if tree.exists("/.dockerenv"):
        return "docker"
    if tree.exists("/run/.containerenv"):
        return "podman"
    return None


def _virtual_machine(tree: Tree) -> str | None:
    hypervisor = tree.word("/sys/hypervisor/type")
    if hypervisor:
        return clean(hypervisor, 40)
    under_one = " hypervisor" in (tree.text("/proc/cpuinfo", 64 << 10) or "")
    for name in ("product_name", "sys_vendor", "bios_vendor"):
        shown = tree.word(f"/sys/class/dmi/id/{name}") or ""
        for needle, kind in _VENDORS:
            if needle.lower() in shown.lower():
                return "kvm" if kind == "qemu" and under_one else kind
    return "vm-other" if under_one else None
