"""The GPUs of one real node over ssh, as rig after rig: the driver's real Python module, the probe
as it is carried, and a stand-in for the driver's library."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuwright import carry
from gpuwright.onnode import controllers
from tests.lab.lab import Lab
from tests.lab.node import Node
from tests.lab.serving import ROOT, inventory
from tests.nvml import rigs

pytestmark = pytest.mark.lab

FOLDER = "/usr/lib/x86_64-linux-gnu"
LINK = f"{FOLDER}/libnvidia-ml.so.1"
NEW, OLD = "580.95.05", "418.226.00"
FILES = ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm")
KERNEL_LOG = """\
4,900,5555,-;NVRM: Xid (PCI:0000:02:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off
4,901,5556,-;NVRM: Xid (PCI:0000:02:00): 154, GPU recovery action changed from 0x0 to 0x2
"""


class Rig:
    """A node whose cards are those of a scenario."""

    def __init__(self, node: Node, folder: Path) -> None:
        self.node, self.folder = node, folder

    def set_up(self, scenario: str, library: str | None) -> None:
        (self.node.root / "etc/nvml-scenario").write_text(scenario)
        link = self.node.root / LINK[1:]
        link.unlink(missing_ok=True)
        if library is not None:
            link.symlink_to(f"libnvidia-ml.so.{library}")

    def gpus(self) -> dict[str, Any]:
        command = carry.command("probe", {"sections": ["gpus", "virtualization"]})
        document = carry.parse(self.node.run(command).stdout.splitlines())
        assert document["notes"] == []
        found: dict[str, Any] = document["gpus"]
        return found


@pytest.fixture(scope="module")
def rig(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    node = lab.boot("cards")
    folder = tmp_path_factory.mktemp("cards")
    for version in (NEW, OLD):
        built = rigs.build(folder / version, version=version) / f"libnvidia-ml.so.{version}"
        (node.root / FOLDER[1:] / built.name).write_bytes(built.read_bytes())
    log = "rm -f /dev/kmsg; cat > /dev/kmsg"
    node.run(f"cd /dev && touch {' '.join(FILES)} && {log} && ldconfig", stdin=KERNEL_LOG)
    yield Rig(node, folder)
    node.destroy()


def healthy(number: int, **changed: object) -> dict[str, Any]:
    """All that is told of a 3090 at rest, where the kernel log speaks of the second card."""
    told = {"xids": [79, 154] if number == 1 else [], "health": "failing" if number == 1 else "ok"}
    return rigs.told_3090(number, **{**told, **changed})


def pair(a: int, b: int, nvlinks: int, p2p: str, topology: str = "node") -> dict[str, Any]:
    return {"a": a, "b": b, "nvlinks": nvlinks, "p2p": p2p, "topology": topology}


def answer(detail: str, *devices: dict[str, Any], **changed: object) -> dict[str, Any]:
    """The whole section but for what the machine below the lab has on its PCI bus."""
    return {
        "source": "nvml",
        "status": "ok",
        "detail": detail,
        "driver_version": NEW,
        "cuda_version": "13.0",
        "devices": list(devices),
        "lost": [],
        "pairs": [],
        "device_nodes": sorted(f"/dev/{name}" for name in FILES),
        **changed,
    }


def without(status: str, detail: str, **changed: object) -> dict[str, Any]:
    """The section of a node whose driver does not answer."""
    nothing = {"source": None, "status": status, "driver_version": None, "cuda_version": None}
    return answer(detail, **{**nothing, **changed})


LINKED = {"nvlink": True}
RIGS: dict[str, tuple[str, str | None, dict[str, Any]]] = {
    "1x 3090": (rigs.some_3090(1), NEW, answer("1 NVIDIA GPU, driver 580.95.05", healthy(0))),
    "2x 3090 on PCIe": (
        rigs.some_3090(2),
        NEW,
        answer(
            "2 NVIDIA GPUs, driver 580.95.05",
            healthy(0),
            healthy(1),
            pairs=[pair(0, 1, 0, "not_supported")],
        ),
    ),
    "2x 3090 with peer access": (
        rigs.PATCHED_3090,
        NEW,
        answer(
            "2 NVIDIA GPUs, driver 580.95.05",
            healthy(0),
            healthy(1),
            pairs=[pair(0, 1, 0, "ok", "hostbridge")],
        ),
    ),
    "2x 3090 with a bridge": (
        rigs.BRIDGED_3090,
        NEW,
        answer(
            "2 NVIDIA GPUs, driver 580.95.05",
            healthy(0, **LINKED),
            healthy(1, **LINKED),
            pairs=[pair(0, 1, 4, "ok")],
        ),
    ),
    "4x 3090 with two bridges": (
        rigs.TWO_BRIDGES,
        NEW,
        answer(
            "4 NVIDIA GPUs, driver 580.95.05",
            *(healthy(number, **LINKED) for number in range(4)),
            pairs=[
                pair(0, 1, 4, "ok"),
                *(pair(a, b, 0, "not_supported") for a in (0, 1) for b in (2, 3)),
                pair(2, 3, 4, "ok"),
            ],
        ),
    ),
    "in another order": (
        rigs.scenario(rigs.card(1), *rigs.at_rest(0), rigs.card(0), *rigs.at_rest(1)),
        NEW,
        answer(
            "2 NVIDIA GPUs, driver 580.95.05",
            healthy(0, minor=1),
            healthy(1, minor=0),
            pairs=[pair(0, 1, 0, "not_supported")],
        ),
    ),
    "lost card": (
        rigs.some_3090(2, "error nvmlDeviceGetHandleByIndex_v2 1 15"),
        NEW,
        answer(
            "GPU 1: GPU is lost: see the kernel log for NVRM and Xid; GPU 0 still answers",
            healthy(0),
            status="gpu_lost",
            lost=[{"index": 1, "pci_address": None, "error": "GPU is lost", "xids": []}],
        ),
    ),
    "old driver": (
        rigs.some_3090(1, "process 0 4242 1048576").replace(NEW, OLD).replace("13000", "10010"),
        OLD,
        answer(
            "1 NVIDIA GPU, driver 418.226.00",
            healthy(
                0,
                memory_reserved_bytes=None,
                processes=[
                    {
                        "pid": 4242,
                        "used_bytes": 1048576,
                        "kind": "compute",
                        "name": None,
                        "ours": None,
                    }
                ],
            ),
            driver_version=OLD,
            cuda_version="10.1",
        ),
    ),
    "mismatch": (
        rigs.MISMATCH,
        NEW,
        without(
            "driver_mismatch",
            "the loaded NVIDIA kernel module is of unknown version, the driver library is "
            "580.95.05: reboot, or reload the module",
        ),
    ),
    "module not loaded": (
        rigs.NOT_LOADED,
        NEW,
        without("no_gpu", "no display or 3D controller on the PCI bus"),
    ),
    "forbidden": (
        rigs.FORBIDDEN,
        NEW,
        without(
            "unreadable",
            "the NVIDIA driver may not be asked by this user: Insufficient Permissions",
        ),
    ),
    "hangs": (
        rigs.HANG,
        NEW,
        without(
            "unreadable",
            "the NVIDIA driver did not answer within 5 s: it hangs or died; see the kernel log, "
            "a reboot may be needed",
        ),
    ),
    "dies": (
        rigs.CRASH,
        NEW,
        without(
            "unreadable",
            "the NVIDIA driver did not answer within 5 s: it hangs or died; see the kernel log, "
            "a reboot may be needed",
        ),
    ),
}
"""Scenario, version of the library on the node, and the section that it must give."""


@pytest.mark.parametrize("name", RIGS)
def test_the_section_of_a_rig_is_told_exactly(rig: Rig, name: str) -> None:
    scenario, library, expected = RIGS[name]
    rig.set_up(scenario, library)
    found = rig.gpus()
    pci = found.pop("pci")
    assert found.pop("ignored") == controllers.ignored(pci)
    if expected["status"] == "no_gpu" and pci:
        expected = {**expected, "detail": found["detail"]}
    assert found == expected


PARTS: dict[str, tuple[str, dict[str, object]]] = {
    "A100 with MIG": (
        rigs.MIG_A100,
        {
            "mig": {
                "enabled": True,
                "pending": True,
                "instances": [
                    {
                        "uuid": f"MIG-00000000-0000-0000-0000-00000000000{number}",
                        "name": f"NVIDIA A100-PCIE-80GB MIG {profile}",
                        "memory_total_bytes": size * rigs.GIB,
                    }
                    for number, profile, size in ((1, "3g.40gb", 40), (2, "2g.20gb", 20))
                ],
            },
            "ecc": {"enabled": True, "pending": True, "uncorrected": 0},
            "repair": {"pending": False, "failed": False},
            "vgpu": "none",
            "health": "ok",
        },
    ),
    "vGPU guest": (
        rigs.VGPU_GUEST,
        {"name": "NVIDIA A40-24Q", "vgpu": "vgpu", "persistence": None, "throttle": None},
    ),
    "desktop": (rigs.DESKTOP_3090, {"display_attached": True, "display_active": True}),
    "hostile": (
        rigs.HOSTILE,
        {
            "name": "RTX?]0;x? $(reboot) ?\ufffd",
            "temperature_c": None,
            "vgpu": None,
            "pcie": dict.fromkeys(("generation", "generation_max", "width", "width_max")),
            "mig": {"enabled": None, "pending": None, "instances": None},
        },
    ),
    "worn": (rigs.WORN, {"repair": {"pending": True, "failed": True}, "health": "failing"}),
}


@pytest.mark.parametrize("name", PARTS)
def test_what_is_odd_of_a_card_is_told_exactly(rig: Rig, name: str) -> None:
    scenario, expected = PARTS[name]
    rig.set_up(scenario, NEW)
    found = rig.gpus()
    assert found["status"] == "ok"
    assert {key: found["devices"][0][key] for key in expected} == expected


def test_a_node_without_the_library_has_no_gpu_that_it_knows_of(rig: Rig) -> None:
    rig.set_up(rigs.some_3090(1), None)
    found = rig.gpus()
    assert (found["status"], found["source"], found["devices"]) == ("no_gpu", None, [])


def test_a_fact_of_pyinfra_is_what_the_probe_says(rig: Rig, tmp_path: Path) -> None:
    rig.set_up(rigs.BRIDGED_3090, NEW)
    hosts = inventory(tmp_path / "hosts.py", [(rig.node, {})])
    done = subprocess.run(
        [sys.executable, "-m", "pyinfra", str(hosts), "fact", "facts.gpu.Gpus", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["facts.gpu.Gpus"][rig.node.name] == rig.gpus()
