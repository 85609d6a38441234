"""The driver as files tell it: what is loaded, what a boot would load, what keeps it out."""

import os
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwright.onnode import driver as module
from gpuwright.onnode.driver import dkms, driver, has_module, loaded_module, nouveau
from gpuwright.onnode.outcome import clean
from gpuwright.onnode.secure_boot import certificates, secure_boot, trusted_key
from gpuwright.onnode.tree import Tree
from tests.unit.onnode_rig import put

KERNEL, NEXT = "6.1.0-31-amd64", "6.1.0-101-amd64"
MACHINE = os.uname().machine
OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10  Release Build  (x@y)\n"
    "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n"
)
PROPRIETARY = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22 01:44:30 UTC 2024\n"
    "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n"
)
STATUS = b"""Package: nvidia-driver
Status: hold ok installed
Version: 535.183.01-1~deb12u1

Package: libnvidia-ml1
Status: install ok installed
Version: 535.183.01-1~deb12u1

Package: nvidia-fabricmanager-535
Status: install ok installed
Version: 535.183.06-1

Package: nvidia-container-toolkit
Status: install ok installed
Version: 1.17

Package: libnvidia-container1
Status: install ok installed
Version: 1.17

Package: libnvidia-ml-dev
Status: install ok installed
Version: 11.8

Package: nvidia-opencl-dev
Status: install ok installed
Version: 11.8

Package: nvidia-kernel-dkms
Status: deinstall ok config-files
Version: 525.1
"""
JUNK = (b"\0", b"\xff\xfe", b"\x1b[31m", b"A" * 5000, "версия модуля".encode(), b"\n", b":")
X509 = bytes.fromhex("a159c0a5e494a74a87b5ab155c2bf072")
SECURE = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
MOK = "/sys/firmware/efi/efivars/MokListRT-605dab50-e046-4300-abb6-3dd810dd8b23"


def mok(*keys: bytes) -> bytes:
    lists = [
        X509 + struct.pack("<III", 28 + 16 + len(key), 0, 16 + len(key)) + b"o" * 16 + key
        for key in keys
    ]
    return b"\6\0\0\0" + b"".join(lists)


BOX: dict[str, str | bytes] = {
    "/proc/sys/kernel/osrelease": f"{KERNEL}\n",
    "/proc/driver/nvidia/version": PROPRIETARY,
    "/proc/modules": "nvidia_uvm 1 0 - Live 0x0\nnvidia 2 1 nvidia_uvm, Live 0x0 (POE)\n",
    "/proc/cmdline": "BOOT_IMAGE=/vmlinuz root=/dev/sda1\n",
    f"/lib/modules/{KERNEL}/modules.dep": "kernel/a.ko:\nupdates/dkms/nvidia-current.ko.xz: x\n",
    f"/lib/modules/{NEXT}/modules.dep": "kernel/a.ko:\nupdates/dkms/nvidia-drm.ko:\n",
    "/lib/modules/6.1.0-200-amd64/updates/dkms/nvidia.ko": "of a kernel that was removed",
    f"/boot/vmlinuz-{KERNEL}": "",
    f"/boot/vmlinuz-{NEXT}": "",
    f"/usr/lib/{MACHINE}-linux-gnu/libnvidia-ml.so.550.54.14": "",
    "/var/lib/dpkg/status": STATUS,
    "/sys/bus/pci/devices/0000:01:00.0/class": "0x068000\n",
    "/sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n",
    "/usr/bin/nv-fabricmanager": "",
    "/sys/fs/cgroup/system.slice/nvidia-persistenced.service/cgroup.procs": "7\n",
    "/sys/firmware/x": "",
}


def found(root: Path, files: dict[str, str | bytes] | None = None) -> dict[str, Any]:
    return driver(Tree(str(put(root, {**BOX, **(files or {})}))), container=False)


