"""The same rig seen through NVML by the probe and through nvidia-smi by the shell: one document."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import captures
from tests.nvml import rigs
from tests.nvml.of_document import scenario_of
from tests.unit.onnode_rig import put, run

RIGS = (
    "2x3090-nvlink-in-lxc-405",
    "2x3090-x4-patched-158",
    "2x5090-and-3x4090-37",
    "2x5090-peers-refused-1229",
    "3090-with-a-screen-telegraf",
    "4x3090-two-bridges",
    "4060-ti-16gb-driver-550",
    "5090-and-igpu",
    "a100-mig-netdata",
    "a6000-failing-memory",
    "gb10-nvitop-208",
    "l40s-encoding-595",
    "t4-in-ec2-telegraf",
    "vgpu-guest-a40-24q",
)
SECTIONS = ("gpus", "os", "cpu", "memory", "systemd", "virtualization", "ports", "driver")
# What nvidia-smi does not print, and what a shell does not read for us.
ONLY_THE_PROBE = {
    "driver.dkms",
    "driver.fabric_manager.installed",
    "driver.persistenced.installed",
    "gpus.devices[].mig.instances[].name",
    "gpus.devices[].mig.instances[].uuid",
    "gpus.pairs[].topology",
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rigs.build(tmp_path_factory.mktemp("nvml"))


def differences(shell: Any, probe: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Each leaf that is not the same, with both values."""
    if isinstance(shell, dict) and isinstance(probe, dict) and set(shell) == set(probe):
        for key in shell:
            yield from differences(shell[key], probe[key], f"{path}.{key}" if path else key)
    elif isinstance(shell, list) and isinstance(probe, list) and len(shell) == len(probe):
        for one, other in zip(shell, probe, strict=True):
            yield from differences(one, other, f"{path}[]")
    elif shell != probe:
        yield path, shell, probe


@pytest.mark.parametrize("rig", RIGS)
def test_both_ways_tell_the_same_where_both_can_know(rig: str, tmp_path: Path, library: Path):
    shell = json.loads((captures.HOSTS / rig / "document.json").read_text(encoding="utf-8"))
    node = captures.build(tmp_path / "node", captures.texts(rig))
    for device in shell["gpus"]["devices"]:
        for process in device["processes"] or ():
            if process["name"]:
                put(node / "root", {f"/proc/{process['pid']}/comm": process["name"]})
    (tmp_path / "scenario").write_text(scenario_of(shell), encoding="utf-8")
    environment = {"LD_LIBRARY_PATH": str(library), "NVML_SCENARIO": str(tmp_path / "scenario")}
    spec = {"root": str(node / "root"), "sections": list(SECTIONS)}
    probe, _ = run("probe", spec, environment=environment)
    assert (shell["gpus"].pop("source"), probe["gpus"].pop("source")) == ("nvidia-smi", "nvml")
    for document in (shell, probe):
        document["os"].pop("architecture")  # the probe asks the kernel that it runs on
    told = [each for name in SECTIONS for each in differences(shell[name], probe[name], name)]
    assert [each for each in told if each[1] is not None] == []
    assert {path for path, _, _ in told} <= ONLY_THE_PROBE
