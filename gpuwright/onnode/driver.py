"""The NVIDIA driver as it is installed: kernel module, libraries, packages, what keeps it out.

All of it is read from files: nothing is started, and no module is asked for.
"""

from __future__ import annotations

import os
import re
from typing import Any

from gpuwright.onnode.dpkg import installed
from gpuwright.onnode.outcome import NodeError, clean
from gpuwright.onnode.secure_boot import secure_boot, trusted_key
from gpuwright.onnode.service import pids
from gpuwright.onnode.tree import Tree

MODULE = re.compile(
    r"^(?:\S*/)?nvidia(?:-current|-tesla(?:-\d+)?|-legacy-\w+)?(?:-open)?\.ko(?:\.[a-z0-9]+)?:",
    re.MULTILINE,
)
"""A line of modules.dep that names the driver itself; Debian's own carry a suffix."""
_REST = "[a-z0-9.+-]*"
PACKAGES = (
    f"libcuda1{_REST}|libnvidia-{_REST}|(cuda-drivers|xserver-xorg-video-nvidia){_REST}"
    f"|linux-(modules|objects|signatures)-nvidia{_REST}"
    "|nvidia-(alternative|compute|dkms|driver|fabricmanager|firmware|headless|installer|kernel"
    f"|legacy|open|persistenced|smi|tesla|utils)(-{_REST})?"
)
"""Names of Debian's, Ubuntu's and NVIDIA's packages of a driver, as sed -E and Python read it."""
NO_PACKAGES = "libnvidia-(ml-dev|container|egl-)"
"""How names among them begin that bring no part of one: headers, container tools, open platforms
of EGL."""
_MOST = 60
_FABRIC, _PERSISTENCE = "nvidia-fabricmanager", "nvidia-persistenced"
_KEPT_OUT = re.compile(
    r"(?:blacklist\s+nouveau|alias\s+nouveau\s+off"
    r"|install\s+nouveau\s+/(?:usr/)?bin/(?:false|true))(?:\s|\Z)"
)
_KERNEL = re.compile(r"[0-9][\w.+~-]*\Z")


def driver(tree: Tree, container: bool) -> dict[str, Any]:
    """The document's `driver`. A `container` has its host's kernel, and no modules of its own."""
    shown = tree.text("/proc/driver/nvidia/version", 4096)
    module, flavour = loaded_module(shown or "")
    library = library_version(tree)
    kernels = [] if container else installed_kernels(tree)
    running = tree.word("/proc/sys/kernel/osrelease") or os.uname().release
    newest = max(kernels, key=_order) if kernels else None
    return {
        "loaded": _loaded(tree, shown),
        "module_version": module,
        "flavour": flavour,
        "library_version": library,
        "agree": module == library if module and library else None,
        "cuda_version": None,
        "kernel_ready": None if container else has_module(tree, running),
        "next_kernel": newest,
        "next_kernel_ready": has_module(tree, newest) if newest else None,
        "dkms": None if container else dkms(tree),
        "secure_boot": secure_boot(tree, container),
        "mok_enrolled": trusted_key(tree),
        "nouveau": nouveau(tree, running),
        "fabric_manager": {"needed": has_switches(tree), **_daemon(tree, _FABRIC)},
        "persistenced": _daemon(tree, _PERSISTENCE),
        "packages": _packages(tree),
    }


def loaded_module(text: str) -> tuple[str | None, str | None]:
    """Version and flavour of the loaded module, from /proc/driver/nvidia/version."""
    match = re.search(r"^NVRM version:(.*?)\s(\d{2,4}(?:\.\d+){1,3})(?:\s|$)", text, re.MULTILINE)
    if not match:
        return None, None
    return match.group(2), "open" if "open kernel module" in match.group(1).lower() else (
        "proprietary"
    )


def _loaded(tree: Tree, shown: str | None) -> bool | None:
    if shown is not None or tree.exists("/sys/module/nvidia"):
        return True
    modules = tree.text("/proc/modules", 1 << 20)
    return None if modules is None else bool(re.search(r"^nvidia ", modules, re.MULTILINE))


def library_version(tree: Tree) -> str | None:
    """Version in the name of the management library that is linked to, or of the newest one."""
    machine = f"/usr/lib/{os.uname().machine}-linux-gnu"
    found = []
    for place in (machine, "/usr/lib64", "/usr/lib", f"{machine}/nvidia/current"):
        target = tree.resolved(f"{place}/libnvidia-ml.so.1")
        for name in (os.path.basename(target), *tree.names(place, 1 << 16)):
            match = re.match(r"libnvidia-ml\.so\.(\d+(?:\.\d+)+)\Z", name)
            if match:
                found.append(match.group(1))
        if found:
            return found[0] if found[0] in target else max(found, key=_order)
    return None


