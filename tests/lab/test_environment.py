"""A bare node serves a model of safetensors from vLLM's CPU build, installed from its lock."""

import json
import re
import shlex
import shutil
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuwright.layout import Layout
from tests.lab import tiny_model, wheels
from tests.lab.fixtures import do_without_lab
from tests.lab.hub import Hub
from tests.lab.lab import Lab
from tests.lab.node import Node
from tests.lab.serving import FETCHED, INSTALLED, Run, inventory, run, start

pytestmark = pytest.mark.lab

LAYOUT = Layout()
UNIT = "gpuwright-llm.service"
WHEELS = "/srv/wheels"
SITE = "lib/python3.11/site-packages"
TAKEN = "The engine takes the plan"
RESTARTED = ["The service runs what the plan says", "The model answers"]


class Box:
    """A node, the hub that has all it needs, and the inventory that makes it serve."""

    def __init__(self, node: Node, hub: Hub, folder: Path) -> None:
        self.node, self.hub, self.folder = node, hub, folder
        commit = hub.add_repository(tiny_model.REPOSITORY, tiny_model.files()).commit
        self.rows = tiny_model.write_row(folder / "models.yaml", commit)
        self.inventory = self.inventory_with("hosts.py", {})

    def inventory_with(self, name: str, want: dict[str, Any]) -> Path:
        full = {
            "model": tiny_model.MODEL,
            "engine": "vllm",
            "extra_models": str(self.rows),
            "hub": self.hub.url,
            "python_index": self.hub.index_url,
        }
        return inventory(self.folder / name, [(self.node, {"gpuwright": full | want})])

    def shell(self, command: str, timeout: float = 120) -> str:
        return self.node.run(command, timeout=timeout).stdout.strip()

    @property
    def pid(self) -> str:
        return self.shell(f"systemctl show -p MainPID --value {UNIT}")

    @property
    def engine_dir(self) -> str:
        return str(json.loads(self.shell(f"cat {LAYOUT.plan_path('llm')}"))["engine_dir"])

    def engines(self) -> list[str]:
        return self.shell(f"ls {LAYOUT.engines}").split()

    def answer(self) -> dict[str, Any]:
        body = {
            "model": tiny_model.MODEL,
            "messages": [{"role": "user", "content": "word7 word8"}],
            "max_tokens": 4,
        }
        key = self.shell(f"sed -n s/^VLLM_API_KEY=//p {LAYOUT.environment_path('llm')}")
        words = ["curl", "-sS", "-m", "60", "-H", f"Authorization: Bearer {key}"]
        words += ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
        words.append("http://127.0.0.1:8080/v1/chat/completions")
        found: dict[str, Any] = json.loads(self.shell(shlex.join(words)))
        return found

    def unstamp(self) -> None:
        """Make the next run install anew, and download everything for it."""
        self.shell(f"rm -rf {LAYOUT.cache}/uv {self.engine_dir}/gpuwright.json")


@pytest.fixture(scope="module")
def box(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    try:
        folder = wheels.ensure(wheels.cpu_lock())
    except wheels.UnavailableError as error:
        do_without_lab(str(error))
    node = lab.boot("environment", binds={WHEELS: folder})
    with lab.hub() as hub:
        hub.serve_packages(folder)
        yield Box(node, hub, tmp_path_factory.mktemp("environment"))
    node.destroy()


@pytest.fixture(scope="module")
def killed(box: Box) -> list[str]:
    """What stands after a run that was cut off while it installed."""
    process = start(box.inventory)
    for _ in range(1200):
        if box.shell(f"ls -d {LAYOUT.engines}/*.partial/lib 2>/dev/null || true"):
            break
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    box.node.power_off()
    process.kill()
    process.communicate()
    box.node.power_on()
    return box.engines()


@pytest.fixture(scope="module")
def served(box: Box, killed: list[str]) -> Run:
    return run(box.inventory)


def test_a_power_cut_leaves_nothing_that_could_be_taken_for_an_engine(killed: list[str]) -> None:
    assert killed
    assert all(name.endswith(".partial") for name in killed), killed


def test_the_next_run_installs_proves_and_serves(box: Box, served: Run) -> None:
    assert served.changed[-2:] == RESTARTED
    assert {INSTALLED, TAKEN} <= set(served.changed)
    assert box.engines() == [box.engine_dir.rpartition("/")[2]]
    # What the proof has compiled, the service need not.
    assert (
        box.shell(f"ls /var/cache/gpuwright/vllm-*/python{LAYOUT.engines}").split() == box.engines()
    )
    assert box.answer()["usage"]["completion_tokens"] > 0


def test_a_second_run_changes_nothing_and_asks_no_index(box: Box, served: Run) -> None:
    box.hub.forget_requests()
    pid = box.pid
    second = run(box.inventory)
    assert second.changed == []
    assert box.pid == pid
    assert box.hub.requests == []


def test_the_key_is_not_in_the_journal(box: Box, served: Run) -> None:
    key = box.shell(f"sed -n s/^VLLM_API_KEY=//p {LAYOUT.environment_path('llm')}")
    assert len(key) >= 32
    assert key not in box.shell("journalctl --no-pager")
    assert key not in served.text


def test_unit_is_rated_at_most_1_5(box: Box, served: Run) -> None:
    rating = box.shell(f"systemd-analyze security --no-pager {UNIT} | tail -n 1")
    assert float(rating.split(":")[1].split()[0]) <= 1.5, rating


def tampered(folder: Path, beside: Path, package: str) -> Path:
    """A folder like `folder`, but for one wheel, which is whole and holds something else."""
    beside.mkdir()
    for wheel in folder.glob("*.whl"):
        if wheel.name.startswith(f"{package}-"):
            shutil.copy(wheel, beside)
            with zipfile.ZipFile(beside / wheel.name, "a") as opened:
                opened.writestr(f"{package}/more.py", "print('not what was locked')")
        else:
            (beside / wheel.name).symlink_to(wheel)
    return beside


def refused(box: Box) -> str:
    """What a run says that cannot install; what serves must not have noticed."""
    pid, engines = box.pid, box.engines()
    box.unstamp()
    try:
        failed = run(box.inventory, check=False)
    finally:
        box.hub.heal()
    assert failed.status != 0
    assert box.engines() == engines
    assert box.pid == pid
    assert box.answer()["usage"]["completion_tokens"] > 0
    sentence = next(line for line in failed.text.splitlines() if "cannot be installed" in line)
    assert f"locks/{wheels.cpu_lock().filename}" in sentence
    assert box.hub.index_url in sentence
    return sentence


def test_a_tampered_wheel_is_refused(box: Box, served: Run, tmp_path: Path) -> None:
    folder = wheels.ensure(wheels.cpu_lock())
    box.hub.serve_packages(tampered(folder, tmp_path / "tampered", "anyio"))
    try:
        assert "anyio==" in refused(box)
    finally:
        box.hub.serve_packages(folder)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"match": "/simple/starlette/", "status": 404}, ["starlette=="]),
        ({"match": "/simple/*", "status": 500}, ["500 Internal Server Error"]),
        ({"match": "/packages/*", "hang": True}, ["retries"]),
    ],
    ids=["missing wheel", "index that fails", "index that hangs"],
)
def test_what_serves_goes_on_when_packages_cannot_be_had(
    box: Box, served: Run, fault: dict[str, Any], said: list[str]
) -> None:
    box.hub.fail(**fault)
    sentence = refused(box)
    for word in said:
        assert word in sentence


