"""Captures of rigs (tests/hosts/RIG/capture) as nodes: a directory that stands for /, and the
commands that answer as they did there. The shell's own program looks at them.

A rig's own files come before those of its base (tests/hosts/bases), which hold what its source did
not print.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuwright import carry
from gpuwright.layout import Layout
from gpuwright.strict import read_yaml

HOSTS = Path(__file__).parent / "hosts"
BASES = HOSTS / "bases"
ABOUT_KEYS = {"what", "source", "url", "read", "printed", "filled", "zeroed", "base", "exits"}
DISKS = (Layout().engines, Layout().model_store, Layout().cache)
SMI = {
    "nvidia-smi-q-x": "-q -x",
    "nvidia-smi-query-gpu": "--query-gpu=*",
    "nvidia-smi-topo-m": "topo -m",
    "nvidia-smi-topo-p2p": "topo -p2p r",
    "nvidia-smi-nvlink-s": "nvlink -s",
}
_FILES = {
    "os-release": "etc/os-release",
    "proc-meminfo": "proc/meminfo",
    "proc-cpuinfo": "proc/cpuinfo",
    "proc-driver-nvidia-version": "proc/driver/nvidia/version",
    "proc-net-tcp": "proc/net/tcp",
    "cpu-online": "sys/devices/system/cpu/online",
    "proc-self-mountinfo": "proc/self/mountinfo",
    "dmi-product-name": "sys/class/dmi/id/product_name",
}
_COMMANDS = ("date", "df", "dmesg", "id", "ldd", "python3")
UUID = re.compile(r"(?:GPU|MIG)-([0-9a-f]{8}-[0-9a-f-]{27})")
SERIAL = re.compile(r"<serial>(\d+)</serial>")
_LSPCI = re.compile(
    r"((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) .*?\[([0-9a-f]{4})\]: "
    r".*\[([0-9a-f]{4}):([0-9a-f]{4})\]"
)


def captured() -> list[str]:
    """Names of the rigs that have a capture."""
    return sorted(path.parent.name for path in HOSTS.glob("*/capture"))


def about(rig: str) -> dict[str, Any]:
    faults: list[str] = []
    found: dict[str, Any] = read_yaml(HOSTS / rig / "about.yaml", rig, faults)
    assert not faults, faults
    return found


def texts(rig: str) -> dict[str, str]:
    """Each captured file by its name without its ending, the base's where the rig has none."""
    base = BASES / str(about(rig)["base"])
    files = [*sorted(base.iterdir()), *sorted((HOSTS / rig / "capture").iterdir())]
    return {path.stem: path.read_text(encoding="utf-8") for path in files}


def build(into: Path, found: Mapping[str, str], exits: Mapping[str, int] | None = None) -> Path:
    """The node in `into`: its tree in `root`, its commands in `bin`."""
    for name, place in _FILES.items():
        if name in found:
            _put(into / "root" / place, found[name])
    kernel = found["uname"].split()
    _put(into / "root/proc/sys/kernel/osrelease", f"{kernel[2]}\n")
    version = re.search(r"systemd (\d+)", found.get("systemctl", ""))
    if version:
        _put(into / f"root/usr/lib/systemd/libsystemd-shared-{version[1]}.so", "")
        _put(into / "root/proc/1/comm", "systemd\n")
        (into / "root/run/systemd/system").mkdir(parents=True)
    _put(into / "root/dev/null", "")
    if "dmesg" in found:
        _put(into / "root/dev/kmsg", found["dmesg"])
    container = found.get("systemd-detect-virt", "none").strip()
    if container in ("lxc", "docker", "systemd-nspawn", "podman"):
        _put(into / "root/run/systemd/container", container)
    for path in found.get("ls", "").split():
        _put(into / "root" / path.lstrip("/"), "")
    _sysfs(into / "root", found.get("lspci-nnk", ""))
    _commands(into / "bin", found, exits or {})
    return into


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _sysfs(root: Path, lspci: str) -> None:
    """What the kernel shows of the controllers that `lspci -nnk` lists."""
    device = root
    for line in lspci.splitlines():
        match = _LSPCI.match(line)
        driver = re.match(r"\s+Kernel driver in use: (\S+)", line)
        if match:
            address, kind, vendor, number = match.groups()
            address = address if address.count(":") == 2 else f"0000:{address}"
            device = root / "sys/bus/pci/devices" / address
            _put(device / "class", f"0x{kind}00\n")
            _put(device / "vendor", f"0x{vendor}\n")
            _put(device / "device", f"0x{number}\n")
        elif driver:
            (device / "driver").symlink_to(f"../../../bus/pci/drivers/{driver[1]}")


def _commands(folder: Path, found: Mapping[str, str], exits: Mapping[str, int]) -> None:
    folder.mkdir(parents=True)
    for name in _COMMANDS:
        _script(folder / name, [_answer(folder, name, found, exits)])
    machine = next(word for word in found["uname"].split() if word in ("x86_64", "aarch64"))
    _script(folder / "uname", [f"echo {machine}"])
    smi = [
        f"{shlex.quote(words).replace('*', chr(39) + '*' + chr(39))}) "
        f"{_answer(folder, name, found, exits)};;"
        for name, words in SMI.items()
        if name in found
    ]
    if smi:
        _script(folder / "nvidia-smi", ['case "$*" in', *smi, "esac", "exit 2"])


def _answer(folder: Path, name: str, found: Mapping[str, str], exits: Mapping[str, int]) -> str:
    if name not in found:
        return "exit 127"
    _put(folder.parent / "said" / name, found[name])
    return f"cat {shlex.quote(str(folder.parent / 'said' / name))}; exit {exits.get(name, 0)}"


def _script(path: Path, lines: list[str]) -> None:
    _put(path, "\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)


def printed(node: Path, shell: tuple[str, ...] = ("sh",)) -> list[str]:
    """What look.sh prints on the node."""
    words = shlex.join([str(node / "root"), *DISKS])
    finished = subprocess.run(
        [*shell, "-c", f"(set -- {words}; {carry.shell_program()})"],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": f"{node / 'bin'}:{os.environ['PATH']}"},
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.splitlines()


def document(rig: str, into: Path) -> dict[str, Any]:
    """The rig's node document, from its capture."""
    said = about(rig)
    node = build(into, texts(rig), said.get("exits"))
    return {"about": said["what"], **carry.parse(printed(node))}


def main() -> int:
    """Write the document of every captured rig anew, or of those that are named."""
    for rig in sys.argv[1:] or captured():
        with tempfile.TemporaryDirectory() as folder:
            found = document(rig, Path(folder) / "node")
        text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
        (HOSTS / rig / "document.json").write_text(text, encoding="utf-8")
        gpus = found["gpus"]
        print(f"{rig}: {gpus['status']}: {gpus['detail']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