def test_a_box_is_told_as_its_files_have_it(tmp_path: Path):
    seen = found(tmp_path)
    assert (seen["loaded"], seen["flavour"]) == (True, "proprietary")
    assert (seen["module_version"], seen["library_version"]) == ("550.54.14", "550.54.14")
    assert seen["agree"] is True
    assert (seen["kernel_ready"], seen["next_kernel"]) == (True, NEXT)
    assert seen["next_kernel_ready"] is False
    assert seen["secure_boot"] is False
    assert seen["fabric_manager"] == {
        "needed": True,
        "installed": True,
        "active": False,
        "version": "535.183.06",
    }
    assert seen["persistenced"] == {"installed": False, "active": True}
    assert seen["packages"] == [
        {"name": "libnvidia-ml1", "version": "535.183.01-1~deb12u1", "held": False},
        {"name": "nvidia-driver", "version": "535.183.01-1~deb12u1", "held": True},
        {"name": "nvidia-fabricmanager-535", "version": "535.183.06-1", "held": False},
    ]


def test_versions_and_flavours_are_read_from_the_module_s_own_line():
    assert loaded_module(OPEN) == ("570.86.10", "open")
    assert loaded_module(PROPRIETARY) == ("550.54.14", "proprietary")
    assert loaded_module("NVRM version: \x00\xff garbage\n") == (None, None)


@pytest.mark.parametrize("path", [f"/usr/lib/{MACHINE}-linux-gnu", "/usr/lib64"])
def test_the_library_that_is_linked_to_counts_and_not_a_leftover(tmp_path: Path, path: str):
    (tmp_path / f"usr/lib/{MACHINE}-linux-gnu").mkdir(parents=True)
    place = put(tmp_path, {f"{path}/libnvidia-ml.so.{one}": "" for one in ("470.1", "535.2")})
    link = place / path[1:] / "libnvidia-ml.so.1"
    assert module.library_version(Tree(str(place))) == "535.2"
    link.symlink_to("libnvidia-ml.so.470.1")
    assert module.library_version(Tree(str(place))) == "470.1"
    (place / "proc/driver/nvidia").mkdir(parents=True)
    put(place, {"/proc/driver/nvidia/version": OPEN})
    assert driver(Tree(str(place)), container=False)["agree"] is False


def test_a_container_s_kernel_and_modules_are_another_s(tmp_path: Path):
    seen = driver(Tree(str(put(tmp_path, BOX))), container=True)
    assert seen["module_version"] == "550.54.14"
    for key in ("kernel_ready", "next_kernel", "next_kernel_ready", "dkms", "secure_boot"):
        assert seen[key] is None


@pytest.mark.parametrize(
    ("line", "ready"),
    [
        ("updates/dkms/nvidia.ko.zst: kernel/x.ko", True),
        ("kernel/nvidia-535/nvidia.ko:", True),
        ("updates/dkms/nvidia-tesla-470.ko:", True),
        ("updates/dkms/nvidia-current-open.ko:", True),
        ("updates/dkms/nvidia-uvm.ko: updates/dkms/nvidia.ko", False),
        ("updates/dkms/nvidia-current-drm.ko:", False),
        ("kernel/drivers/usb/typec/altmodes/nvidia-typec.ko:", False),
        ("kernel/drivers/net/fvnvidia.ko:", False),
    ],
)
def test_a_kernel_is_ready_when_modprobe_would_find_the_driver(
    tmp_path: Path, line: str, ready: bool
):
    put(tmp_path, {f"/lib/modules/{KERNEL}/modules.dep": f"kernel/a.ko:\n{line}\n"})
    assert has_module(Tree(str(tmp_path)), KERNEL) is ready
    assert has_module(Tree(str(tmp_path)), "6.2") is None
    assert has_module(Tree(str(tmp_path)), "../../etc") is None


def test_dkms_says_for_which_kernels_it_built_and_for_which_it_failed(tmp_path: Path):
    base = "/var/lib/dkms/nvidia-current"
    log = f"DKMS make.log for nvidia-current-535.1 for kernel {NEXT} (x86_64)\nerror\n"
    put(
        tmp_path,
        {
            f"{base}/535.1/{KERNEL}/x86_64/module/nvidia-current.ko": "",
            f"{base}/535.1/6.1.0-30-amd64/x86_64/module/nvidia-current.ko": "",
            f"{base}/535.1/build/make.log": log,
            f"{base}/525.5/source": "",
            "/var/lib/dkms/zfs/2.1/source": "",
        },
    )
    (tmp_path / base[1:] / f"kernel-{KERNEL}-x86_64").symlink_to(f"535.1/{KERNEL}/x86_64")
    rows = [(row["version"], row["kernel"], row["state"]) for row in dkms(Tree(str(tmp_path)))]
    assert rows == [
        ("525.5", None, "added"),
        ("535.1", NEXT, "failed"),
        ("535.1", "6.1.0-30-amd64", "built"),
        ("535.1", KERNEL, "installed"),
    ]


