"""What goes wrong while an environment is installed, on real nodes with the real uv: each is said
in one sentence, nothing half made is used, what stood before stands."""

import base64
import hashlib
import http.server
import json
import os
import shutil
import subprocess
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from uv import find_uv_bin

from gpuwright.carry import command, parse
from gpuwright.environments import _listing
from gpuwright.layout import Layout
from gpuwright.python_rows import PythonRow
from gpuwright.retiring import retire_spec
from gpuwright.want import Want
from tests.lab import base
from tests.lab.hub import Hub
from tests.lab.lab import Lab
from tests.lab.node import Node

pytestmark = pytest.mark.lab

TOOLS = "/srv/tools"
BULK_BYTES = 48 << 20
SITE = "lib/python3.11/site-packages"


def write_wheel(folder: Path, name: str, files: dict[str, bytes]) -> str:
    """A wheel of version 1.0; its sha256."""
    info = f"{name}-1.0.dist-info"
    files = files | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [f"{info}/RECORD,,\n"]
    for path, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        rows.append(f"{path},sha256={digest},{len(content)}\n")
    target = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(target, "w") as packed:
        for path, content in (files | {f"{info}/RECORD": "".join(rows).encode()}).items():
            packed.writestr(path, content)
    return hashlib.sha256(target.read_bytes()).hexdigest()


