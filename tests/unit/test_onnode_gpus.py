"""What state GPUs are in: the real pynvml on a stand-in library, and the PCI bus of a fake tree."""

import time
from pathlib import Path

import pytest

from gpuwright.onnode import cards, graphics
from gpuwright.onnode.tree import Tree
from tests.nvml import rigs
from tests.unit.gpu_rig import VERSION, gpus, pci, process, two_cards
from tests.unit.onnode_rig import put

OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (x)\n"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rigs.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return two_cards(tmp_path / "node")


def test_two_cards_are_seen_in_pci_order(node: Path, tmp_path: Path, library: Path):
    found = gpus(
        node,
        tmp_path,
        library,
        rigs.scenario(rigs.card(1), rigs.card(0), "process 1 4242 18446744073709551615"),
    )
    assert found["status"] == "ok"
    assert (found["driver_version"], found["cuda_version"]) == ("580.95.05", "13.0")
    first, second = found["devices"]
    assert (first["index"], first["uuid"]) == (0, rigs.uuid(0))
    assert first["processes"] == [process(4242, None)]
    assert (second["index"], second["pci_address"], second["processes"]) == (1, "0000:02:00.0", [])
    assert [one["id"] for one in found["pci"]] == ["1a03:2000", "10de:2204", "10de:2204"]
    assert found["pci"][0]["driver"] == "ast"


def test_a_library_of_another_version_is_a_mismatch_with_both_versions(
    node: Path, tmp_path: Path, library: Path
):
    put(node, {"/proc/driver/nvidia/version": VERSION.format("575.64.03")})
    found = gpus(node, tmp_path, library, rigs.MISMATCH)
    assert found["status"] == "driver_mismatch"
    assert "575.64.03" in found["detail"]
    assert "580.95.05" in found["detail"]
    assert found["driver_version"] == "575.64.03"
    assert found["devices"] == []


def test_a_card_off_the_bus_is_lost_and_the_other_is_still_told(
    node: Path, tmp_path: Path, library: Path
):
    found = gpus(node, tmp_path, library, rigs.LOST)
    assert found["status"] == "gpu_lost"
    assert [(one["index"], one["uuid"]) for one in found["devices"]] == [(1, rigs.uuid(1))]


def test_a_card_that_fails_while_it_is_read_is_lost(node: Path, tmp_path: Path, library: Path):
    scenario = rigs.scenario(rigs.card(0), rigs.card(1), "error nvmlDeviceGetMemoryInfo 0 15")
    assert gpus(node, tmp_path, library, scenario)["status"] == "gpu_lost"


def test_a_card_that_the_driver_holds_but_cannot_start_is_lost(
    node: Path, tmp_path: Path, library: Path
):
    found = gpus(node, tmp_path, library, rigs.ONE_3090)
    assert found["status"] == "gpu_lost"
    assert "0000:02:00.0" in found["detail"]


def test_a_container_may_see_fewer_cards_than_its_pci_bus(
    node: Path, tmp_path: Path, library: Path
):
    put(node, {"/run/systemd/container": "lxc\n"})
    assert gpus(node, tmp_path, library, rigs.ONE_3090)["status"] == "ok"


def test_without_a_pci_bus_the_library_is_believed(tmp_path: Path, library: Path):
    root = put(tmp_path / "wsl", {"/proc/sys/kernel/osrelease": "5.15-microsoft-standard-WSL2\n"})
    found = gpus(root, tmp_path, library, rigs.ONE_3090)
    assert (found["status"], found["pci"]) == ("ok", [])


def test_a_driver_that_hangs_is_given_up(tmp_path: Path, library: Path):
    root = tmp_path / "node"
    pci(root, "0000:01:00.0", "0x10de", "0x2204", "0x030000", "nvidia")
    began = time.monotonic()
    found = gpus(root, tmp_path, library, rigs.HANG)
    assert found["status"] == "unreadable"
    assert "did not answer within 5 s" in found["detail"]
    assert time.monotonic() - began < 8


def test_a_driver_that_ends_the_process_is_unreadable(node: Path, tmp_path: Path, library: Path):
    found = gpus(node, tmp_path, library, rigs.CRASH)
    assert found["status"] == "unreadable"
    assert "hangs or died" in found["detail"]


def test_a_user_who_may_not_ask_is_told_so(node: Path, tmp_path: Path, library: Path):
    found = gpus(node, tmp_path, library, rigs.FORBIDDEN)
    assert found["status"] == "unreadable"
    assert "may not be asked by this user" in found["detail"]


@pytest.mark.parametrize(
    ("container", "remedy"),
    [("lxc\n", "pass /dev/nvidia* into this container"), ("", "nvidia-modprobe")],
)
def test_a_loaded_module_without_its_files_in_dev_is_told_apart(
    node: Path, tmp_path: Path, library: Path, container: str, remedy: str
):
    if container:
        put(node, {"/run/systemd/container": container})
    found = gpus(node, tmp_path, library, rigs.NOT_LOADED)
    assert found["status"] == "no_driver"
    assert found["detail"] == (
        f"the NVIDIA kernel module 580.95.05 is loaded, but /dev/nvidiactl is not here: {remedy}"
    )


def test_another_driver_is_named(tmp_path: Path, library: Path):
    pci(tmp_path / "node", "0000:01:00.0", "0x10de", "0x2204", "0x030000", "nouveau")
    found = gpus(tmp_path / "node", tmp_path, library, rigs.NOT_LOADED)
    assert found["status"] == "no_driver"
    assert "nouveau" in found["detail"]


