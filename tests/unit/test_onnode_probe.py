"""The node document: what a fake tree says is in it, and nothing makes the probe fail."""

import json
import os
import socket
import subprocess
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwright.layout import Layout
from gpuwright.onnode import probe
from tests.unit.onnode_rig import Exchange, listen, put, run, site

STAT = "77 (llama) server) S 1 77 77 0 -1 4194560 1 0 0 0 5 5 0 0 20 0 9 0 4200 1 1\n"
NODE = {
    "/etc/os-release": 'ID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\nPRETTY_NAME="Deb"\n',
    "/etc/passwd": (
        "root:x:0:0:root:/root:/bin/bash\n"
        "gpuwright:x:998:998::/nonexistent:/usr/sbin/nologin\nbroken\n"
    ),
    "/etc/group": "root:x:0:\n",
    "/proc/cpuinfo": "processor: 0\nmodel name\t: Rig\x1b CPU\nflags\t: avx2 hypervisor\n\n",
    "/proc/meminfo": "MemTotal:  1000 kB\nMemAvailable: 500 kB\n",
    "/proc/1/comm": "systemd\n",
    "/proc/1/environ": "HOME=/\0container=lxc\0",
    "/proc/stat": "cpu 1\nbtime 1700000000\n",
    "/proc/77/environ": "SECRET=1\0GPUWRIGHT_PLAN=abc\0",
    "/proc/77/stat": STAT,
    "/proc/self/mountinfo": "1 0 8:1 / / rw - ext4 /dev/sda rw\n",
    "/sys/devices/system/cpu/online": "0-3,8\n",
    "/usr/lib/systemd/libsystemd-shared-252.so": "",
    "/var/lib/dpkg/status": "Package: cmake\nStatus: install ok installed\nVersion: 3.25\n",
    "/run/systemd/system/x": "",
    "/etc/systemd/system/gpuwright-llm.service": "[Unit]\n",
    "/etc/gpuwright/services/llm.env": "LLAMA_API_KEY=0123456789abcdef\nSHORT_API_KEY=x\n",
    "/var/lib/gpuwright/plans/llm.json": '{"schema": 1}',
    "/var/lib/gpuwright/plans/old.json": "{",
    "/opt/gpuwright/engines/llama.cpp-b1-k/gpuwright.json": '{"key": "k"}',
    "/opt/gpuwright/engines/llama.cpp-b1-k/bin/libggml.so": "ELF",
    "/opt/gpuwright/engines/llama.cpp-b1-k/bin/llama-server": "ELF",
    "/opt/gpuwright/engines/llama.cpp-b2-k.partial/bin/llama-server": "half",
    "/opt/gpuwright/engines/foreign/bin/tool": "not ours",
    "/var/lib/gpuwright/models/smol/m.gguf": "weights",
    "/var/lib/gpuwright/models/smol/gpuwright.json": '{"files": {"m.gguf": {}, "gone": {}}}',
    "/var/lib/gpuwright/models/smol/.partial/abc": "half",
    "/var/lib/gpuwright/models/bad\nname/x": "",
}
SHOW = """#!/bin/sh
echo "$*" >> {log}
cat <<'END'
LoadState=loaded
ActiveState=active
SubState=running
UnitFileState=enabled
MainPID=77
NeedDaemonReload=no
Result=success
NRestarts=2
ControlGroup=/system.slice/gpuwright-llm.service
FragmentPath=/etc/systemd/system/gpuwright-llm.service
DropInPaths=/run/systemd/system/gpuwright-llm.service.d/x.conf
END
"""
UNIT = "gpuwright-llm.service"
STORE = "/var/lib/gpuwright/models"
UNKNOWN = dict.fromkeys(
    (
        *("user", "files", "stamps", "partials", "altered", "service"),
        *("engines", "models", "services", "plans"),
    )
)
NOT_HERE = {"ports": None, "virtualization": None, "packages": None, "ours": UNKNOWN}


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A fake node's tree; process 77 is a running service that holds port 8080."""
    root = put(tmp_path / "node", NODE)
    listen(root, 8080, UNIT)
    (root / "proc/77/exe").symlink_to("/opt/gpuwright/engines/llama.cpp-b1-k/bin/llama-server")
    put(root, {"/sys/fs/cgroup/system.slice/gpuwright-llm.service/cgroup.procs": "77\n78\n"})
    return root