class Rig:
    """A node, an index with two packages, and the carried program that installs them."""

    def __init__(self, node: Node, hub: Hub, hashes: dict[str, str]) -> None:
        self.node, self.hub, self.hashes = node, hub, hashes
        self.top = "/opt/gpuwright"

    @property
    def engine_dir(self) -> str:
        return f"{self.top}/engines/tiny-1.0-key"

    def spec(self, **more: Any) -> dict[str, Any]:
        index = {"default": self.hub.index_url, "timeout_seconds": 3}
        return {
            "key": "key",
            "engine_dir": self.engine_dir,
            "lock": "/run/gpuwright/tiny.lock",
            "lock_id": "locks/tiny.txt",
            "requirements": {f"{name}==1.0": [digest] for name, digest in self.hashes.items()},
            "python": {"executable": "/usr/bin/python3.11"},
            "uv": f"{TOOLS}/uv",
            "cache_dir": f"{self.top}/cache",
            "imports": ["small"],
            "user": "daemon",
            "need_bytes": 1,
            "retire": retire_spec(Want()),
            **more,
            "index": index | more.get("index", {}),
        }

    def install(self, **more: Any) -> dict[str, Any]:
        done = self.node.run(command("environment", self.spec(**more)), check=False, timeout=300)
        return parse(done.stdout.splitlines())

    def start(self, **more: Any) -> "subprocess.Popen[str]":
        line = command("environment", self.spec(**more))
        return subprocess.Popen(
            [*self.node.ssh_argv, f"root@{self.node.address}", "--", line],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def shell(self, line: str) -> str:
        return self.node.run(line).stdout.strip()

    def names(self) -> list[str]:
        return self.shell(f"ls -A {self.top}/engines 2>/dev/null || true").split()

    def inode(self) -> str:
        return self.shell(f"stat -c %i {self.engine_dir}/gpuwright.json")

    def forget(self) -> None:
        """Nothing stands, nothing is cached, nothing is wrong with the index."""
        self.hub.heal()
        self.hub.forget_requests()
        self.shell(f"rm -rf {self.top}/engines {self.top}/cache")

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, "never"
            time.sleep(0.05)

    def until_packages_come(self) -> None:
        self.until(lambda: self.hub.requests_to("hub", "/packages/bulk*"))


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    folder = tmp_path_factory.mktemp("packages")
    small = {"small/__init__.py": b"from small import inner\n", "small/inner.py": b"one = 1\n"}
    bulk = {"bulk.bin": os.urandom(BULK_BYTES)}
    return folder, {
        "small": write_wheel(folder, "small", small),
        "bulk": write_wheel(folder, "bulk", bulk),
    }


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tools")
    shutil.copy(find_uv_bin(), folder / "uv")
    return folder


@pytest.fixture(scope="module")
def index(lab: Lab, packages: tuple[Path, dict[str, str]]) -> Iterator[Hub]:
    with lab.hub() as hub:
        hub.serve_packages(packages[0])
        yield hub


@pytest.fixture(scope="module")
def node(lab: Lab, tools: Path) -> Iterator[Node]:
    booted = lab.boot("faults", binds={TOOLS: tools})
    yield booted
    booted.destroy()


@pytest.fixture
def rig(node: Node, index: Hub, packages: tuple[Path, dict[str, str]]) -> Iterator[Rig]:
    made = Rig(node, index, packages[1])
    made.forget()
    yield made
    made.forget()


def is_refused(answer: dict[str, Any], *said: str) -> None:
    assert answer["ok"] is False, answer
    for word in said:
        assert word in answer["error"], answer


def test_a_disk_that_is_filled_meanwhile_is_named_and_what_stood_stands(rig: Rig) -> None:
    rig.top = "/opt/small"
    rig.node.limit_disk(rig.top, 256 << 20)
    assert rig.install(requirements={"small==1.0": [rig.hashes["small"]]})["ok"] is True
    stood = rig.inode()
    rig.hub.fail(match="/packages/bulk*", rate=8 << 20)
    process = rig.start(key="other", engine_dir=f"{rig.top}/engines/tiny-1.0-other")
    rig.until_packages_come()
    rig.node.fill_disk(rig.top, leave=1 << 20)
    answer = parse(process.communicate(timeout=120)[0].splitlines())
    is_refused(answer, "no space is left on the filesystem /opt/small")
    assert rig.names() == ["tiny-1.0-key"]
    assert rig.inode() == stood
    rig.node.free_disk(rig.top)
    rig.hub.heal()
    other = {"key": "other", "engine_dir": f"{rig.top}/engines/tiny-1.0-other"}
    assert rig.install(**other)["engine"] == "installed"


def test_a_power_cut_while_packages_come_leaves_nothing_that_is_used(rig: Rig) -> None:
    rig.hub.fail(match="/packages/bulk*", stall_after=1 << 20)
    process = rig.start()
    rig.until_packages_come()
    rig.node.power_off()
    process.kill()
    process.communicate()
    rig.hub.heal()
    rig.node.power_on()
    assert rig.names() == ["tiny-1.0-key.partial"]
    assert rig.install()["engine"] == "installed"
    assert rig.names() == ["tiny-1.0-key"]


def test_a_power_cut_about_the_stamp_leaves_all_of_it_or_nothing(rig: Rig) -> None:
    process = rig.start()
    places = [
        rig.node.root / f"opt/gpuwright/engines/tiny-1.0-key{end}" for end in ("", ".partial")
    ]
    rig.until(lambda: any((place / "gpuwright.json").exists() for place in places))
    rig.node.power_off()
    process.kill()
    process.communicate()
    rig.node.power_on()
    assert rig.install(verify="full")["engine"] in ("installed", "kept")
    assert rig.install(verify="full")["engine"] == "kept"
    assert rig.names() == ["tiny-1.0-key"]


def test_a_program_that_is_asked_to_end_unwinds(rig: Rig) -> None:
    rig.hub.fail(match="/packages/bulk*", stall_after=1 << 20)
    process = rig.start()
    rig.until_packages_come()
    rig.shell("pkill -TERM -f '^python3 -I -S -c'")
    is_refused(parse(process.communicate(timeout=60)[0].splitlines()), "stopped by signal 15")
    assert rig.names() == []
    assert rig.shell("pgrep -x uv || true") == ""


def test_a_program_that_is_killed_holds_its_lock_until_its_uv_has_ended(rig: Rig) -> None:
    rig.hub.fail(match="/packages/bulk*", rate=16 << 20)
    first = rig.start()
    rig.until_packages_come()
    rig.shell("pkill -KILL -f '^python3 -I -S -c'")
    first.communicate(timeout=60)
    assert rig.shell("pgrep -x uv")
    second = rig.start()
    out, said = second.communicate(timeout=120)
    assert "another run is installing tiny-1.0-key: waiting" in said
    assert parse(out.splitlines())["engine"] == "installed"
    assert rig.names() == ["tiny-1.0-key"]


def test_a_session_that_is_cut_does_not_stop_the_work(rig: Rig) -> None:
    rig.hub.fail(match="/packages/bulk*", rate=24 << 20)
    process = rig.start()
    rig.until_packages_come()
    process.kill()
    process.communicate()
    rig.until(lambda: rig.names() == ["tiny-1.0-key"])
    assert rig.install(verify="full")["engine"] == "kept"


def test_two_runs_at_once_install_once(rig: Rig) -> None:
    rig.hub.fail(match="/packages/bulk*", rate=24 << 20)
    both = [rig.start(), rig.start()]
    told = [parse(process.communicate(timeout=120)[0].splitlines()) for process in both]
    assert sorted(answer["engine"] for answer in told) == ["installed", "kept"]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"match": "/simple/*", "status": 403}, "403"),
        ({"match": "/simple/*", "status": 500}, "500"),
        ({"match": "/packages/bulk*", "status": 403}, "403"),
        ({"match": "/packages/bulk*", "hang": True}, "bulk==1.0"),
        ({"match": "/packages/bulk*", "wrong_bytes": True}, "bulk==1.0"),
        ({"match": "/packages/bulk*", "length": 1 << 20}, "bulk==1.0"),
    ],
    ids=["forbidden", "fails", "wheel forbidden", "hangs", "other bytes", "cut off"],
)
def test_an_index_that_does_not_deliver_is_named(
    rig: Rig, fault: dict[str, Any], said: str
) -> None:
    rig.hub.fail(**fault)
    is_refused(rig.install(), "locks/tiny.txt", rig.hub.index_url, said)
    assert rig.names() == []