def _order(version: str) -> list[tuple[int, str]]:
    """Sorts versions as people count: 6.8.0-101 after 6.8.0-31."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part)
        for part in re.findall(r"[0-9]{1,18}|[^0-9]+", version)
    ]


def installed_kernels(tree: Tree) -> list[str]:
    """Releases of the kernels that could be booted: those with an image and a list of modules."""
    images = {name[8:] for name in tree.names("/boot") if name.startswith("vmlinuz-")}
    return [
        name
        for name in tree.names("/lib/modules")
        if _KERNEL.match(name)
        and tree.exists(f"/lib/modules/{name}/modules.dep")
        and (name in images or not images or tree.exists(f"/lib/modules/{name}/vmlinuz"))
    ]


def has_module(tree: Tree, kernel: str) -> bool | None:
    """Whether modprobe would find the driver for a kernel; None where its modules are not seen."""
    if not _KERNEL.match(kernel):
        return None
    known = tree.text(f"/lib/modules/{kernel}/modules.dep")
    return bool(MODULE.search(known)) if known else None


def dkms(tree: Tree) -> list[dict[str, Any]]:
    """What DKMS has of each NVIDIA module: installed, built, failed, or only added.

    `kernel` is None for what is only added.
    """
    base = "/var/lib/dkms"
    found: list[dict[str, Any]] = []
    for module in tree.names(base):
        if not module.startswith("nvidia"):
            continue
        place = f"{base}/{module}"
        names = tree.names(place)
        links = {tree.link(f"{place}/{name}") for name in names if name.startswith("kernel-")}
        for version in (name for name in names if name[:1].isdigit()):
            states = dict(_built(tree, f"{place}/{version}", version, links))
            log = tree.text(f"{place}/{version}/build/make.log", 4096) or ""
            tried = re.search(r"make\.log for \S+ for kernel (\S+)", log)
            if tried:
                states.setdefault(tried.group(1), "failed")
            row = {"module": clean(module, 100), "version": clean(version, 100)}
            found += [
                {**row, "kernel": clean(kernel, 100), "state": states[kernel]}
                for kernel in sorted(states)
            ] or [{**row, "kernel": None, "state": "added"}]
    return found[:_MOST]


def _built(tree: Tree, place: str, version: str, links: set[str | None]) -> list[tuple[str, str]]:
    """(kernel, state) of each kernel that a module's version was built for."""
    return [
        (kernel, "installed" if f"{version}/{kernel}/{machine}" in links else "built")
        for kernel in tree.names(place)
        if _KERNEL.match(kernel)
        for machine in tree.names(f"{place}/{kernel}")
        if tree.names(f"{place}/{kernel}/{machine}/module")
    ]


def nouveau(tree: Tree, kernel: str) -> str | None:
    """`loaded`, `blacklisted`, `available` (could be loaded), `absent`; None: cannot be told."""
    modules = tree.text("/proc/modules", 1 << 20)
    if tree.exists("/sys/module/nouveau") or re.search(r"(?m)^nouveau ", modules or ""):
        return "loaded"
    line = tree.text("/proc/cmdline", 1 << 16) or ""
    told = any("nouveau" in words.split(",") for words in re.findall(r"blacklist=(\S+)", line))
    for place in ("/etc/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d", "/run/modprobe.d"):
        for name in tree.names(place, 200):
            if not told and name.endswith(".conf"):
                told = any(_KEPT_OUT.match(line) for line in tree.lines(f"{place}/{name}"))
    if told:
        return "blacklisted"
    known = tree.text(f"/lib/modules/{kernel}/modules.dep") if _KERNEL.match(kernel) else None
    if not known:
        return None
    return "available" if re.search(r"(?m)/nouveau\.ko(?:\.[a-z0-9]+)?:", known) else "absent"


def has_switches(tree: Tree) -> bool | None:
    """Whether NVSwitches are on the bus: without their fabric manager no card computes."""
    places = [f"/sys/bus/pci/devices/{name}" for name in tree.names("/sys/bus/pci/devices")]
    if not places:
        return None
    return any(
        (tree.word(f"{place}/class") or "").startswith("0x0680")
        and tree.word(f"{place}/vendor") == "0x10de"
        for place in places
    )


def _daemon(tree: Tree, name: str) -> dict[str, Any]:
    """Whether one of NVIDIA's daemons is installed, and whether its unit has a process."""
    program = {_FABRIC: "nv-fabricmanager"}.get(name, name)
    places = ("/usr/bin", "/usr/sbin", "/usr/local/bin")
    systemd = any(
        tree.exists(f"/sys/fs/cgroup{place}/system.slice") for place in ("", "/unified", "/systemd")
    )
    found: dict[str, Any] = {
        "installed": any(tree.exists(f"{place}/{program}") for place in places),
        "active": bool(pids(tree, f"/system.slice/{name}.service")) if systemd else None,
    }
    if name == _FABRIC:
        packages = _packages(tree) or []
        found["version"] = next(
            (
                match.group(1)
                for one in packages
                if one["name"].startswith(_FABRIC)
                for match in [re.match(r"(?:\d+:)?(\d+(?:\.\d+)*)", one["version"])]
                if match
            ),
            None,
        )
    return found


def _packages(tree: Tree) -> list[dict[str, Any]] | None:
    """Installed Debian packages of a driver. A few stand beside one that came another way, too."""
    try:
        return installed(tree, f"(?!{NO_PACKAGES})(?:{PACKAGES})".encode())[:_MOST]
    except NodeError:
        return None