@pytest.mark.parametrize(
    ("files", "word"),
    [
        ({"/proc/modules": "nouveau 1 0 - Live 0x0\n"}, "loaded"),
        ({"/sys/module/nouveau/refcnt": "1"}, "loaded"),
        ({"/etc/modprobe.d/x.conf": "# no\n  blacklist nouveau\n"}, "blacklisted"),
        ({"/usr/lib/modprobe.d/x.conf": "install nouveau /bin/false\n"}, "blacklisted"),
        ({"/proc/cmdline": "quiet modprobe.blacklist=foo,nouveau\n"}, "blacklisted"),
        ({"/etc/modprobe.d/x.conf": "# blacklist nouveau\n"}, "available"),
        ({"/etc/modprobe.d/x.conf": "blacklist nouveau_extra_thing\n"}, "available"),
        ({f"/lib/modules/{KERNEL}/modules.dep": "kernel/a.ko:\n"}, "absent"),
        ({f"/lib/modules/{KERNEL}/modules.dep": ""}, None),
    ],
)
def test_nouveau_is_loaded_or_kept_out_or_could_come(
    tmp_path: Path, files: dict[str, str], word: str | None
):
    dep = {f"/lib/modules/{KERNEL}/modules.dep": "kernel/drivers/gpu/drm/nouveau/nouveau.ko.xz:\n"}
    put(tmp_path, {**dep, **files})
    assert nouveau(Tree(str(tmp_path)), KERNEL) == word


@pytest.mark.parametrize(
    ("files", "container", "state"),
    [
        ({SECURE: b"\6\0\0\0\1"}, False, True),
        ({SECURE: b"\6\0\0\0\0"}, False, False),
        ({SECURE: b"\6\0"}, False, None),
        ({"/sys/firmware/efi/x": b""}, False, None),
        ({"/sys/firmware/memmap": b""}, False, False),
        ({"/sys/firmware/memmap": b""}, True, None),
        ({}, False, None),
    ],
)
def test_secure_boot_is_the_firmware_s_word(
    tmp_path: Path, files: dict[str, bytes], container: bool, state: bool | None
):
    assert secure_boot(Tree(str(put(tmp_path, files))), container) is state


def test_a_signing_key_is_trusted_when_shim_lists_that_very_one(tmp_path: Path):
    tree = Tree(str(tmp_path))
    assert trusted_key(tree) is None
    put(tmp_path, {MOK: mok(b"CN=Debian Secure Boot CA")})
    assert trusted_key(tree) is False
    put(tmp_path, {MOK: mok(b"CN=Debian Secure Boot CA", b"somebody's own")})
    assert trusted_key(tree) is True
    put(tmp_path, {"/var/lib/dkms/mok.pub": b"this machine's"})
    assert trusted_key(tree) is False
    put(tmp_path, {MOK: mok(b"CN=Debian Secure Boot CA", b"this machine's")})
    assert trusted_key(tree) is True


@given(st.binary(max_size=200), st.integers(0, 1 << 32 - 1))
def test_any_signature_list_is_survived_and_ends(junk: bytes, size: int):
    assert isinstance(certificates(junk), list)
    certificates(X509 + struct.pack("<III", size, size, size) + junk)
    whole = mok(b"one", b"two")[4:]
    assert certificates(whole + junk)[:2] == [b"one", b"two"]


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.sampled_from([*JUNK, *OPEN.encode().split(), *STATUS.split(b"\n")])
        | st.binary(max_size=20),
        max_size=30,
    ).map(b" ".join)
)
def test_any_files_give_a_driver_section(tmp_path_factory: Any, junk: bytes):
    root = tmp_path_factory.mktemp("junk")
    names = (*BOX, SECURE, MOK, "/etc/modprobe.d/x.conf", "/var/lib/dkms/nvidia/1/build/make.log")
    seen = driver(Tree(str(put(root, dict.fromkeys(names, junk)))), container=False)
    assert set(seen) == set(found(root / "whole"))
    texts = [seen["module_version"], seen["next_kernel"], *map(str, seen["packages"] or [])]
    assert all(text is None or text == clean(text) for text in texts)