def look(root: Path, tmp_path: Path, *, systemctl: str = SHOW, **spec: Any) -> dict[str, Any]:
    """The probe's answer on a fake node whose systemctl is a script."""
    tools = tmp_path / "tools"
    tools.mkdir(exist_ok=True)
    (tools / "systemctl").write_text(systemctl.format(log=tmp_path / "systemctl.log"))
    (tools / "systemctl").chmod(0o755)
    path = f"{tools}:{os.environ['PATH']}"
    answer, finished = run("probe", {"root": str(root), **spec}, environment={"PATH": path})
    assert finished.returncode == 0
    return answer


def test_reads_what_the_node_is(node: Path, tmp_path: Path):
    found = look(node, tmp_path, packages=["cmake", "ninja-build"], disks=["/var/lib/none/deep"])
    assert found["schema"] == 2
    assert found["os"]["codename"] == "bookworm"
    assert found["cpu"] == {
        "model": "Rig? CPU",
        "threads": 5,
        "flags": ["avx2", "hypervisor"],
        "sockets": None,
        "physical_cores": None,
    }
    assert found["memory"] == {
        "total_bytes": 1024000,
        "available_bytes": 512000,
        "swap_total_bytes": None,
        "limit_bytes": None,
    }
    assert found["systemd"] == {"version": 252, "running": True}
    assert found["virtualization"] == "lxc"
    assert found["packages"] == {"cmake": "3.25", "ninja-build": None}
    assert found["disks"]["/var/lib/none/deep"]["mount"] == "/"
    assert found["disks"]["/var/lib/none/deep"]["type"] == "ext4"
    assert found["notes"] == []


def test_names_who_listens(node: Path, tmp_path: Path):
    ssh, llm = look(node, tmp_path)["ports"]
    assert (ssh["port"], ssh["pid"], ssh["unit"]) == (22, None, None)
    assert llm == {
        "port": 8080,
        "address": "127.0.0.1",
        "pid": 77,
        "process": "llama-server",
        "unit": "gpuwright-llm.service",
    }


def test_tells_files_of_ours_and_passes_over_what_is_half_done(node: Path, tmp_path: Path):
    ours = look(node, tmp_path, service="llm", port=1, paths=["/etc/none"])["ours"]
    assert ours["user"]["shell"] == "/usr/sbin/nologin"
    files = ours["files"]
    engine = "/opt/gpuwright/engines/llama.cpp-b1-k/bin/llama-server"
    assert files[engine]["sha256"]
    assert files[engine]["inode"] == (node / engine[1:]).stat().st_ino
    assert files["/opt/gpuwright/engines/llama.cpp-b1-k/bin/libggml.so"]["sha256"]
    assert files[f"{STORE}/smol/m.gguf"]["sha256"]
    assert (files[f"{STORE}/smol/gone"], files["/etc/none"]) == (None, None)
    secrets = files["/etc/gpuwright/services/llm.env"]
    assert (secrets["variables"], secrets["unusable"]) == (["LLAMA_API_KEY"], ["SHORT_API_KEY"])
    assert not [path for path in files if "partial" in path or "\n" in path or "foreign" in path]
    assert ours["stamps"]["/var/lib/gpuwright/plans/llm.json"] == {"schema": 1}
    assert ours["stamps"]["/var/lib/gpuwright/plans/old.json"] is None
    assert "0123456789abcdef" not in json.dumps(ours)


@pytest.mark.parametrize("verify", ["quick", "full"])
def test_foreign_files_of_a_shared_store_are_neither_listed_nor_in_the_way(
    node: Path, tmp_path: Path, verify: str
):
    for place in ("", "other/", "smol/"):
        put(node, {f"{STORE}/{place}a{number}.bin": "x" for number in range(5000)})
    put(node, {f"{STORE}/private/gpuwright.json": "{}", f"{STORE}/zz/gpuwright.json": "junk"})
    ours = look(node, tmp_path, verify=verify)["ours"]
    below = {path for path in ours["files"] if path.startswith(f"{STORE}/")}
    assert below == {
        f"{STORE}/{name}"
        for place, names in (("smol", ["m.gguf", "gone"]), ("private", []), ("zz", []))
        for name in (place, f"{place}/gpuwright.json", *(f"{place}/{one}" for one in names))
    }
    assert ours["files"][f"{STORE}/smol/m.gguf"]["sha256"]
    assert ours["stamps"][f"{STORE}/zz/gpuwright.json"] is None


