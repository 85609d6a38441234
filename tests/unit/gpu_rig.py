"""A fake node with cards on its PCI bus, and what the probe says of them."""

from pathlib import Path
from typing import Any

from tests.unit.onnode_rig import put, run

VERSION = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Tue Sep 1\nGCC version: gcc 12.2\n"


def pci(root: Path, address: str, vendor: str, device: str, kind: str, driver: str | None) -> None:
    """A device on the fake node's PCI bus."""
    place = f"/sys/bus/pci/devices/{address}"
    put(root, {f"{place}/vendor": vendor, f"{place}/device": device, f"{place}/class": kind})
    if driver:
        (root / place[1:] / "driver").symlink_to(f"../../bus/pci/drivers/{driver}")


def two_cards(root: Path) -> Path:
    """A fake node with a mainboard's own graphics and two 3090s, driver loaded."""
    put(root, {"/proc/driver/nvidia/version": VERSION.format("580.95.05")})
    pci(root, "0000:00:02.0", "0x1a03", "0x2000", "0x030000", "ast")
    pci(root, "0000:01:00.0", "0x10de", "0x2204", "0x030000", "nvidia")
    pci(root, "0000:02:00.0", "0x10de", "0x2204", "0x030000", "nvidia")
    pci(root, "0000:01:00.1", "0x10de", "0x1aef", "0x040300", "snd_hda_intel")
    return root


def process(pid: int, used: int | None, kind: str = "compute") -> dict[str, Any]:
    """One that runs on a card, and of which the fake node's /proc knows nothing."""
    return {"pid": pid, "used_bytes": used, "kind": kind, "name": None, "ours": None}


def gpus(root: Path, tmp_path: Path, library: Path, scenario: str) -> dict[str, Any]:
    (tmp_path / "scenario").write_text(scenario)
    environment = {"LD_LIBRARY_PATH": str(library), "NVML_SCENARIO": str(tmp_path / "scenario")}
    spec = {"root": str(root), "sections": ["gpus", "virtualization"]}
    answer, finished = run("probe", spec, environment=environment)
    assert finished.returncode == 0
    assert answer["notes"] == []
    found: dict[str, Any] = answer["gpus"]
    return found