@contextmanager
def portal(address: str) -> Iterator[str]:
    """A network that answers everything with its own page, as one does that wants a login."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = b"<!DOCTYPE html><html><body><form>Sign in</form></body></html>"
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, format: str, *args: Any) -> None:
            """Nobody reads it."""

    server = http.server.ThreadingHTTPServer((address, 0), Page)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://{address}:{server.server_port}/simple"
    finally:
        server.shutdown()
        server.server_close()


def test_a_page_that_is_no_index_is_named(rig: Rig, lab: Lab) -> None:
    with portal(lab.address) as url:
        is_refused(rig.install(index={"default": url}), "locks/tiny.txt", url)
    assert rig.names() == []


def test_a_proxy_that_refuses_is_named(rig: Rig, lab: Lab) -> None:
    proxy = f"http://{lab.address}:9"
    is_refused(rig.install(index={"proxy": proxy}), "locks/tiny.txt", rig.hub.index_url, proxy)
    assert rig.names() == []


def test_a_missing_ca_bundle_is_named(rig: Rig) -> None:
    is_refused(rig.install(index={"ca_bundle": "/etc/none.pem"}), "ca_bundle /etc/none.pem")
    assert rig.names() == []


def test_a_yanked_release_is_installed_where_the_lock_names_it(rig: Rig) -> None:
    """The lock was proven with it, and its hash says that it is that file."""
    rig.hub.yank("bulk-1.0-py3-none-any.whl", "broken")
    try:
        assert rig.install()["engine"] == "installed"
    finally:
        rig.hub.yank("bulk-1.0-py3-none-any.whl", None)


def test_nothing_is_for_others_to_write(rig: Rig) -> None:
    assert rig.install()["engine"] == "installed"
    assert rig.shell(f"find {rig.top} ! -type l -perm /022") == ""
    assert rig.shell(f"find {rig.top} ! -user root") == ""


def test_what_the_proof_compiled_is_kept_under_the_final_name(rig: Rig) -> None:
    for _ in range(2):
        rig.shell(f"rm -rf {rig.engine_dir}")
        assert rig.install(kept="/var/tmp/kept")["engine"] == "installed"
        assert rig.shell("ls /var/tmp/kept/python/opt/gpuwright/engines") == "tiny-1.0-key"
        found = rig.shell("find /var/tmp/kept -path '*/small/inner*.pyc' -user daemon")
        assert found.endswith(".pyc"), found


def test_what_was_changed_or_planted_is_installed_anew(rig: Rig) -> None:
    rig.install()
    site = f"{rig.engine_dir}/{SITE}"
    rig.shell(f"echo import os > {site}/zzz.pth")
    assert rig.install()["engine"] == "installed"
    rig.shell(f"echo two = 2 >> {site}/small/inner.py")
    assert rig.install()["engine"] == "kept"
    assert rig.install(verify="full")["engine"] == "installed"
    assert rig.shell(f"cat {site}/small/inner.py") == "one = 1"


@pytest.fixture(scope="module")
def python_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bookworm's Python, packed as the archive of a Python that is brought is."""
    path = tmp_path_factory.mktemp("mirror") / "python.tar.gz"
    tree = base.ensure("bookworm")

    def wanted(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        left_out = {"__pycache__", "dist-packages", "test"} & set(Path(member.name).parts)
        return None if left_out or member.issym() else member

    with tarfile.open(path, "w:gz", compresslevel=1) as packed:
        packed.add(tree / "usr/bin/python3.11", "python/bin/python3.11")
        packed.add(tree / "usr/lib/python3.11", "python/lib/python3.11", filter=wanted)
    return path


def test_a_python_is_brought_from_a_mirror_where_the_node_has_none(
    lab: Lab, index: Hub, packages: tuple[Path, dict[str, str]], tools: Path, python_archive: Path
) -> None:
    node = lab.boot("brought", "trixie", binds={TOOLS: tools})
    try:
        rig = Rig(node, index, packages[1])
        assert rig.shell("ls /usr/bin/python3.11 2>/dev/null || true") == ""
        _bring(rig, python_archive)
    finally:
        node.destroy()


def _bring(rig: Rig, archive: Path) -> None:
    row = PythonRow(
        id="bookworm",
        python="3.11.2",
        architecture="x86_64",
        path="20990101/python.tar.gz",
        sha256=hashlib.sha256(archive.read_bytes()).hexdigest(),
        sources=(),
    )
    mirror = f"{rig.hub.url}/files/mirror"
    python = {
        "place": Layout().pythons,
        "directory": row.directory,
        "minor": row.minor,
        "version": row.python,
        "mirror": mirror,
        "listing": json.dumps(_listing(row, mirror)),
    }
    is_refused(rig.install(python=python), "pythons.yaml: Python 3.11.2", mirror)
    rig.hub.add_file("mirror/20990101/python.tar.gz", archive)
    assert rig.install(python=python)["engine"] == "installed"
    rig.hub.forget_requests()
    assert rig.install(python=python, verify="full")["engine"] == "kept"
    assert rig.hub.requests == []
    assert rig.shell(f"{rig.engine_dir}/bin/python -c 'import sys; print(sys.base_prefix)'") == (
        f"{Layout().pythons}/{row.directory}"
    )
    assert rig.shell("find /opt/gpuwright ! -type l -perm /022") == ""
    decoder = f"{Layout().pythons}/{row.directory}/lib/python3.11/json/decoder.py"
    rig.shell(f"echo 'import os' >> {decoder}")
    assert rig.install(python=python)["engine"] == "kept"
    assert rig.install(python=python, verify="full")["engine"] == "installed"
    assert rig.shell(f"grep -c '^import os' {decoder} || true") == "0"