def test_a_card_handed_to_virtual_machines_is_no_lost_one(tmp_path: Path, library: Path):
    root = tmp_path / "node"
    pci(root, "0000:01:00.0", "0x10de", "0x2204", "0x030000", "nvidia")
    pci(root, "0000:02:00.0", "0x10de", "0x2204", "0x030000", "vfio-pci")
    found = gpus(root, tmp_path, library, rigs.ONE_3090)
    assert found["status"] == "ok"
    assert "0000:02:00.0 (10de:2204) is driven by vfio-pci" in found["detail"]


def test_a_card_without_libraries_has_no_driver(node: Path, tmp_path: Path):
    found = gpus(node, tmp_path, tmp_path / "nothing", "")
    assert found["status"] == "no_driver"
    assert "libnvidia-ml.so.1" in found["detail"]


def test_a_node_with_another_vendors_card_has_no_gpu_for_us(tmp_path: Path):
    pci(tmp_path / "node", "0000:03:00.0", "0x1002", "0x744c", "0x030000", "amdgpu")
    found = gpus(tmp_path / "node", tmp_path, tmp_path, "")
    assert found["status"] == "no_gpu"
    assert "1002:744c at 0000:03:00.0" in found["detail"]


def test_a_driver_too_old_for_a_call_leaves_that_value_open(
    node: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
):
    old = rigs.build(tmp_path_factory.mktemp("old"), version="470.256.02")
    scenario = rigs.scenario(
        rigs.card(0), rigs.card(1), "process 0 7 9", "error nvmlDeviceGetMemoryInfo 1 3"
    )
    first, second = gpus(node, tmp_path, old, scenario)["devices"]
    assert first["processes"] == [process(7, 9)]
    assert second["memory_total_bytes"] is None


def test_who_draws_on_a_card_is_told_too_and_nobody_twice(
    node: Path, tmp_path: Path, library: Path
):
    lines = ("process 0 7 100", "graphics 0 7 100", "graphics 0 8 30")
    scenario = rigs.scenario(rigs.card(0), rigs.card(1), *lines)
    first, second = gpus(node, tmp_path, library, scenario)["devices"]
    assert first["processes"] == [
        process(7, 100),
        process(8, 30, "graphics"),
    ]
    assert second["processes"] == []


@pytest.mark.parametrize(
    ("kind", "code", "processes"),
    [
        ("Compute", 3, None),
        ("Compute", 4, None),
        ("Graphics", 4, None),
        ("Graphics", 3, [process(7, 9)]),
    ],
    ids=["compute unsupported", "compute forbidden", "graphics forbidden", "card cannot draw"],
)
def test_a_list_of_processes_that_is_not_whole_is_unknown(
    node: Path, tmp_path: Path, library: Path, kind: str, code: int, processes: object
):
    calls = [f"error nvmlDeviceGet{kind}RunningProcesses_{v} 0 {code}" for v in ("v3", "v2")]
    scenario = rigs.scenario(rigs.card(0), rigs.card(1), "process 0 7 9", *calls)
    assert gpus(node, tmp_path, library, scenario)["devices"][0]["processes"] == processes


def test_nvlink_is_told_when_one_link_is_active(node: Path, tmp_path: Path, library: Path):
    links = ("nvlink 0 0 0", "nvlink 0 3 1", "nvlink 1 0 0")
    scenario = rigs.scenario(rigs.card(0), rigs.card(1), *links)
    found = gpus(node, tmp_path, library, scenario)["devices"]
    assert [device["nvlink"] for device in found] == [True, False]


def test_nvlink_that_cannot_be_asked_for_is_unknown(node: Path, tmp_path: Path, library: Path):
    refused = "error nvmlDeviceGetNvLinkState 0 999"
    scenario = rigs.scenario(rigs.card(0), rigs.card(1), refused)
    found = gpus(node, tmp_path, library, scenario)["devices"]
    assert [device["nvlink"] for device in found] == [None, False]


def test_a_card_lost_while_its_links_are_read_is_lost(node: Path, tmp_path: Path, library: Path):
    for call in ("NvLinkState", "GraphicsRunningProcesses_v3"):
        scenario = rigs.scenario(rigs.card(0), rigs.card(1), f"error nvmlDeviceGet{call} 1 15")
        assert gpus(node, tmp_path, library, scenario)["status"] == "gpu_lost"


def test_a_hostile_product_name_is_made_harmless(node: Path, tmp_path: Path, library: Path):
    scenario = rigs.scenario(rigs.card(0, name="RTX\x1b[31m 3090"), rigs.card(1))
    assert gpus(node, tmp_path, library, scenario)["devices"][0]["name"] == "RTX?[31m 3090"


def test_the_module_version_is_read_from_both_flavours(tmp_path: Path):
    path = "/proc/driver/nvidia/version"
    assert graphics.module_version(Tree(str(put(tmp_path / "a", {path: OPEN})))) == "580.95.05"
    closed = put(tmp_path / "b", {path: VERSION.format("470.256.02")})
    assert graphics.module_version(Tree(str(closed))) == "470.256.02"
    assert graphics.module_version(Tree(str(tmp_path / "c"))) is None


def test_pci_addresses_are_written_as_the_kernel_writes_them():
    assert cards.pci_address("00000000:01:00.0") == "0000:01:00.0"
    assert cards.pci_address("00010000:0A:00.0") == "10000:0a:00.0"
    assert cards.pci_address("nonsense") is None
