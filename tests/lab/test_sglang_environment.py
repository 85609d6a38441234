"""SGLang from its lock on a node that looks like a 3090 box: installed, proven, asked, started.

No card computes there, so its start ends where it needs one: what served before must serve on.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpuwright.layout import Layout
from gpuwright.load import load_matrix
from tests.lab import tiny_model, wheels
from tests.lab.cards import header, let_torch_see, put_cards, put_driver
from tests.lab.fixtures import do_without_lab
from tests.lab.hub import Hub
from tests.lab.lab import Lab
from tests.lab.node import Node
from tests.lab.serving import FETCHED, INSTALLED, Run, inventory, run
from tests.lab.warm import MODEL, boot_warm
from tests.nvml import rigs

pytestmark = pytest.mark.slow

LAYOUT = Layout()
LOCK = load_matrix().lock("sglang", "0.5.23", "cu130", "x86_64")
UNIT = "gpuwright-llm.service"
WHEELS = "/srv/wheels"
CARD = rigs.scenario(rigs.card(0), *rigs.at_rest(0))


@dataclass
class Box:
    """A node on which a small model serves from the CPU, and what makes it serve from SGLang."""

    node: Node
    hub: Hub
    folder: Path

    def hosts(self, name: str, want: dict[str, Any]) -> Path:
        return inventory(self.folder / f"{name}.py", [(self.node, {"gpuwright": want})])

    def served_on_cpu(self) -> Run:
        return run(self.hosts("cpu", {"model": MODEL, "gpus": "none"}))

    def served_on_card(self, **more: Any) -> Run:
        want = {
            "model": tiny_model.MODEL,
            "engine": "sglang",
            "release": "0.5.23",
            "extra_models": str(self.folder / "models.yaml"),
            "hub": self.hub.url,
            "python_index": self.hub.index_url,
            "start_timeout_seconds": 200,
        }
        return run(self.hosts("card", want | more), check=False)

    def shell(self, command: str) -> str:
        return self.node.run(command).stdout.strip()

    @property
    def pid(self) -> str:
        return self.shell(f"systemctl show -p MainPID --value {UNIT}")


@pytest.fixture(scope="module")
def box(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    assert LOCK is not None
    folder = tmp_path_factory.mktemp("sglang")
    try:
        with wheels.borrowed(LOCK) as found, lab.hub() as hub:
            node = boot_warm(lab, "sglang-cuda", binds={WHEELS: found})
            put_cards(node, folder, CARD)
            put_driver(node, folder, header(folder, found))
            let_torch_see(node, "3.11", capability="8.6", cards=1, memory_gib=24)
            commit = hub.add_repository(tiny_model.REPOSITORY, tiny_model.files()).commit
            tiny_model.write_row(folder / "models.yaml", commit)
            hub.serve_packages(found)
            made = Box(node, hub, folder)
            made.served_on_cpu()
            yield made
            node.destroy()
    except wheels.UnavailableError as error:
        do_without_lab(str(error))


@pytest.fixture(scope="module")
def tried(box: Box) -> Run:
    return box.served_on_card()


@pytest.fixture(scope="module")
def stamp(box: Box, tried: Run) -> dict[str, Any]:
    (path,) = box.node.root.glob("opt/gpuwright/engines/sglang-0.5.23-*/gpuwright.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_it_is_installed_and_proven_from_its_lock(tried: Run, stamp: dict[str, Any]) -> None:
    print(stamp["seconds"])
    assert stamp["lock"] == f"locks/{LOCK.filename}"  # type: ignore[union-attr]
    assert stamp["seconds"]["proof"] > 0


def test_a_second_run_installs_nothing_anew_and_asks_no_index(
    box: Box, tried: Run, stamp: dict[str, Any]
) -> None:
    box.hub.forget_requests()
    again = box.served_on_card()
    # What it cannot do is serve, still; all before that stands.
    assert "what served before serves again" in again.text, again.text
    assert {FETCHED, INSTALLED} <= set(again.quiet), again.text
    assert box.hub.requests == []
    (path,) = box.node.root.glob("opt/gpuwright/engines/sglang-0.5.23-*/gpuwright.json")
    assert json.loads(path.read_text()) == stamp


def test_its_own_check_settles_on_the_plan_and_what_served_serves_on(
    box: Box, tried: Run, stamp: dict[str, Any]
) -> None:
    # The engine took the plan: what failed is the service, which has no card to compute on.
    assert tried.status != 0
    assert "what served before serves again" in tried.text
    assert box.served_on_cpu().changed == []
    box.shell("curl -fsS http://127.0.0.1:8080/health")


def test_the_key_is_in_no_log_of_its_real_start(box: Box, tried: Run) -> None:
    key = box.shell(f"sed -n s/^SGLANG_API_KEY=//p {LAYOUT.environment_path('llm')}")
    assert len(key) >= 32
    journal = box.shell("journalctl --no-pager -o cat")
    # Its scheduler, a process of its own, came to where the cards are to talk to one another.
    assert "no GPUs found" in journal
    assert key not in journal
    assert key not in tried.text
