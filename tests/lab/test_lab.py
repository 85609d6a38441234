"""What the lab promises: nodes like small servers, and nothing left of them afterwards."""

import json
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import testinfra

from tests.lab import caches, container
from tests.lab import lab as lab_module
from tests.lab.base import CA_BUNDLE, SUITES, certificates
from tests.lab.fixtures import BootNode
from tests.lab.lab import Lab
from tests.lab.machine import LabError, mounts_below, remove_tree, run
from tests.lab.node import Node, RemoteError

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.lab


def traces(lab_id: int) -> set[str]:
    """What this machine still has of a lab, by the names that only that lab can have."""
    name, home = f"gwlab{lab_id}", lab_module.labs_home() / str(lab_id)
    links = [link["ifname"] for link in json.loads(run("ip", "-j", "link").stdout)]
    lines = [f"nft {line}" for line in run("nft", "list", "tables").stdout.splitlines()]
    lines += [f"loop {line}" for line in run("losetup", "-a").stdout.splitlines()]
    lines += [f"mount {path}" for path in mounts_below(home)]
    return {
        *(f"link {link}" for link in links if re.fullmatch(rf"{name}(v\d+)?", link)),
        *(line for line in lines if f"{home}/" in line or line.endswith(f"table ip {name}")),
        *(f"cgroup {machine}" for machine in container.machines(f"{name}-")),
        *(f"home {path}" for path in home.parent.glob(str(lab_id))),
    }


def nspawn_lock(node: Node) -> Path:
    """The file by which nspawn keeps a tree from being booted twice."""
    status = node.root.stat()
    return Path(f"/run/systemd/nspawn/locks/inode-{status.st_dev}:{status.st_ino}")


@pytest.fixture(scope="module")
def node(lab: Lab) -> Iterator[Node]:
    """One node that tests share which do not break it."""
    shared = lab.boot("shared")
    yield shared
    shared.destroy()


@pytest.mark.parametrize("suite", SUITES)
def test_a_node_of_each_suite_is_a_running_debian_of_its_own(
    boot_node: BootNode, suite: str
) -> None:
    node = boot_node("own", suite)
    assert node.run("systemctl is-system-running").stdout == "running\n"
    assert node.run("cat /proc/1/comm").stdout == "systemd\n"
    assert f"VERSION_CODENAME={suite}" in node.run("cat /etc/os-release").stdout
    assert node.run("hostname").stdout == "own\n"
    assert node.run("journalctl -b -u ssh.service -q").stdout != ""


def test_a_node_trusts_what_this_machine_trusts_and_goes_on_doing_so(node: Node) -> None:
    assert f"SSL_CERT_FILE={CA_BUNDLE}" in node.run("env").stdout.splitlines()
    node.run("update-ca-certificates")
    there = node.run(["cat", CA_BUNDLE]).stdout
    assert certificates(Path(CA_BUNDLE).read_text()) <= certificates(there)


def test_a_list_of_words_reaches_a_node_as_those_words(node: Node) -> None:
    words = ["a b", "$HOME", "'", "*"]
    assert node.run(["printf", "%s|", *words]).stdout == "|".join([*words, ""])


def test_a_failed_command_tells_what_it_said(node: Node) -> None:
    with pytest.raises(RemoteError, match="no such file at all") as caught:
        node.run("echo no such file at all >&2; exit 3")
    assert caught.value.returncode == 3
    assert node.run("exit 3", check=False).returncode == 3


def test_testinfra_sees_a_node(node: Node) -> None:
    host = testinfra.get_host(node.testinfra_uri)
    assert host.service("ssh").is_running
    assert host.file("/etc/hostname").content_string == f"{node.name}\n"


