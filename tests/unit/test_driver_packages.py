"""apt is not let at a driver, under whatever names a distribution has for its packages."""

import os
import subprocess
from pathlib import Path

import pytest

from deploys.operations import node

# What apt of Ubuntu 24.04 says of its toolkit where no package is a driver, in part.
NOBLE = """\
Inst libcudart12 (12.0.146~12.0.1-4build4 Ubuntu:24.04/noble [amd64])
Inst nvidia-firmware-580-580.178.04 (580.178.04-0ubuntu0.24.04.1 Ubuntu:24.04/noble-updates [amd64])
Inst nvidia-kernel-common-580 (580.178.04-0ubuntu0.24.04.1 Ubuntu:24.04/noble-updates [amd64])
Inst libnvidia-compute-580 (580.178.04-0ubuntu0.24.04.1 Ubuntu:24.04/noble-updates [amd64])
Inst libnvidia-compute-535 (535.309.01-0ubuntu0.24.04.2 Ubuntu:24.04/noble-updates [amd64])
Inst libnvjitlink12 (12.0.140~12.0.1-4build4 Ubuntu:24.04/noble [amd64])
Inst libnvidia-ml-dev (12.0.140~12.0.1-4build4 Ubuntu:24.04/noble [amd64])
Inst libnvvm4 (12.0.140~12.0.1-4build4 Ubuntu:24.04/noble [amd64])
Inst nvidia-cuda-dev (12.0.146~12.0.1-4build4 Ubuntu:24.04/noble [amd64])
Inst nvidia-profiler (12.0.146~12.0.1-4build4 Ubuntu:24.04/noble [amd64])
Inst nvidia-opencl-dev (12.0.140~12.0.1-4build4 Ubuntu:24.04/noble [amd64])
Inst nvidia-cuda-toolkit (12.0.140~12.0.1-4build4 Ubuntu:24.04/noble [amd64])
Conf libnvidia-compute-580 (580.178.04-0ubuntu0.24.04.1 Ubuntu:24.04/noble-updates [amd64])
"""


def look(folder: Path, said: str) -> subprocess.CompletedProcess[str]:
    """The operation's look before it installs, where apt answers `said`."""
    apt = folder / "apt-get"
    apt.write_text(f"#!/bin/sh\ncat <<'END'\n{said}END\n")
    apt.chmod(0o755)
    return subprocess.run(
        ["sh", "-c", node._LOOK, "sh", "", "nvidia-cuda-toolkit"],
        env={"PATH": f"{folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_ubuntus_toolkit_is_not_let_lay_a_driver_over_another(tmp_path: Path):
    done = look(tmp_path, NOBLE)
    assert done.returncode != 0
    assert done.stderr.strip() == (
        "apt would change the driver of this node: nvidia-firmware-580-580.178.04 "
        "nvidia-kernel-common-580 libnvidia-compute-580 libnvidia-compute-535: "
        "nothing is installed"
    )


def test_a_toolkits_own_packages_are_no_driver(tmp_path: Path):
    own = "".join(
        line
        for line in NOBLE.splitlines(keepends=True)
        if "-580" not in line and "-535" not in line
    )
    assert "libnvidia-ml-dev" in own
    done = look(tmp_path, own)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "name",
    [
        "libcuda1",
        "libnvidia-compute",
        "libnvidia-compute-550-server",
        "libnvidia-gl-550:i386",
        "libnvidia-cfg1-535",
        "libnvidia-ml1",
        "libnvidia-tesla-470-cuda1",
        "linux-modules-nvidia-550-6.8.0-60-generic",
        "nvidia-alternative",
        "nvidia-driver",
        "nvidia-firmware-535-535.183.01",
        "nvidia-installer-cleanup",
        "nvidia-kernel-dkms",
    ],
)
def test_one_package_of_a_driver_is_enough_and_an_upgrade_is_one(tmp_path: Path, name: str):
    done = look(tmp_path, f"Inst {name} [550.120-1] (550.127.05-1 Ubuntu:24.04 [amd64])\n")
    assert done.returncode != 0
    assert f"{name.partition(':')[0]}: nothing is installed" in done.stderr
