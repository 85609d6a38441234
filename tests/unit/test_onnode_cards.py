"""What is told of each card and each pair: the real pynvml on a stand-in library."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwright.onnode.kernel_log import xids
from gpuwright.onnode.tree import Tree
from tests.nvml import rigs
from tests.unit.gpu_rig import VERSION, gpus, pci, process, two_cards
from tests.unit.onnode_rig import put

KERNEL_LOG = b"""\
6,1,100,-;Linux version 6.12
 SUBSYSTEM=pci
4,900,5555,-;NVRM: Xid (PCI:0000:02:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off
4,901,5556,-;NVRM: Xid (PCI:0000:02:00): 154, GPU recovery action changed from 0x0 to 0x1
4,902,5557,-;NVRM: Xid (PCI:0000:02:00): 79, again
4,903,5558,-;NVRM: Xid (0000:01:00): 31, Ch 0000000b, engmask 00000120, intr 10000000
4,904,5559,-;usb 1-1: NVRM: Xid (PCI:garbage): 13, no card
4,905,5560,-;\xff\xfe NVRM: Xid (PCI:0000:03:00): 99999999999999999999, no number
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rigs.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return two_cards(tmp_path / "node")


def with_kernel_log(root: Path) -> Path:
    return put(root, {"/dev/kmsg": KERNEL_LOG})


def test_a_healthy_card_is_told_in_full(tmp_path: Path, library: Path):
    root = put(tmp_path / "node", {"/proc/driver/nvidia/version": VERSION.format("580.95.05")})
    pci(root, "0000:01:00.0", "0x10de", "0x2204", "0x030000", "nvidia")
    put(root, {f"/dev/{name}": "" for name in ("nvidia0", "nvidiactl", "nvidia-uvm", "null")})
    put(root, {"/dev/nvidia-caps/nvidia-cap1": ""})
    place = "/sys/bus/pci/devices/0000:01:00.0"
    put(root, {f"{place}/boot_vga": "1\n"})
    found = gpus(root, tmp_path, library, rigs.some_3090(1, "process 0 4242 1073741824"))
    assert found == {
        "source": "nvml",
        "status": "ok",
        "detail": "1 NVIDIA GPU, driver 580.95.05",
        "driver_version": "580.95.05",
        "cuda_version": "13.0",
        "devices": [rigs.told_3090(0, processes=[process(4242, 1 << 30)])],
        "lost": [],
        "pairs": [],
        "pci": [
            {
                "address": "0000:01:00.0",
                "id": "10de:2204",
                "class": "0x030000",
                "driver": "nvidia",
                "vendor": "nvidia",
                "boot_vga": True,
            }
        ],
        "ignored": [],
        "device_nodes": [
            "/dev/nvidia-caps/nvidia-cap1",
            "/dev/nvidia-uvm",
            "/dev/nvidia0",
            "/dev/nvidiactl",
        ],
    }


def test_processes_have_names_and_those_of_our_units_are_ours(
    node: Path, tmp_path: Path, library: Path
):
    put(node, {"/proc/7/comm": "llama-\x1b[0mserver\n", "/proc/8/comm": "python3\n"})
    put(node, {"/proc/7/cgroup": "0::/system.slice/gpuwright-llm.service\n"})
    put(node, {"/proc/8/cgroup": "0::/user.slice/user-0.slice/session-1.scope\n"})
    scenario = rigs.scenario(rigs.card(0), rigs.card(1), "process 0 7 9", "process 0 8 9")
    known = gpus(node, tmp_path, library, scenario)["devices"][0]["processes"]
    assert [(one["name"], one["ours"]) for one in known] == [
        ("llama-?[0mserver", True),
        ("python3", False),
    ]
    # A container's driver counts processes as its host does.
    put(node, {"/run/systemd/container": "lxc\n"})
    hidden = gpus(node, tmp_path, library, scenario)["devices"][0]["processes"]
    assert [(one["name"], one["ours"]) for one in hidden] == [(None, None), (None, None)]


@pytest.mark.parametrize(
    ("scenario", "pairs"),
    [
        (rigs.some_3090(2), [(0, 1, 0, "not_supported", "node")]),
        (rigs.PATCHED_3090, [(0, 1, 0, "ok", "hostbridge")]),
        (rigs.BRIDGED_3090, [(0, 1, 4, "ok", "node")]),
        (rigs.SWITCHED_H100, [(0, 1, 18, "ok", "node")]),
        (
            rigs.TWO_BRIDGES,
            [
                (0, 1, 4, "ok", "node"),
                # Both cards have links, but to others.
                *((a, b, 0, "not_supported", "node") for a in (0, 1) for b in (2, 3)),
                (2, 3, 4, "ok", "node"),
            ],
        ),
        (
            rigs.some_3090(2, *(f"error nvmlDeviceGet{call} {n} 999"
                                for call in ("P2PStatus", "TopologyCommonAncestor", "NvLinkState")
                                for n in range(2))),
            [(0, 1, None, None, None)],
        ),
    ],
    ids=["pcie", "patched", "bridge", "switch", "two bridges", "untold"],
)  # fmt: skip
def test_each_pair_of_cards_is_told(
    tmp_path: Path, library: Path, scenario: str, pairs: list[tuple[object, ...]]
):
    found = gpus(put(tmp_path / "node", {}), tmp_path, library, scenario)
    said = [
        tuple(one[k] for k in ("a", "b", "nvlinks", "p2p", "topology")) for one in found["pairs"]
    ]
    assert said == pairs


def test_a_divided_card_has_its_instances(tmp_path: Path, library: Path):
    (device,) = gpus(put(tmp_path / "node", {}), tmp_path, library, rigs.MIG_A100)["devices"]
    assert device["mig"] == {
        "enabled": True,
        "pending": True,
        "instances": [
            {
                "uuid": "MIG-00000000-0000-0000-0000-000000000001",
                "name": "NVIDIA A100-PCIE-80GB MIG 3g.40gb",
                "memory_total_bytes": 40 * rigs.GIB,
            },
            {
                "uuid": "MIG-00000000-0000-0000-0000-000000000002",
                "name": "NVIDIA A100-PCIE-80GB MIG 2g.20gb",
                "memory_total_bytes": 20 * rigs.GIB,
            },
        ],
    }
    assert device["ecc"] == {"enabled": True, "pending": True, "uncorrected": 0}
    assert device["repair"] == {"pending": False, "failed": False}


def test_a_virtual_gpu_and_a_desktop_are_told(tmp_path: Path, library: Path):
    root = put(tmp_path / "node", {})
    (guest,) = gpus(root, tmp_path, library, rigs.VGPU_GUEST)["devices"]
    assert (guest["vgpu"], guest["mig"]["enabled"]) == ("vgpu", None)
    (desktop,) = gpus(root, tmp_path, library, rigs.DESKTOP_3090)["devices"]
    assert (desktop["display_attached"], desktop["display_active"]) == (True, True)
    assert [one["kind"] for one in desktop["processes"]] == ["compute", "graphics"]


def test_what_cannot_be_true_is_unknown_and_names_are_harmless(tmp_path: Path, library: Path):
    found = gpus(put(tmp_path / "node", {}), tmp_path, library, rigs.HOSTILE)
    first, second = found["devices"]
    assert first["name"] == "RTX?]0;x? $(reboot) ?�"
    assert second["name"] == "RTX"
    assert first["power"] == dict.fromkeys(("draw_w", "limit_w", "default_w", "max_w")) | {
        "min_w": None,
        "max_w": 0.0,
    }
    unknown = {"temperature_c": None, "vgpu": None, "display_active": None}
    assert {key: first[key] for key in unknown} == unknown
    assert first["pcie"]["width"] is None
    assert first["mig"] == {"enabled": None, "pending": None, "instances": None}
    assert first["ecc"] == {"enabled": None, "pending": False, "uncorrected": None}
    assert len(first["throttle"]) == 8
    assert first["processes"] == [process(4294967295, None)]
    assert found["pairs"] == [{"a": 0, "b": 1, "nvlinks": 0, "p2p": None, "topology": None}]


@pytest.mark.parametrize("call", ["Name", "UUID", "PciInfo_v3", "MemoryInfo", "MigMode"])
def test_a_card_that_cannot_say_one_thing_is_still_told(tmp_path: Path, library: Path, call: str):
    scenario = rigs.some_3090(2, f"error nvmlDeviceGet{call} 1 999")
    found = gpus(put(tmp_path / "node", {}), tmp_path, library, scenario)
    if call == "UUID":  # nothing can be pinned to a card without one
        assert (found["status"], [one["index"] for one in found["lost"]]) == ("gpu_lost", [1])
    else:
        assert (found["status"], len(found["devices"])) == ("ok", 2)


def test_the_xids_of_this_boot_are_told_per_card(node: Path, tmp_path: Path, library: Path):
    found = gpus(with_kernel_log(node), tmp_path, library, rigs.TWO_3090)
    first, second = found["devices"]
    assert (first["xids"], first["health"]) == ([31], "ok")
    assert (second["xids"], second["health"]) == ([79, 154], "failing")


@given(st.lists(st.binary(max_size=60) | st.just(b"NVRM: Xid (PCI:0000:01:00): "), max_size=9))
def test_whatever_is_in_the_kernel_log_gives_numbers_of_cards(parts: list[bytes]):
    with tempfile.TemporaryDirectory() as folder:
        put(Path(folder), {"/dev/kmsg": b"".join(parts)})
        found = xids(Tree(folder))
    assert found is not None
    for address, numbers in found.items():
        assert address == "0000:01:00"
        assert all(0 <= number < 100_000 for number in numbers)


def test_a_kernel_log_that_cannot_be_read_is_unknown(tmp_path: Path):
    assert xids(Tree(str(tmp_path))) is None
    put(tmp_path, {"/dev/kmsg/not-a-file": ""})
    assert xids(Tree(str(tmp_path))) is None


def test_a_lost_card_is_named_with_its_xids_and_the_healthy_rest(
    node: Path, tmp_path: Path, library: Path
):
    scenario = rigs.scenario(rigs.card(0), rigs.card(1), "error nvmlDeviceGetHandleByIndex_v2 1 15")
    found = gpus(with_kernel_log(node), tmp_path, library, scenario)
    assert found["status"] == "gpu_lost"
    assert found["lost"] == [
        {"index": 1, "pci_address": "0000:02:00.0", "error": "GPU is lost", "xids": [79, 154]}
    ]
    assert found["detail"] == (
        "GPU 1 at 0000:02:00.0: GPU is lost (Xid 79, 154): see the kernel log for NVRM and Xid; "
        "GPU 0 still answers"
    )


def test_worn_and_slowed_cards_are_not_ok(tmp_path: Path, library: Path):
    devices = gpus(put(tmp_path / "node", {}), tmp_path, library, rigs.WORN)["devices"]
    assert [one["health"] for one in devices] == ["failing", "throttled", "failing"]
    assert devices[0]["repair"] == {"pending": True, "failed": True}
    assert devices[1]["throttle"] == ["sw_power_cap", "hw_thermal"]
    assert devices[2]["repair"] == {"pending": True, "failed": None}


def test_a_card_that_this_user_may_not_ask_hides_no_other(tmp_path: Path, library: Path):
    scenario = rigs.some_3090(2, "error nvmlDeviceGetHandleByIndex_v2 0 4")
    found = gpus(put(tmp_path / "node", {}), tmp_path, library, scenario)
    assert (found["status"], [one["index"] for one in found["devices"]]) == ("ok", [1])
    assert "GPU 0 may not be asked by this user" in found["detail"]


def test_an_old_driver_leaves_open_what_it_has_no_call_for(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
):
    old = rigs.build(tmp_path_factory.mktemp("oldest"), version="418.226.00")
    scenario = rigs.some_3090(2, "process 0 7 9", *rigs.bridge(0, 1))
    found = gpus(put(tmp_path / "node", {}), tmp_path, old, scenario)
    first = found["devices"][0]
    assert found["status"] == "ok"
    assert first["processes"] == [process(7, 9)]
    assert (first["memory_reserved_bytes"], first["mig"]["enabled"]) == (None, None)
    assert first["power"]["limit_w"] == 350.0
    assert found["pairs"][0]["nvlinks"] == 4


def test_other_controllers_are_listed_and_said_to_be_ignored(
    node: Path, tmp_path: Path, library: Path
):
    for address, vendor in (("03", "0x1002"), ("04", "0x8086"), ("05", "0x1af4"), ("06", "0x1234")):
        pci(node, f"0000:{address}:00.0", vendor, "0x1111", "0x038000", None)
    found = gpus(node, tmp_path, library, rigs.TWO_3090)
    assert [one["vendor"] for one in found["pci"]] == [
        "aspeed",
        *("nvidia", "nvidia"),
        *("amd", "intel", "virtio", "other"),
    ]
    assert found["ignored"] == [
        "0000:00:02.0 (1a03:2000) is an ASPEED controller (of the board's management): "
        "not used for CUDA",
        "0000:03:00.0 (1002:1111) is an AMD controller: not used for CUDA",
        "0000:04:00.0 (8086:1111) is an Intel controller: not used for CUDA",
        "0000:05:00.0 (1af4:1111) is a virtual controller: not used for CUDA",
        "0000:06:00.0 (1234:1111) is a controller of another vendor: not used for CUDA",
    ]
