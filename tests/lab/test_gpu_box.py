"""A node that looks like a box with a 3090: what is seen, decided and refused, and the gate."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuwright import carry
from gpuwright.launch import launch
from gpuwright.layout import Layout
from gpuwright.plan import PlannedGpu
from gpuwright.units import render_unit
from tests.lab.cards import change_cards, put_cards
from tests.lab.lab import Lab
from tests.lab.node import Node
from tests.lab.serving import ROOT, inventory, run
from tests.lab.warm import boot_warm
from tests.nvml import rigs
from tests.unit.plans import PLAN

pytestmark = pytest.mark.lab

MODEL = "SmolLM2-135M-Instruct"
UNIT = "gpuwright-llm.service"
GPU = PlannedGpu(uuid=rigs.uuid(0), index=0, name="RTX 3090", compute_capability="8.6")


class Box:
    """A node with the stand-in driver library, on which the small model serves from the CPU."""

    def __init__(self, node: Node, folder: Path) -> None:
        self.node, self.folder = node, folder
        self.hosts = inventory(
            folder / "cpu.py", [(node, {"gpuwright": {"model": MODEL, "gpus": "none"}})]
        )

    def rig(self, scenario: str) -> None:
        change_cards(self.node, scenario)

    def gpus(self) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-m", "pyinfra", str(self.hosts), "fact", "facts.gpu.Gpus", "--json"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        found: dict[str, Any] = json.loads(done.stdout)["facts.gpu.Gpus"][self.node.name]
        return found

    def gate(self, gpu_uuids: list[str]) -> dict[str, Any]:
        spec = {
            "unit": UNIT,
            "bind": "127.0.0.1",
            "port": 8080,
            "served_model_name": MODEL,
            "env_file": Layout().environment_path("llm"),
            "deadline_seconds": 60,
            "prompt": "Say hello.",
            "gpu_uuids": gpu_uuids,
        }
        done = self.node.run(carry.command("gate", spec), check=False)
        return carry.parse(done.stdout.splitlines())

    def pid(self) -> int:
        return int(self.node.run(f"systemctl show -p MainPID --value {UNIT}").stdout)


@pytest.fixture(scope="module")
def box(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    node = boot_warm(lab, "rig")
    folder = tmp_path_factory.mktemp("rig")
    put_cards(node, folder, rigs.TWO_3090)
    made = Box(node, folder)
    run(made.hosts)
    yield made
    node.destroy()


@pytest.mark.parametrize(
    ("scenario", "status", "devices", "word"),
    [
        (rigs.ONE_3090, "ok", 1, ""),
        (rigs.TWO_3090, "ok", 2, ""),
        (rigs.MISMATCH, "driver_mismatch", 0, "reboot"),
        (rigs.LOST, "gpu_lost", 1, ""),
        (rigs.HANG, "unreadable", 0, ""),
        (rigs.FORBIDDEN, "unreadable", 0, ""),
    ],
)
def test_state_of_the_cards_is_a_fact_and_never_a_failed_host(
    box: Box, scenario: str, status: str, devices: int, word: str
) -> None:
    box.rig(scenario)
    found = box.gpus()
    assert found["status"] == status
    assert len(found["devices"]) == devices
    assert found["detail"] or status == "ok"
    assert word in found["detail"]


def test_cuda_plan_is_explained_and_refused_in_one_line(box: Box) -> None:
    box.rig(rigs.ONE_3090)
    hosts = inventory(
        box.folder / "cuda.py",
        [(box.node, {"gpuwright": {"model": "Qwen3.6-27B", "service": "big", "port": 8090}})],
    )
    explained = run(hosts, deploy="deploys/explain.py")
    assert "RTX 3090" in explained.text
    assert "why not" in explained.text
    done = run(hosts, check=False)
    assert done.status != 0
    (line,) = [line for line in done.text.splitlines() if "nothing was touched" in line]
    assert box.node.name in line
    assert "cu" in line.partition("(")[2]
    assert "Traceback" not in done.text


def test_a_card_that_no_toolkit_of_the_node_knows_is_refused_by_its_row(box: Box) -> None:
    box.rig(rigs.ONE_5090_OLD_DRIVER)
    want = {"model": MODEL, "engine": "llama.cpp", "service": "big", "port": 8090}
    hosts = inventory(box.folder / "5090.py", [(box.node, {"gpuwright": want})])
    told = run(hosts, deploy="deploys/explain.py", check=False).text
    assert "CUDA 13.3 runtime: needs driver >= 580, found 570.86.10 [cuda 13.3]" in told
    needed = "compiler of CUDA 12.8: needs NVIDIA's package repository, found debian-12"
    assert f"{needed} [cuda 12.8]" in told
    serving = box.pid()
    done = run(hosts, check=False)
    assert done.status != 0
    assert "`cuda_repository: true`" in done.text
    box.node.run("curl -fsS http://127.0.0.1:8080/health")
    assert box.pid() == serving


@pytest.mark.parametrize("scenario", [rigs.MISMATCH, rigs.LOST, rigs.HANG])
def test_broken_driver_is_refused_and_the_cpu_is_not_taken_in_silence(
    box: Box, scenario: str
) -> None:
    box.rig(scenario)
    hosts = inventory(
        box.folder / "auto.py",
        [(box.node, {"gpuwright": {"model": "auto", "service": "big", "port": 8090}})],
    )
    done = run(hosts, check=False)
    assert done.status != 0
    assert "GPU" in done.text
    assert "gpus: none" in done.text
    assert box.node.run(["test", "-e", Layout().unit_path("big")], check=False).returncode == 1


def test_cpu_service_goes_on_unchanged_beside_a_broken_driver(box: Box) -> None:
    box.rig(rigs.MISMATCH)
    assert run(box.hosts).changed == []


def test_gate_passes_a_cpu_plan(box: Box) -> None:
    result = box.gate([])
    assert result["ok"], result
    assert result["completion"]["text"]


def test_gate_fails_a_service_that_answers_from_the_cpu_under_a_cuda_plan(box: Box) -> None:
    box.rig(rigs.ONE_3090)
    result = box.gate([rigs.uuid(0)])
    assert not result["ok"]
    assert rigs.uuid(0) in result["error"]
    assert "CPU" in result["error"]


def test_gate_fails_a_service_that_is_on_another_gpu(box: Box) -> None:
    process = f"process 1 {box.pid()} 1073741824"
    box.rig(rigs.scenario(rigs.card(0), rigs.card(1), process))
    result = box.gate([rigs.uuid(0)])
    assert not result["ok"]
    assert rigs.uuid(0) in result["error"]


def test_gate_passes_a_service_that_is_on_the_planned_gpu(box: Box) -> None:
    process = f"process 0 {box.pid()} 1073741824"
    box.rig(rigs.scenario(rigs.card(0), rigs.card(1), process))
    result = box.gate([rigs.uuid(0)])
    assert result["ok"], result
    assert result["gpus"] == [rigs.uuid(0)]


@pytest.mark.parametrize(("gpus", "limit"), [((), 1.5), ((GPU,), 2.5)])
def test_unit_is_verified_by_systemd_and_rated(
    box: Box, gpus: tuple[PlannedGpu, ...], limit: float
) -> None:
    plan = replace(
        PLAN,
        gpus=gpus,
        parameters={"threads": 2, "flash_attention": "auto", "gpu_layers": "all"}
        | {"prompt_cache_mib": 256},
    )
    layout = Layout()
    unit = render_unit(
        plan=plan,
        launch=replace(launch(plan, layout, "/m.gguf", "/e"), argv=("/bin/true",)),
        layout=layout,
        engine_dir="/e",
        templates=ROOT / "templates",
        systemd_version=252,
    )
    path = "/run/gpuwright-rated.service"
    (box.node.root / "run").mkdir(exist_ok=True)
    box.node.run(f"cat > {path}", stdin=unit)
    said = box.node.run(["systemd-analyze", "verify", path])
    assert said.stdout + said.stderr == ""
    rating = box.node.run(
        f"systemd-analyze security --offline=true --no-pager {path} | tail -n 1"
    ).stdout
    assert float(rating.split(":")[1].split()[0]) <= limit, rating