def test_nothing_that_is_installed_is_for_others_to_write(box: Box, served: Run) -> None:
    assert box.shell("find /opt/gpuwright /var/cache/gpuwright ! -type l -perm /022") == ""


def test_a_module_that_was_written_into_is_noticed_by_a_full_look(box: Box, served: Run) -> None:
    run(box.inventory)  # whole again, after those that could not be installed anew
    path = f"{box.engine_dir}/{SITE}/anyio/to_thread.py"
    box.shell(f"cp {path} /root/kept && echo 'import os' >> {path}")
    try:
        assert f"{path} was changed" in run(box.inventory, "--dry", "--data", "verify=full").text
    finally:
        box.shell(f"cat /root/kept > {path}")
    assert "nothing to change" in run(box.inventory, "--dry", "--data", "verify=full").text


def test_what_was_planted_is_noticed_and_a_folder_of_wheels_is_enough_to_install_anew(
    box: Box, served: Run
) -> None:
    run(box.inventory)
    planted = f"{box.engine_dir}/{SITE}/zzz.pth"
    box.shell(f"echo 'import os' > {planted}; rm -rf {LAYOUT.cache}/uv {LAYOUT.cache}/sources/uv-*")
    box.hub.forget_requests()
    done = run(box.inventory_with("offline.py", {"python_offline": WHEELS}))
    assert f"{planted} was not installed" in done.text
    assert done.changed == [FETCHED, INSTALLED, TAKEN, *RESTARTED]
    assert box.hub.requests == []
    assert box.shell(f"ls {planted} 2>/dev/null || true") == ""
    assert box.answer()["usage"]["completion_tokens"] > 0


def test_a_drafter_is_brought_taken_by_the_engine_and_drafts(box: Box, served: Run) -> None:
    run(box.inventory)
    done = run(box.inventory_with("drafting.py", {"speculative": "draft-model"}))
    model, unit = "The model's files are present and verified", "The unit is the plan's"
    assert {model, TAKEN, unit, *RESTARTED} <= set(done.changed)
    assert INSTALLED not in done.changed
    box.answer()
    key = box.shell(f"sed -n s/^VLLM_API_KEY=//p {LAYOUT.environment_path('llm')}")
    line = f"curl -sS -H 'Authorization: Bearer {key}' http://127.0.0.1:8080/metrics"
    counted = re.search(
        r"^vllm:spec_decode_num_draft_tokens_total\S* ([\d.]+)", box.shell(line), re.MULTILINE
    )
    assert counted
    assert float(counted[1]) > 0


def test_a_disk_that_is_too_small_is_refused_before_anything_is_done(box: Box, lab: Lab) -> None:
    node = lab.boot("small-disk")
    try:
        node.limit_disk("/opt", 512 << 20)
        small = Box(node, box.hub, box.folder)
        failed = run(small.inventory_with("small.py", {}), check=False)
        assert failed.status != 0
        assert "below /opt" in failed.text
        assert "nothing was touched" in failed.text
        assert not node.run("ls /opt/gpuwright 2>/dev/null", check=False).stdout
    finally:
        node.destroy()
