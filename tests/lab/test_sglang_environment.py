"""SGLang from its lock on nodes that look like 3090 boxes: installed, proven, asked, started.

No card computes there, so its start ends where it needs one: what served before must serve on. One
node has a driver of CUDA 12, for which no wheel brings a compiler: it gets its distribution's.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpuwright.launch_environment import CudaCompiler
from gpuwright.layout import USER, Layout
from gpuwright.load import load_matrix
from gpuwright.lock_rows import LockRow
from gpuwright.questions.cards import lacking
from tests.lab import tiny_model, wheels
from tests.lab.cards import header, let_torch_see, put_cards, put_driver, put_python
from tests.lab.fixtures import do_without_lab
from tests.lab.hub import Hub
from tests.lab.lab import Lab
from tests.lab.node import Node
from tests.lab.serving import FETCHED, INSTALLED, Run, inventory, run
from tests.lab.warm import MODEL, boot_warm
from tests.nvml import rigs

pytestmark = pytest.mark.slow

LAYOUT = Layout()
MATRIX = load_matrix()
UNIT = "gpuwright-llm.service"
WHEELS = "/srv/wheels"
PROGRAM = Path(__file__).parents[1] / "engines/compile_kernels.py"


@dataclass(frozen=True)
class Case:
    """A release, and a node that it is for."""

    release: str
    tag: str
    suite: str
    driver: str
    cuda: int
    """That of the driver, as its library says it."""

    @property
    def lock(self) -> LockRow:
        found = MATRIX.lock("sglang", self.release, self.tag, "x86_64")
        assert found is not None
        return found

    @property
    def card(self) -> str:
        return rigs.scenario(rigs.card(0), *rigs.at_rest(0), driver=self.driver, cuda=self.cuda)


CUDA_13 = Case("0.5.23", "cu130", "bookworm", "580.95.05", 13000)
CUDA_12 = Case("0.5.10.post1", "cu128", "trixie", "550.163.01", 12040)


@dataclass
class Box:
    """A node on which a small model serves from the CPU, and what makes it serve from SGLang."""

    case: Case
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
            "release": self.case.release,
            "extra_models": str(self.folder / "models.yaml"),
            "hub": self.hub.url,
            "python_index": self.hub.index_url,
            "start_timeout_seconds": 200,
        }
        return run(self.hosts("card", want | more), check=False)

    def shell(self, command: str) -> str:
        return self.node.run(command).stdout.strip()

    @property
    def engine_dir(self) -> Path:
        """On the node."""
        pattern = f"{LAYOUT.engines[1:]}/sglang-{self.case.release}-*"
        (found,) = self.node.root.glob(pattern)
        return Path(LAYOUT.engines, found.name)

    @property
    def stamp(self) -> dict[str, Any]:
        path = self.node.root / str(self.engine_dir)[1:] / "gpuwright.json"
        found: dict[str, Any] = json.loads(path.read_text())
        return found


@pytest.fixture(scope="module", params=[CUDA_13, CUDA_12], ids=["cuda13", "cuda12"])
def box(
    request: pytest.FixtureRequest, lab: Lab, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Box]:
    case, folder = request.param, tmp_path_factory.mktemp("sglang")
    try:
        with wheels.borrowed(case.lock) as found, lab.hub() as hub:
            node = boot_warm(
                lab, f"sglang-{case.tag}", case.suite, binds={WHEELS: found}, apt_cache=False
            )
            prefix, minor = "/usr", "3.11"
            if case.suite == "trixie":
                # Its own Python is newer than those that the lock is for.
                prefix = put_python(node, case.lock.python)
                minor = prefix.rpartition("-")[2]
                # The toolkit's package brings a driver's libraries over those of no package.
                node.run(
                    "apt-get update -q=2 && apt-get install -q=2 libcuda1 libnvidia-ml1",
                    timeout=600,
                )
            put_cards(node, folder, case.card)
            put_driver(node, folder, header(folder, found), version=case.cuda)
            let_torch_see(node, minor, prefix, capability="8.6", cards=1, memory_gib=24)
            commit = hub.add_repository(tiny_model.REPOSITORY, tiny_model.files()).commit
            tiny_model.write_row(folder / "models.yaml", commit)
            hub.serve_packages(found)
            made = Box(case, node, hub, folder)
            made.served_on_cpu()
            yield made
            node.destroy()
    except wheels.UnavailableError as error:
        do_without_lab(str(error))


@pytest.fixture(scope="module")
def tried(box: Box) -> Run:
    return box.served_on_card()


def test_it_is_installed_and_proven_from_its_lock(box: Box, tried: Run) -> None:
    print(box.case.release, box.stamp["seconds"])
    assert box.stamp["lock"] == f"locks/{box.case.lock.filename}"
    assert box.stamp["seconds"]["proof"] > 0


def test_a_second_run_installs_nothing_anew_and_asks_no_index(box: Box, tried: Run) -> None:
    stamp = box.stamp
    box.hub.forget_requests()
    again = box.served_on_card()
    # What it cannot do is serve, still; all before that stands.
    assert "what served before serves again" in again.text, again.text
    assert {FETCHED, INSTALLED} <= set(again.quiet), again.text
    assert box.hub.requests == []
    assert box.stamp == stamp


def test_its_own_check_settles_on_the_plan_and_what_served_serves_on(box: Box, tried: Run) -> None:
    # The engine took the plan: what failed is the service, which has no card to compute on.
    assert tried.status != 0
    assert "what served before serves again" in tried.text, tried.text
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


def test_with_the_nodes_compiler_it_compiles_what_it_decodes_with(box: Box, tried: Run) -> None:
    if box.case.tag == "cu130":
        pytest.skip("tests/engines/test_compile.py compiles with that of its wheels")
    found = CudaCompiler(toolkit="/usr", jobs=2, host="/usr/bin/g++-13")
    path = {"PATH": f"{box.engine_dir}/bin:/usr/local/bin:/usr/bin:/bin"}
    home = "/var/tmp/kernels"
    place = {"HOME": home, "FLASHINFER_WORKSPACE_BASE": home, "FLASHINFER_CUDA_ARCH_LIST": "8.6"}
    box.node.run(["install", "-d", "-o", USER, home])
    (box.node.root / "opt/compile_kernels.py").write_text(PROGRAM.read_text())
    names = ("positions", "page", "decode", "prefill")
    variables = [
        f"{name}={value}" for name, value in (path | found.variables(path) | place).items()
    ]
    command = ["runuser", "-u", USER, "--", "env", "-C", home, *variables]
    command += [f"{box.engine_dir}/bin/python", "/opt/compile_kernels.py", *names]
    print(box.node.run(command, timeout=1500).stdout)
    places = box.node.root / home[1:]
    made = [path for path in places.rglob("*.so") if path.is_file()]
    assert len(made) == len(names)
    assert all(lacking(path, ["8.6"])[0] == [] for path in made)