def test_pyinfra_changes_a_node_as_a_user_with_a_sudo_password(node: Node, tmp_path: Path) -> None:
    assert node.add_user("carol", sudo="password") == "carol-password"
    hosts = [(node.name, node.pyinfra_host_data("carol"))]
    (tmp_path / "hosts.py").write_text(f"nodes = {hosts!r}\n")
    argv = [sys.executable, "-m", "pyinfra", "-y", "hosts.py", "files.file", "/etc/made-by-carol"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert node.run("stat -c %U /etc/made-by-carol").stdout == "root\n"


@pytest.mark.parametrize(
    ("sudo", "free", "with_password"),
    [("nopasswd", True, True), ("password", False, True), (None, False, False)],
)
def test_a_user_has_the_sudo_that_was_asked_for(
    node: Node, sudo: str | None, free: bool, with_password: bool
) -> None:
    name = f"user-{sudo}".lower()
    password = node.add_user(name, sudo=sudo)
    assert node.run("id -un", user=name).stdout == f"{name}\n"
    assert (node.run("sudo -n true", user=name, check=False).returncode == 0) is free
    line = "sudo -S -k true"
    asked = node.run(line, user=name, check=False, stdin=f"{password or 'x'}\n")
    assert (asked.returncode == 0) is with_password


def test_a_power_cut_keeps_files_and_ends_processes_without_a_word(boot_node: BootNode) -> None:
    node = boot_node()
    boot_id = "cat /proc/sys/kernel/random/boot_id"
    before = node.run(boot_id).stdout
    node.run("echo kept > /root/file; systemd-run --unit=sleeper sleep 999")
    client = subprocess.Popen(
        [*node.ssh_argv, f"root@{node.address}", "sleep 999"], stdin=subprocess.DEVNULL
    )
    try:
        time.sleep(0.5)
        node.power_off()
        assert not node.is_running
        # Nobody closed the connection: the client does not know yet.
        assert client.poll() is None
        assert node.run("true", check=False).returncode == 255
    finally:
        client.kill()
        client.wait()
    node.power_on()
    assert node.run("cat /root/file").stdout == "kept\n"
    assert node.run("systemctl is-active sleeper", check=False).stdout == "inactive\n"
    assert node.run(boot_id).stdout != before
    log = node.run("journalctl -b -1 -q -o cat").stdout
    assert "sleeper" in log
    assert "System Power Off" not in log


def test_a_shutdown_is_a_clean_one(boot_node: BootNode) -> None:
    node = boot_node()
    node.shutdown()
    assert not node.is_running
    node.power_on()
    assert "System Power Off" in node.run("journalctl -b -1 -q -o cat").stdout


def test_a_node_that_reboots_itself_comes_back(boot_node: BootNode) -> None:
    node = boot_node()
    before = node.run("systemctl show -P UserspaceTimestampMonotonic").stdout
    node.run("systemctl reboot", check=False)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        done = node.run("systemctl show -P UserspaceTimestampMonotonic", check=False)
        if done.returncode == 0 and done.stdout != before:
            return
        time.sleep(0.2)
    pytest.fail("the node did not come back within 30 s")


def test_a_limited_disk_is_full_when_it_is_full_and_stays_so_over_a_power_cut(
    boot_node: BootNode,
) -> None:
    node = boot_node()
    node.run("install -d -m 0750 -o games /srv/models")
    node.limit_disk("/srv/models", 32 << 20)
    assert node.run("stat -c '%a %U' /srv/models").stdout == "750 games\n"
    free = "stat -f -c '%a %S' /srv/models"
    blocks, size = map(int, node.run(free).stdout.split())
    assert 20 << 20 < blocks * size < 32 << 20
    write = "dd if=/dev/zero of=/srv/models/f bs=1M count=40"
    assert "No space left on device" in node.run(write, check=False).stderr
    node.run("rm /srv/models/f; echo kept > /srv/models/g")

    node.fill_disk("/srv/models", leave=1 << 20)
    node.power_off()
    node.power_on()
    blocks, size = map(int, node.run(free).stdout.split())
    assert (1 << 20) - 8 * size <= blocks * size <= (1 << 20) + 8 * size
    node.free_disk("/srv/models")
    assert node.run("cat /srv/models/g").stdout == "kept\n"
    node.run("dd if=/dev/zero of=/srv/models/f bs=1M count=16")


def test_only_a_limited_disk_can_be_filled(node: Node) -> None:
    with pytest.raises(LabError, match="/var: no disk of its own"):
        node.fill_disk("/var")


@pytest.mark.parametrize(("how", "status"), [("reject", 1), ("drop", 124)])
def test_a_blocked_node_reaches_the_lab_and_nothing_beyond(
    lab: Lab, node: Node, how: str, status: int
) -> None:
    with Lab() as world, lab.hub() as hub:
        inside = ["curl", "-sf", "-m", "3", hub.add_file("f", b"here")]
        beyond = ["timeout", "3", *banner_of(world.boot("beyond"))]
        assert node.run(beyond).stdout == "SSH-"
        node.block_network(how)
        try:
            assert node.run(inside).stdout == "here"
            assert node.run(beyond, check=False).returncode == status
        finally:
            node.unblock_network()
        assert node.run(beyond).stdout == "SSH-"


def test_a_node_reaches_the_mirror_of_this_machine(node: Node) -> None:
    assert node.run("apt-get -qq update").stderr == ""


def banner_of(node: Node) -> list[str]:
    """The words with which one node asks another who answers on port 22."""
    return ["bash", "-c", f"exec 3<>/dev/tcp/{node.address}/22 && head -c 4 <&3"]


def test_packages_are_downloaded_once_for_all_nodes(lab: Lab, boot_node: BootNode) -> None:
    first = boot_node("first")
    first.run("apt-get -qq update && apt-get -qq install -y hello", timeout=300)
    first.shutdown()
    second = boot_node("second")
    assert "hello_" in second.run(["ls", caches.ARCHIVES]).stdout
    second.run("apt-get clean")
    assert list(caches.shared("archives/bookworm").glob("hello_*.deb"))


def test_nodes_boot_side_by_side_and_reach_each_other(lab: Lab) -> None:
    nodes = lab.boot_all(["left", "right", "middle"])
    try:
        assert len({node.address for node in nodes}) == 3
        for node in nodes:
            assert node.run(banner_of(nodes[0])).stdout == "SSH-"
        # Each has its own services: a stop on one is none on another.
        nodes[0].run("systemctl stop dbus.socket dbus.service")
        assert nodes[1].run("systemctl is-active dbus.service").stdout == "active\n"
    finally:
        for node in nodes:
            node.destroy()


def test_a_closed_lab_leaves_no_trace(lab: Lab) -> None:
    with Lab() as other:
        node = other.boot("gone")
        node.limit_disk("/srv", 8 << 20)
        node.block_network()
        kinds = {trace.split()[0] for trace in traces(other.id)}
        assert kinds == {"link", "nft", "loop", "mount", "cgroup", "home"}
        lock = nspawn_lock(node)
        assert lock.exists()
    assert traces(other.id) == set()
    assert not lock.exists()


def test_two_labs_do_not_touch_each_other(lab: Lab, node: Node) -> None:
    with Lab() as other:
        assert not other.subnet.overlaps(lab.subnet)
        twin = other.boot(node.name)
        twin.run("echo other > /root/whose")
        assert node.run("test -e /root/whose", check=False).returncode == 1
    assert node.run("systemctl is-system-running").stdout == "running\n"


PROGRAM = """
    import sys, time
    from tests.lab import Lab
    lab = Lab("{name}", keep={keep})
    node = lab.boot("orphan")
    node.limit_disk("/srv", 8 << 20)
    print(lab.id, flush=True)
    time.sleep(600)
"""


def killed_lab(name: str, keep: bool) -> int:
    """Open a lab in a process of its own and kill that; returns the lab's id."""
    program = textwrap.dedent(PROGRAM.format(name=name, keep=keep))
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        lab_id = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
    return lab_id


def test_what_a_killed_lab_left_is_cleared_by_the_next_and_live_labs_are_spared(
    lab: Lab, node: Node
) -> None:
    lab_id = killed_lab("killed", keep=False)
    assert container.is_running(f"gwlab{lab_id}-orphan")
    with Lab() as new:
        assert "killed" not in names()
        assert traces(lab_id) == set() or new.id == lab_id
        assert not container.is_running(f"gwlab{lab_id}-orphan")
    assert traces(lab_id) == set()
    assert node.run("true").returncode == 0


def test_leftovers_without_a_record_are_known_by_the_mark_on_their_bridge(lab: Lab) -> None:
    lab_id = killed_lab("torn", keep=False)
    remove_tree(lab_module.labs_home() / str(lab_id) / "nodes")
    (lab_module.labs_home() / str(lab_id) / "lab.json").unlink()
    assert lab_id in lab_module.clear_leftovers()
    assert traces(lab_id) == set()


def test_a_kept_lab_outlives_its_process_and_is_found_by_its_name(lab: Lab) -> None:
    lab_id = killed_lab("kept-by-test", keep=True)
    assert lab_id not in lab_module.clear_leftovers()
    with Lab.find("kept-by-test") as found:
        assert found.node("orphan").run("hostname").stdout == "orphan\n"
    # Leaving `with` did not close it.
    found.close()
    assert traces(lab_id) == set()
    with pytest.raises(LabError, match="no such lab"):
        Lab.find("kept-by-test")


def test_closing_twice_does_not_close_the_lab_that_came_after(lab: Lab) -> None:
    first = Lab()
    first.close()
    with Lab() as second:
        # Ids are used again; here it is certain.
        first.id = second.id
        first.close()
        assert traces(second.id)


def names() -> set[str]:
    return {record.get("name", "") for record in lab_module.records().values()}


def test_an_interface_that_only_looks_like_ours_is_left_alone(lab: Lab) -> None:
    name = "gwlab98"
    run("ip", "link", "add", name, "type", "bridge")
    try:
        lab_module.clear_leftovers()
        run("ip", "link", "show", name)
    finally:
        run("ip", "link", "delete", name)


def test_the_command_line_boots_reaches_and_removes_a_node(lab: Lab) -> None:
    def cli(*words: str) -> str:
        argv = [sys.executable, "-m", "tests.lab", *words]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    cli("up", "by-hand", "--suite", "trixie", "--user")
    try:
        assert cli("ssh", "by-hand", "id", "-u", "ops").strip().isdigit()
        assert re.search(r"^ +by-hand +trixie +\S+ +running$", cli("list"), re.MULTILINE)
    finally:
        cli("down", "by-hand")
    assert "by-hand" not in cli("list")


def test_a_kept_lab_is_taken_away_by_its_name(lab: Lab) -> None:
    other = Lab("kept-by-test", keep=True)
    other.boot("box")
    argv = [sys.executable, "-m", "tests.lab", "down", "kept-by-test"]
    subprocess.run(argv, cwd=ROOT, check=True, timeout=120)
    with pytest.raises(LabError):
        Lab.find("kept-by-test")
