"""What surrounds the cards, from files alone: topology, toolchain, mounts, settings, holdings."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwright.onnode import children, sections
from gpuwright.onnode.disks import disk, mounted, mounts
from gpuwright.onnode.holdings import holdings
from gpuwright.onnode.outcome import clean
from gpuwright.onnode.sections import SECTIONS, UNKNOWN, filesystems
from gpuwright.onnode.settings import clock, firewall, origin
from gpuwright.onnode.settings import settings as network_settings
from gpuwright.onnode.toolchain import compilers, pythons, toolkits
from gpuwright.onnode.topology import cores, iommu, memory_limit, numa
from gpuwright.onnode.tree import Tree
from tests.unit.onnode_rig import put

CPU = "/sys/devices/system/cpu"
NODE = "/sys/devices/system/node"
PCI = "/sys/bus/pci/devices"
BROKEN = (
    *(b"\0", b"\xff\xfe", b"\x1b]0;x\x07", b"\n", b"A" * 3000, "Größe 12".encode(), b"deb "),
    *(b"http://u:p@h:1/", b"nodev ", b" - ", b"36 35 98:0 / /mnt", b"# ", b"9" * 30, b"="),
)
JUNK = st.lists(st.sampled_from(BROKEN) | st.binary(max_size=12), max_size=20).map(b"".join)


def tree(root: Path, files: dict[str, str | bytes]) -> Tree:
    return Tree(str(put(root, files)))


def test_cores_are_counted_once_however_many_threads_they_have(tmp_path: Path):
    topology = {
        f"{CPU}/cpu{thread}/topology/{name}": f"{number}\n"
        for thread in range(8)
        for name, number in (("physical_package_id", thread // 4), ("core_id", thread % 2))
    }
    seen = cores(tree(tmp_path, {**topology, f"{CPU}/cpufreq/x": "", f"{CPU}/cpuidle/x": ""}))
    assert seen == {"sockets": 2, "physical_cores": 4}


def test_a_card_lies_on_the_node_that_the_kernel_names(tmp_path: Path):
    seen = numa(
        tree(
            tmp_path,
            {
                f"{NODE}/node0/cpulist": "0-15,32-47\n",
                f"{NODE}/node0/meminfo": "Node 0 MemTotal:       1024 kB\n",
                f"{NODE}/node1/cpulist": "16-31\n",
                f"{PCI}/0000:01:00.0/class": "0x030000\n",
                f"{PCI}/0000:01:00.0/vendor": "0x10de\n",
                f"{PCI}/0000:01:00.0/numa_node": "1\n",
                f"{PCI}/0000:02:00.0/class": "0x030000\n",
                f"{PCI}/0000:02:00.0/vendor": "0x10de\n",
                f"{PCI}/0000:02:00.0/numa_node": "-1\n",
            },
        )
    )
    assert seen == [
        {"node": 0, "cpus": "0-15,32-47", "memory_bytes": 1 << 20, "gpus": []},
        {"node": 1, "cpus": "16-31", "memory_bytes": None, "gpus": ["0000:01:00.0"]},
    ]


def test_a_card_of_unknown_place_lies_on_the_only_node(tmp_path: Path):
    card = {f"{PCI}/0000:01:00.0/class": "0x030200\n", f"{PCI}/0000:01:00.0/vendor": "0x10de\n"}
    seen = numa(tree(tmp_path, {f"{NODE}/node0/cpulist": "0\n", **card}))
    assert seen is not None
    assert seen[0]["gpus"] == ["0000:01:00.0"]


@pytest.mark.parametrize(
    ("files", "mode"),
    [
        ({"/sys/kernel/x": ""}, "off"),
        ({"/sys/kernel/iommu_groups/0/type": "DMA-FQ\n"}, "on"),
        ({"/sys/kernel/iommu_groups/0/type": "identity\n"}, "passthrough"),
        (
            {"/sys/kernel/iommu_groups/0/x": "", "/proc/cmdline": "quiet amd_iommu=on iommu=pt\n"},
            "passthrough",
        ),
        ({"/sys/kernel/iommu_groups/0/x": "", "/proc/cmdline": "quiet\n"}, "on"),
        ({}, None),
    ],
)
def test_iommu_mode_is_that_of_its_groups(
    tmp_path: Path, files: dict[str, str | bytes], mode: str | None
):
    assert iommu(tree(tmp_path, files))["mode"] == mode


@pytest.mark.parametrize(
    ("path", "text", "limit"),
    [
        ("/sys/fs/cgroup/memory.max", "8589934592\n", 8 << 30),
        ("/sys/fs/cgroup/memory.max", "max\n", None),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n", None),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1048576\n", 1 << 20),
        ("/sys/fs/cgroup/memory.max", "9" * 40, None),
    ],
)
def test_a_container_s_memory_is_limited_by_its_group(
    tmp_path: Path, path: str, text: str, limit: int | None
):
    assert memory_limit(tree(tmp_path, {path: text})) == limit


STATUS = "".join(
    f"Package: {name}\nStatus: install ok installed\nVersion: {version}\n\n"
    for name, version in (
        ("python3.11-minimal", "3.11.2-6+deb12u5"),
        ("gcc-12", "12.2.0-14"),
        ("cmake", "3.25.1-1"),
        ("ninja-build", "1.11.1-1"),
        ("clang-14", "1:14.0.6-12"),
        ("nvidia-cuda-toolkit", "11.8.89~11.8.0-5~deb12u1"),
    )
)


def test_pythons_are_told_without_starting_one(tmp_path: Path):
    ran = "#!/bin/sh\ntouch /tmp/gpuwright-ran-a-foreign-python\n"
    uv = "/root/.local/share/uv/python/cpython-3.12.4-linux-x86_64-gnu"
    root = put(
        tmp_path,
        {
            "/var/lib/dpkg/status": STATUS,
            "/usr/bin/python3.11": ran,
            "/usr/lib/python3.11/ensurepip/__init__.py": "",
            "/usr/include/python3.11/Python.h": "",
            f"{uv}/bin/python3.12": ran,
            "/opt/conda/bin/python3.10": ran,
            "/opt/conda/include/python3.10/patchlevel.h": '#define PY_VERSION   "3.10.14"\n',
            "/opt/built/bin/python3": ran,
            "/opt/built/lib/python3.9/x": "",
            "/opt/broken/bin/python3": ran,
        },
    )
    for name in ("python3", "python3.99"):
        (root / "usr/bin" / name).symlink_to("python3.11" if name == "python3" else "nowhere")
    (root / "opt/venv/bin").mkdir(parents=True)
    (root / "opt/venv/bin/python3").symlink_to("/usr/bin/python3.11")
    seen = {one["executable"]: one for one in pythons(Tree(str(root)))}
    assert {path: one["version"] for path, one in seen.items()} == {
        "/usr/bin/python3.11": "3.11.2",
        f"{uv}/bin/python3.12": "3.12.4",
        "/opt/conda/bin/python3.10": "3.10.14",
        "/opt/built/bin/python3": "3.9",
    }
    debian = seen["/usr/bin/python3.11"]
    assert (debian["headers"], debian["venv"]) == (True, True)
    assert (seen["/opt/conda/bin/python3.10"]["headers"], debian["venv"]) == (False, True)
    assert not Path("/tmp/gpuwright-ran-a-foreign-python").exists()


def test_compilers_have_the_versions_of_their_packages(tmp_path: Path):
    names = ("gcc-12", "cmake", "ninja", "gcov-12", "x86_64-linux-gnu-gcc-ar")
    files = {f"/usr/bin/{name}": "" for name in names}
    root = put(tmp_path, {**files, "/var/lib/dpkg/status": STATUS, "/usr/local/bin/cmake": ""})
    put(root, {"/usr/lib/llvm-14/bin/clang": "", "/usr/lib/nvidia-cuda-toolkit/bin/nvcc": ""})
    (root / "usr/bin/gcc").symlink_to("gcc-12")
    (root / "usr/bin/clang").symlink_to("../lib/llvm-14/bin/clang")
    (root / "usr/bin/nvcc").symlink_to("/usr/lib/nvidia-cuda-toolkit/bin/nvcc")
    seen = [(one["executable"], one["kind"], one["version"]) for one in compilers(Tree(str(root)))]
    assert seen[:5] == [
        ("/usr/local/bin/cmake", "cmake", None),
        ("/usr/bin/clang", "clang", "14.0.6"),
        ("/usr/bin/cmake", "cmake", "3.25.1"),
        ("/usr/bin/gcc", "gcc", "12.2.0"),
        ("/usr/bin/ninja", "ninja", "1.11.1"),
    ]
    assert ("/usr/bin/nvcc", "nvcc", "11.8.89") in seen


def test_a_script_that_calls_a_toolkits_compiler_is_that_one(tmp_path: Path):
    home = "/usr/lib/nvidia-cuda-toolkit"
    script = f'#!/bin/sh\nexport PATH="{home}/bin:$PATH"\nexec {home}/bin/nvcc "$@"\n'
    other = "/usr/local/bin/nvcc"
    files = {
        "/usr/bin/nvcc": script,
        f"{home}/bin/nvcc": "",
        other: "#!/bin/sh\nexec ccache nvcc\n",
    }
    root = put(tmp_path, {**files, "/var/lib/dpkg/status": STATUS})
    seen = {one["executable"]: one["version"] for one in compilers(Tree(str(root)))}
    assert seen == {"/usr/bin/nvcc": "11.8.89", f"{home}/bin/nvcc": "11.8.89", other: None}


def test_a_compiler_behind_links_is_told_by_its_toolkits_path_too(tmp_path: Path):
    home = "/srv/cuda"
    described = {f"{home}/bin/nvcc": "", f"{home}/version.json": '{"cuda": {"version": "12.8.1"}}'}
    root = put(tmp_path, {**described, "/usr/bin/x": "", "/usr/local/bin/x": ""})
    (root / "usr/local/cuda-12.8").symlink_to(home)
    (root / "usr/local/cuda").symlink_to("cuda-12.8")
    (root / "usr/bin/nvcc").symlink_to("/usr/local/cuda/bin/nvcc")
    (root / "usr/local/bin/nvcc").symlink_to("/usr/bin/nvcc")
    seen = {one["executable"]: one["version"] for one in compilers(Tree(str(root)))}
    links = ("/usr/local/bin", "/usr/bin", "/usr/local/cuda/bin", "/usr/local/cuda-12.8/bin")
    assert seen == {f"{place}/nvcc": "12.8.1" for place in (*links, f"{home}/bin")}


def test_toolkits_say_their_version_in_one_of_three_ways(tmp_path: Path):
    root = put(
        tmp_path,
        {
            "/usr/local/cuda-12.4/bin/nvcc": "",
            "/usr/local/cuda-12.4/version.json": '{"cuda": {"version": "12.4.1"}}',
            "/usr/local/cuda-10.1/include/cuda.h": "",
            "/usr/local/cuda-10.1/version.txt": "CUDA Version 10.1.243\n",
            "/opt/cuda/include/cuda.h": "#define CUDA_VERSION 13010\n",
            "/usr/local/cuda-9/bin/nvcc": "",
            "/usr/local/cuda-9/version.json": '["\\u0000"',
            "/usr/local/cudamini/bin/nvcc": "",
        },
    )
    (root / "usr/local/cuda").symlink_to("/usr/local/cuda-12.4")
    seen = {one["path"]: one["version"] for one in toolkits(Tree(str(root)))}
    assert seen == {
        "/usr/local/cuda-12.4": "12.4.1",
        "/usr/local/cuda-10.1": "10.1.243",
        "/usr/local/cuda-9": None,
        "/opt/cuda": "13.1",
    }


MOUNTS = (
    "22 1 8:1 / / ro,relatime - ext4 /dev/sda1 rw\n"
    "23 22 0:5 / /proc rw - proc proc rw\n"
    "24 22 0:6 / /tmp rw,noexec,nosuid - tmpfs tmpfs rw\n"
    "25 22 8:2 / /var rw - ext4 /dev/sdb ro,errors=remount-ro\n"
    "26 22 8:1 /x /srv/x ro - ext4 /dev/sda1 rw\n"
    "27 22 7:1 / /snap/core/1 ro - squashfs /dev/loop1 ro\n"
    "28 22 0:9 / /dev/shm rw - tmpfs shm rw\n"
    "29 22 0:8 / /dev rw - devtmpfs udev rw\n"
    "30 22 0:40 / /var/lib/docker/overlay2/a/merged rw - overlay overlay rw\n"
    "31 22 0:41 / /mnt/models rw - nfs4 nas:/models rw\n"
    "broken line - ext4\n"
)


def test_real_filesystems_are_listed_once_with_what_they_forbid(tmp_path: Path):
    rows = mounted(tree(tmp_path, {"/proc/self/mountinfo": MOUNTS}))
    assert [(row["mount"], row["type"], row["read_only"], row["noexec"]) for row in rows] == [
        ("/", "ext4", True, False),
        ("/dev/shm", "tmpfs", False, False),
        ("/mnt/models", "nfs4", False, False),
        ("/tmp", "tmpfs", False, True),
        ("/var", "ext4", True, False),
    ]


def test_a_path_s_disk_says_what_is_forbidden_there(tmp_path: Path):
    here = tree(tmp_path, {"/proc/self/mountinfo": MOUNTS, "/tmp/x": "", "/opt/x": ""})
    assert disk("/tmp/engines", here)["noexec"] is True
    assert disk("/opt/engines", here)["read_only"] is True


def test_a_filesystem_that_hangs_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def hang(tree: Tree, rows: list[dict[str, Any]]) -> list[dict[str, int | None]]:
        if any(row["type"] == "nfs4" for row in rows):
            time.sleep(60)
        return [{"free_bytes": 1, "total_bytes": 2} for _ in rows]

    monkeypatch.setattr(sections, "rooms", hang)
    monkeypatch.setattr(sections, "_DISK_SECONDS", 0.3)
    notes: list[str] = []
    rows = filesystems(tree(tmp_path, {"/proc/self/mountinfo": MOUNTS}), notes)
    assert notes == ["filesystems: no answer from one of /mnt/models"]
    assert {row["mount"]: row["free_bytes"] for row in rows} == {
        "/": 1,
        "/dev/shm": 1,
        "/mnt/models": None,
        "/tmp": 1,
        "/var": 1,
    }


@pytest.mark.parametrize(
    ("files", "kind", "active"),
    [
        ({"/etc/ufw/ufw.conf": "# c\nENABLED=yes\n"}, "ufw", True),
        ({"/etc/ufw/ufw.conf": "ENABLED=no\n"}, "ufw", False),
        (
            {"/sys/fs/cgroup/system.slice/firewalld.service/cgroup.procs": "9\n"},
            "firewalld",
            True,
        ),
        ({"/proc/net/ip_tables_names": "filter\n"}, "iptables", True),
        ({"/usr/sbin/nft": "", "/sys/module/nf_tables/x": ""}, "nftables", None),
        ({"/etc/x": ""}, "none", False),
        ({}, None, None),
    ],
)
def test_the_program_that_keeps_the_packet_filter_is_named(
    tmp_path: Path, files: dict[str, str | bytes], kind: str | None, active: bool | None
):
    assert firewall(tree(tmp_path, files)) == {"kind": kind, "active": active}


def test_an_enabled_nftables_service_filters(tmp_path: Path):
    place = tmp_path / "etc/systemd/system/sysinit.target.wants"
    place.mkdir(parents=True)
    (place / "nftables.service").symlink_to("/lib/systemd/system/nftables.service")
    assert firewall(Tree(str(tmp_path))) == {"kind": "nftables", "active": True}


def test_the_zone_is_that_of_the_local_time(tmp_path: Path):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/localtime").symlink_to("/usr/share/zoneinfo/Europe/Berlin")
    assert clock(Tree(str(tmp_path)))["timezone"] == "Europe/Berlin"


def test_the_kernel_says_whether_this_clock_follows_a_server():
    assert clock(Tree())["synchronized"] in (True, False, None)
    assert abs(clock(Tree())["time"] - time.time()) < 5


SECRETS: dict[str, str | bytes] = {
    "/etc/environment": (
        'HTTP_PROXY="http://bob:hunter2@proxy.lan:3128/"\nno_proxy=localhost\n'
        "https_proxy=http://eve:p@ss/w@proxy2.lan:8080\nPIP_INDEX_URL=https://t0ken@pypi.lan/simple\n"
    ),
    "/etc/apt/apt.conf.d/proxy": (
        '// Acquire::http::Proxy "http://old:1";\nAcquire::http::Proxy "http://bob:hunter2@apt.lan:3142";\n'
    ),
    "/etc/apt/sources.list": (
        "# deb http://off/debian x main\n"
        "deb [signed-by=/x arch=amd64] http://one.lan/debian x main\n"
        "deb https://bob:hunter2@two.lan/debian x main\n"
    ),
    "/etc/apt/sources.list.d/a.sources": (
        "Types: deb\nURIs: http://three.lan/debian\n\nEnabled: no\nURIs: http://off/\n"
    ),
}


def test_proxies_mirrors_and_index_are_named_without_what_they_are_entered_with(tmp_path: Path):
    seen = network_settings(tree(tmp_path, SECRETS))
    assert {one["name"]: one["value"] for one in seen["proxies"]} == {
        "http_proxy": "http://proxy.lan:3128",
        "https_proxy": "http://proxy2.lan:8080",
        "apt http": "http://apt.lan:3142",
    }
    assert seen["apt_mirrors"] == ["one.lan", "two.lan", "three.lan"]
    assert seen["pip_index"] == "pypi.lan"
    for secret in ("bob", "hunter2", "eve", "p@ss", "t0ken", "off"):
        assert secret not in json.dumps(seen)


@given(st.text(max_size=40), st.text(min_size=1, max_size=20), st.text(max_size=20))
def test_no_address_gives_away_what_stands_before_its_host(scheme: str, secret: str, more: str):
    shown = origin(f"http://bob:{secret}SECRET@proxy.lan:3128{more and '/' + more}")
    assert shown is None or "SECRET" not in shown
    shown = origin(f"{scheme}{secret}")
    assert shown is None or shown.isprintable()


def stamp(path: Path) -> dict[str, int]:
    found = path.stat()
    return {"bytes": found.st_size, "mtime_ns": found.st_mtime_ns, "inode": found.st_ino}


def entry(path: Path) -> dict[str, int]:
    found = path.stat()
    return {"size": found.st_size, "mtime_ns": found.st_mtime_ns, "inode": found.st_ino}


def test_holdings_are_whole_or_damaged_as_their_stamps_have_it(tmp_path: Path):
    unit = 'Environment="GPUWRIGHT_PLAN=abc123"\n'
    root = put(
        tmp_path,
        {
            "/opt/e/a/bin": "x",
            "/opt/e/c/bin": "x",
            "/etc/systemd/system/gpuwright-llm.service": unit,
            "/etc/systemd/system/gpuwright-x y.service": unit,
            "/sys/fs/cgroup/system.slice/gpuwright-llm.service/cgroup.procs": "7\n",
        },
    )
    program, changed = root / "opt/e/a/bin", root / "opt/e/c/bin"
    census = {
        "files": {
            "/opt/e/a/bin": entry(program),
            "/opt/e/c/bin": entry(changed),
            "/m/one/w": None,
        },
        "altered": {"/opt/e/c": "/opt/e/c/lib/x.py was changed"},
        "stamps": {
            "/opt/e/a/gpuwright.json": {"key": "k", "files": {"bin": stamp(program)}},
            "/opt/e/b/gpuwright.json": ["junk"],
            "/opt/e/c/gpuwright.json": {"key": "k", "files": {"bin": stamp(changed)}},
            "/m/one/gpuwright.json": {"files": {"w": {"bytes": 5}, "v": "junk"}},
            "/s/plans/llm.json": {"service": "llm", "engine": "vllm", "release": "\x1b[2J"},
        },
    }
    layout = {"engines": "/opt/e", "model_store": "/m", "state": "/s"}
    spec = {"layout": {**layout, "units": "/etc/systemd/system"}}
    seen = holdings(Tree(str(root)), spec, census)
    assert seen["engines"] == [
        {"path": "/opt/e/a", "state": "whole", "bytes": 1, "key": "k"},
        {"path": "/opt/e/b", "state": "unreadable", "bytes": 0, "key": None},
        {"path": "/opt/e/c", "state": "damaged", "bytes": 1, "key": "k"},
    ]
    assert seen["models"] == [{"path": "/m/one", "state": "damaged", "bytes": 5}]
    assert seen["services"] == [
        {"unit": "gpuwright-llm.service", "active": True, "enabled": False, "plan": "abc123"}
    ]
    assert seen["plans"] == [
        {"service": "llm", "engine": "vllm", "release": None, "checkpoint": None}
    ]


NAMES = (
    f"{CPU}/cpu0/topology/core_id",
    f"{NODE}/node0/meminfo",
    f"{NODE}/node0/cpulist",
    f"{PCI}/0000:01:00.0/class",
    "/sys/kernel/iommu_groups/0/type",
    "/sys/fs/cgroup/memory.max",
    "/proc/cmdline",
    "/proc/self/mountinfo",
    "/proc/net/ip_tables_names",
    "/usr/bin/python3.11",
    "/usr/include/python3.11/patchlevel.h",
    "/usr/bin/gcc",
    "/usr/local/cuda/bin/nvcc",
    "/usr/local/cuda/version.json",
    "/usr/local/cuda/version.txt",
    "/usr/local/cuda/include/cuda.h",
    "/var/lib/dpkg/status",
    "/etc/environment",
    "/etc/timezone",
    "/etc/pip.conf",
    "/etc/ufw/ufw.conf",
    "/etc/apt/apt.conf",
    "/etc/apt/sources.list",
    "/etc/apt/sources.list.d/x.sources",
)


def leaves(value: object) -> list[object]:
    if isinstance(value, dict):
        return [leaf for inner in value.values() for leaf in leaves(inner)]
    if isinstance(value, list):
        return [leaf for inner in value for leaf in leaves(inner)]
    return [value]


@settings(max_examples=30, deadline=None)
@given(JUNK)
def test_no_content_of_files_breaks_a_section_or_reaches_a_terminal(
    tmp_path_factory: Any, junk: bytes
):
    root = tree(tmp_path_factory.mktemp("junk"), dict.fromkeys(NAMES, junk))
    found = {name: work(root) for name, work in SECTIONS.items()}
    found["filesystems"] = mounted(root)
    assert set(found) == set(UNKNOWN)
    assert json.dumps(found)
    for leaf in leaves(found):
        assert not isinstance(leaf, str) or leaf == clean(leaf)


@given(JUNK.map(lambda data: data.decode("utf-8", "replace")))
def test_any_mount_table_is_survived(text: str):
    for row in mounts(text):
        assert row["mount"].startswith("/")


def test_enormous_files_are_read_in_part_and_in_time(tmp_path: Path):
    for text in (b"Package: nvidia-driver\n", b"\n", b" ", b"nvidia/", b"@", b"9"):
        root = tree(tmp_path, dict.fromkeys(NAMES, text * (1_000_000 // len(text))))
        for name, work in SECTIONS.items():
            before = time.monotonic()
            work(root)
            assert time.monotonic() - before < 10, (name, text)


def test_an_empty_tree_leaves_every_section_without_an_exception(tmp_path: Path):
    for name, work in SECTIONS.items():
        assert json.dumps(work(Tree(str(tmp_path)))), name


def test_a_child_whose_work_raises_is_a_null():
    assert children.value(children.start(Path("/nonexistent").stat, 2.0)) is None