@pytest.mark.parametrize(
    "stamp",
    [
        '{"files": {"../../../../etc/passwd": {}, "/etc/passwd": {}, "a/../../x": {}, "": {}}}',
        '{"files": {"gpuwright.json": {}, "a\\u001bb": {}, "a\\u0000b": {}, ".": {}}}',
        '{"files": ["m.gguf"]}',
        '["files"]',
    ],
)
def test_a_stamp_can_name_no_file_outside_of_its_directory(node: Path, tmp_path: Path, stamp: str):
    put(node, {f"{STORE}/smol/gpuwright.json": stamp})
    files = look(node, tmp_path)["ours"]["files"]
    assert [path for path in files if path.startswith(f"{STORE}/smol/")] == [
        f"{STORE}/smol/gpuwright.json"
    ]
    assert not [path for path in files if "passwd" in path]


def test_links_and_directories_in_our_places_are_told_and_not_followed(node: Path, tmp_path: Path):
    (node / f"{STORE[1:]}/circle").symlink_to("circle")
    (node / f"{STORE[1:]}/smol/m.gguf").unlink()
    (node / f"{STORE[1:]}/smol/m.gguf").symlink_to("/etc/passwd")
    stamp = node / f"{STORE[1:]}/smol/gpuwright.json"
    ours = look(node, tmp_path)["ours"]
    assert ours["files"][f"{STORE}/smol/m.gguf"]["type"] == "link"
    stamp.unlink()
    stamp.mkdir()
    ours = look(node, tmp_path)["ours"]
    assert ours["files"][f"{STORE}/smol/gpuwright.json"]["type"] == "dir"
    assert ours["stamps"][f"{STORE}/smol/gpuwright.json"] is None


def test_what_interrupted_runs_left_is_counted(node: Path, tmp_path: Path):
    digest = "a" * 64
    put(
        node,
        {
            f"{STORE}/first/.partial/{digest}": b"x" * 100_000,
            f"{STORE}/foreign/.partial/notes": b"x" * 100_000,
            "/var/cache/gpuwright/build/k/object.o": b"x" * 50_000,
        },
    )
    (node / "var/cache/gpuwright/sources/.partial").mkdir(parents=True)
    partials = look(node, tmp_path)["ours"]["partials"]
    assert set(partials) == {
        f"{STORE}/first/.partial",
        f"{STORE}/smol/.partial",
        "/opt/gpuwright/engines/llama.cpp-b2-k.partial",
        "/var/cache/gpuwright/build",
    }
    assert 100_000 <= partials[f"{STORE}/first/.partial"] < 120_000


