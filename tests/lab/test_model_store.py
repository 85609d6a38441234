"""The model store against a hub that misbehaves: gated, cut off, slow, lying."""

import hashlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuwright.load import MATRIX
from tests.lab.hub import Hub
from tests.lab.lab import Lab
from tests.lab.node import Node
from tests.lab.serving import Run, inventory, run, start
from tests.lab.warm import boot_warm

pytestmark = pytest.mark.lab

MODEL = "SmolLM2-135M-Instruct"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
TOKEN = "hf_lab_0123456789abcdef"
STORE = "/var/lib/gpuwright/models"
FETCHED = "The model's files are present and verified"


@pytest.fixture(scope="module")
def node(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node that serves the catalogue's model, so that its engine is there and its file real."""
    booted = boot_warm(lab, "store")
    folder = tmp_path_factory.mktemp("store")
    run(inventory(folder / "hosts.py", [(booted, {"gpuwright": {"model": MODEL}})]))
    yield booted
    booted.destroy()


@pytest.fixture(scope="module")
def weights(node: Node) -> Path:
    """The real file, on this machine."""
    found = list((node.root / STORE.lstrip("/")).glob(f"*/{FILE}"))
    assert len(found) == 1
    return found[0]


class Mirror:
    """A gated repository with the real file, and an inventory that serves from it."""

    def __init__(self, node: Node, hub: Hub, weights: Path, folder: Path, name: str) -> None:
        self.node, self.hub, self.folder, self.name = node, hub, folder, name
        self.repository = hub.add_repository("lab/smollm2", {FILE: weights}, tokens=(TOKEN,))
        self.token = folder / "token"
        self.token.write_text(f"{TOKEN}\n")
        self.token.chmod(0o600)
        self.size = weights.stat().st_size
        self.sha256 = self.repository.files[FILE].sha256

    def inventory(self, source: dict[str, Any] | None = None, **want: Any) -> Path:
        """Serves `name` on a port of its own, with its file from the hub or from `source`."""
        source = source or {
            "kind": "hub",
            "repo": "lab/smollm2",
            "revision": self.repository.commit,
            "path": FILE,
        }
        row = next(
            row
            for row in yaml.safe_load((MATRIX / "models" / "smollm2.yaml").read_text())
            if row["id"] == "smollm2-135m-instruct"
        )
        checkpoint = row["checkpoints"][0] | {"id": f"{self.name}-q4", "aliases": []}
        checkpoint["size"] = f"{self.size} B"
        checkpoint["files"] = [
            {"path": FILE, "bytes": self.size, "sha256": self.sha256, "sources": [source]}
        ]
        row |= {"id": self.name, "name": self.name, "aliases": [], "checkpoints": [checkpoint]}
        models = self.folder / "models.yaml"
        models.write_text(yaml.safe_dump([row]))
        full = {
            "model": self.name,
            "service": self.name,
            "port": 8090,
            "extra_models": str(models),
            "hub": self.hub.url,
            "hub_token_file": str(self.token),
        }
        path = self.folder / f"{self.name}.py"
        return inventory(path, [(self.node, {"gpuwright": full | want})])

    @property
    def directory(self) -> str:
        return f"{STORE}/{self.name}-q4"

    def stored(self) -> list[str]:
        listed = self.node.run(["find", self.directory, "-type", "f"], check=False).stdout
        return sorted(Path(line).name for line in listed.splitlines())

    def cleaned(self) -> None:
        unit = f"gpuwright-{self.name}.service"
        self.node.run(f"systemctl disable --now {unit}; rm -rf {self.directory}", check=False)


@pytest.fixture
def mirror(
    node: Node, hub: Hub, weights: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Mirror]:
    name = request.node.name.removeprefix("test_").replace("_", "-")[:24].strip("-")
    made = Mirror(node, hub, weights, tmp_path, name)
    yield made
    made.cleaned()


def _refused(done: Run, *texts: str) -> None:
    assert done.status != 0, done.text
    assert "Traceback" not in done.text, done.text
    for text in texts:
        assert text in done.text, done.text


def test_gated_repository_is_served_with_the_token_which_goes_nowhere_else(mirror: Mirror) -> None:
    hosts = mirror.inventory()
    done = run(hosts)
    assert FETCHED in done.changed
    assert TOKEN not in done.text
    assert mirror.stored() == [FILE, "gpuwright.json"]
    big = mirror.hub.requests_to("cdn")
    assert big
    assert all(TOKEN not in str(request) for request in big)
    found = mirror.node.run(f"grep -rlF {TOKEN} /etc /opt /var /tmp /run 2>/dev/null", check=False)
    assert found.stdout == ""
    assert TOKEN not in mirror.node.run("journalctl --no-pager").stdout
    assert run(hosts).changed == []


@pytest.mark.parametrize("token", [None, "hf_wrong"])
def test_gated_repository_without_access_is_refused_by_name(
    mirror: Mirror, token: str | None
) -> None:
    want: dict[str, Any] = {"hub_token_file": None}
    if token is not None:
        wrong = mirror.folder / "wrong"
        wrong.write_text(token)
        want = {"hub_token_file": str(wrong)}
    _refused(run(mirror.inventory(**want), check=False), mirror.node.name, "lab/smollm2", "token")
    assert mirror.stored() == []


def test_wrong_hash_is_refused_before_anything_is_touched(mirror: Mirror) -> None:
    mirror.sha256 = "0" * 64
    _refused(run(mirror.inventory(), check=False), mirror.node.name, FILE, "sha256")
    assert mirror.stored() == []


def test_wrong_bytes_from_a_plain_url_leave_nothing_behind(mirror: Mirror) -> None:
    url = mirror.hub.add_file("lie.gguf", os.urandom(mirror.size))
    done = run(mirror.inventory({"kind": "url", "url": url}), check=False)
    _refused(done, mirror.node.name, FILE, "sha256")
    assert mirror.stored() == []


def test_download_resumes_where_the_killed_control_machine_left_it(mirror: Mirror) -> None:
    hosts = mirror.inventory()
    mirror.hub.fail("*/blobs/*", rate=16 << 20)
    process = start(hosts)
    deadline = time.monotonic() + 60
    partial = mirror.node.root / mirror.directory.lstrip("/") / ".partial"
    while sum(path.stat().st_size for path in partial.glob("*")) < 20 << 20:
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    mirror.node.run("pkill -9 -f gpuwright.onnode; pkill -9 -x python3", check=False)
    mirror.hub.heal()
    mirror.hub.forget_requests()
    run(hosts)
    ranges = [request.range for request in mirror.hub.requests_to("cdn")]
    assert any(text and int(text.removeprefix("bytes=").split("-")[0]) > 0 for text in ranges)
    assert run(hosts).changed == []


def test_dropped_connections_are_resumed_within_one_run(mirror: Mirror) -> None:
    mirror.hub.fail("*/blobs/*", drop_after=30 << 20, times=2)
    run(mirror.inventory())
    assert mirror.stored() == [FILE, "gpuwright.json"]


def test_power_cut_during_the_download(mirror: Mirror) -> None:
    hosts = mirror.inventory()
    mirror.hub.fail("*/blobs/*", rate=16 << 20)
    process = start(hosts)
    partial = mirror.node.root / mirror.directory.lstrip("/") / ".partial"
    deadline = time.monotonic() + 60
    while not any(path.stat().st_size for path in partial.glob("*")):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    mirror.node.power_off()
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    mirror.node.power_on()
    mirror.hub.heal()
    run(hosts)
    assert run(hosts).changed == []
    assert mirror.stored() == [FILE, "gpuwright.json"]


def test_local_path_on_the_node_is_a_source(mirror: Mirror, weights: Path) -> None:
    path = f"/{weights.relative_to(mirror.node.root)}"
    run(mirror.inventory({"kind": "local", "path": path}))
    assert mirror.stored() == [FILE, "gpuwright.json"]


def test_service_that_cannot_load_fails_the_run_with_its_journal(mirror: Mirror) -> None:
    junk = mirror.folder / "junk.gguf"
    junk.write_bytes(b"GGUF" + os.urandom(1 << 20))
    url = mirror.hub.add_file("junk.gguf", junk)
    mirror.size = junk.stat().st_size
    mirror.sha256 = hashlib.sha256(junk.read_bytes()).hexdigest()
    done = run(mirror.inventory({"kind": "url", "url": url}), check=False)
    _refused(done, mirror.node.name, f"gpuwright-{mirror.name}.service", "gguf")
    key_file = f"/etc/gpuwright/services/{mirror.name}.env"
    key = mirror.node.run(f"sed -n s/^LLAMA_API_KEY=//p {key_file}").stdout.strip()
    assert key
    assert key not in done.text


def test_full_disk_is_refused_before_the_first_byte(mirror: Mirror) -> None:
    mirror.node.limit_disk("/mnt/tiny", 64 << 20)
    done = run(mirror.inventory(model_store="/mnt/tiny/models"), check=False)
    _refused(done, mirror.node.name, "/mnt/tiny", "GiB")
    assert mirror.node.run("ls /mnt/tiny").stdout.strip() in ("", "lost+found")