def test_a_census_that_takes_too_long_is_unknown_and_not_empty(
    node: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(probe, "_SECTION_SECONDS", 0.3)
    monkeypatch.setattr(probe, "census", lambda tree, spec: time.sleep(30))
    spec = {"root": str(node), "layout": asdict(Layout()), "sections": ["ours"]}
    found = probe.main(spec, None)
    assert found["ours"] == UNKNOWN | {"user": found["ours"]["user"]}
    assert found["ours"]["user"]["uid"] == 998
    assert found["notes"] == ["ours: our files could not be read within 0.3 s"]


def test_one_file_that_cannot_be_looked_at_makes_the_census_unknown(node: Path, tmp_path: Path):
    found = look(node, tmp_path, paths=["/etc/" + "x" * 300], sections=["ours"])
    assert (found["ours"]["files"], found["ours"]["stamps"]) == (None, None)
    assert found["notes"][0].endswith("xxx: File name too long")
    (node / "etc/group").unlink()
    found = look(node, tmp_path, sections=["ours"])
    assert (found["ours"]["files"], found["notes"]) == (None, ["ours: /etc/group cannot be read"])


@pytest.mark.parametrize("status", [None, ""])
def test_a_dpkg_status_that_says_nothing_is_unknown(node: Path, tmp_path: Path, status: str | None):
    (node / "var/lib/dpkg/status").unlink()
    if status is not None:
        put(node, {"/var/lib/dpkg/status": status})
    found = look(node, tmp_path, packages=["cmake"])
    assert found["packages"] is None
    why = "is empty" if status == "" else "cannot be read"
    assert found["notes"] == [f"packages: /var/lib/dpkg/status {why}"]


def test_sockets_that_cannot_be_read_are_unknown(node: Path, tmp_path: Path):
    (node / "proc/net/tcp").unlink()
    found = look(node, tmp_path, service="llm", port=8080)
    assert found["ports"] is None
    error = found["ours"]["service"]["health"]["error"]
    assert error == "who listens on 127.0.0.1:8080 cannot be told"


def test_asks_systemd_once_and_reads_the_process_itself(node: Path, tmp_path: Path):
    service = look(node, tmp_path, service="llm", port=1)["ours"]["service"]
    assert (service["active"], service["sub"], service["restarts"]) == ("active", "running", 2)
    assert service["need_daemon_reload"] is False
    assert service["environment"] == {"GPUWRIGHT_PLAN": "abc"}
    assert service["started_at"] == 1700000000 + 4200 / os.sysconf("SC_CLK_TCK")
    assert service["pids"] == [77, 78]
    assert service["exe"]["path"].endswith("/bin/llama-server")
    assert service["health"]["error"] == "nothing listens on 127.0.0.1:1"
    assert service["fragment"] == "/etc/systemd/system/gpuwright-llm.service"
    assert service["drop_ins"] == ["/run/systemd/system/gpuwright-llm.service.d/x.conf"]
    assert len((tmp_path / "systemctl.log").read_text().splitlines()) == 1


def test_a_systemd_that_does_not_answer_is_noted_and_leaves_the_state_open(
    node: Path, tmp_path: Path
):
    found = look(node, tmp_path, systemctl="#!/bin/sh\nexit 1\n", service="llm", port=1)
    assert found["notes"] == ["service: systemd does not answer"]
    service = found["ours"]["service"]
    for key in ("active", "main_pid", "pids", "drop_ins", "fragment", "need_daemon_reload"):
        assert service[key] is None


def test_a_process_outside_of_the_control_group_is_told_nevertheless(node: Path, tmp_path: Path):
    (node / "sys/fs/cgroup/system.slice/gpuwright-llm.service/cgroup.procs").unlink()
    assert look(node, tmp_path, service="llm", port=1)["ours"]["service"]["pids"] == [77]


def served(exchange: Exchange) -> None:
    if exchange.path != "/health" and "Authorization" not in exchange.headers:
        exchange.reply_json({"error": "no"}, 401)
    else:
        exchange.reply_json({"data": [{"id": "smol"}]})


HEALTHY = {
    "status": 200,
    "models": ["smol"],
    "models_status": 200,
    "keyless_status": 401,
    "error": None,
}


def test_asks_the_service_with_its_key(node: Path, tmp_path: Path):
    with site(served) as server:
        listen(node, server.port, UNIT)
        found = look(node, tmp_path, service="llm", bind="0.0.0.0", port=server.port)
    assert found["ours"]["service"]["health"] == HEALTHY
    asked = [(path, headers.get("Authorization")) for _, path, headers in server.seen]
    key = "Bearer 0123456789abcdef"
    assert asked == [("/health", None), ("/v1/models", key), ("/v1/models", None)]


def test_a_service_that_needs_no_key_is_told(node: Path, tmp_path: Path):
    with site(lambda exchange: exchange.reply_json({"data": [{"id": "smol"}]})) as server:
        listen(node, server.port, UNIT)
        found = look(node, tmp_path, service="llm", port=server.port)
    assert found["ours"]["service"]["health"] == {**HEALTHY, "keyless_status": 200}


def test_a_stranger_on_the_port_is_named_and_is_not_sent_the_key(node: Path, tmp_path: Path):
    with site(served) as server:
        listen(node, server.port, "nginx.service", pid=99, process="nginx")
        found = look(node, tmp_path, service="llm", port=server.port)
        assert server.seen == []
    assert found["ours"]["service"]["health"] == {
        "status": None,
        "models": None,
        "models_status": None,
        "keyless_status": None,
        "error": f"port {server.port} is held by nginx (pid 99, nginx.service), not by {UNIT}",
    }


def test_one_slow_moment_is_not_taken_for_a_dead_service(node: Path, tmp_path: Path):
    def recovering(exchange: Exchange) -> None:
        if len(exchange.site.seen) < 3:
            exchange.reply(503)
        else:
            served(exchange)

    with site(recovering) as server:
        listen(node, server.port, UNIT)
        found = look(node, tmp_path, service="llm", port=server.port)
    assert found["ours"]["service"]["health"] == HEALTHY


def test_a_service_that_hangs_is_given_up_after_three_tries(node: Path, tmp_path: Path):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        listen(node, port, UNIT)
        found = look(node, tmp_path, service="llm", port=port)
    assert found["ours"]["service"]["health"]["error"].endswith("did not answer within 2 s")
    assert 8 <= found["seconds"] < 12


def test_hashes_large_files_only_when_everything_is_verified(node: Path, tmp_path: Path):
    big = put(node, {"/var/lib/gpuwright/models/smol/m.gguf": b"x" * ((1 << 20) + 1)})
    assert big == node
    path = "/var/lib/gpuwright/models/smol/m.gguf"
    assert look(node, tmp_path)["ours"]["files"][path]["sha256"] is None
    assert look(node, tmp_path, verify="full")["ours"]["files"][path]["sha256"]


def test_an_empty_tree_is_a_document_full_of_nulls(tmp_path: Path):
    empty = tmp_path / "empty"
    empty.mkdir()
    found = look(empty, tmp_path, service="llm", port=1, packages=["x"], disks=["/a"])
    assert found["gpus"]["status"] == "no_gpu"
    assert found["os"]["id"] is None
    assert set(found["memory"].values()) == {None}
    assert found["packages"] is None
    assert found["cpu"]["flags"] is None
    assert (found["ours"]["user"], found["ours"]["files"]) == (None, None)
    assert found["ours"]["service"]["active"] is None
    assert "service: PID 1 is not systemd" in found["notes"]


def test_asks_only_for_the_sections_that_are_wanted(node: Path, tmp_path: Path):
    found = look(node, tmp_path, sections=["glibc"])
    assert {key: found[key] for key in NOT_HERE} == NOT_HERE
    assert found["glibc"]


def test_fifos_and_devices_in_our_places_do_not_hold_it_up(node: Path, tmp_path: Path):
    os.mkfifo(node / "var/lib/gpuwright/plans/fifo.json")
    (node / "etc/os-release").unlink()
    os.mkfifo(node / "etc/os-release")
    found = look(node, tmp_path, service="llm", port=1)
    assert found["ours"]["files"]["/var/lib/gpuwright/plans/fifo.json"]["type"] == "other"
    assert found["seconds"] < 5


def test_real_ports_have_their_process():
    with socket.socket() as ours:
        ours.bind(("127.0.0.1", 0))
        ours.listen()
        port = ours.getsockname()[1]
        answer, _ = run("probe", {"sections": ["ports"]})
        assert [one["pid"] for one in answer["ports"] if one["port"] == port] == [os.getpid()]


def test_a_start_time_compares_with_the_time_of_files(tmp_path: Path):
    from gpuwright.onnode.service import started_at
    from gpuwright.onnode.tree import Tree

    before = time.time()
    child = subprocess.Popen(["sleep", "30"])
    try:
        started = started_at(Tree(), child.pid)
        (tmp_path / "later").touch()
        assert started is not None
        assert before - 0.05 <= started <= (tmp_path / "later").stat().st_mtime + 0.05
    finally:
        child.kill()
        child.wait()


@settings(max_examples=30, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["layout", "service", "bind", "port", "packages", "disks", "verify"]),
        st.none() | st.integers() | st.text(max_size=6) | st.lists(st.text(max_size=4), max_size=2),
        max_size=4,
    )
)
def test_any_specification_gives_a_document(tmp_path_factory: Any, spec: dict[str, Any]):
    root = tmp_path_factory.mktemp("node")
    found = probe.main({"root": str(root), "sections": None, **spec}, None)
    assert found["schema"] == 2
    assert json.dumps(found)
