"""vLLM's CUDA wheels on a node that looks like a 3090 box: installed, proven, asked about the plan.

No card is there, so the service cannot start: what served before must serve on.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuwright import carry
from gpuwright.layout import USER, Layout
from gpuwright.load import load_matrix
from gpuwright.lock_rows import LockRow
from gpuwright.questions import cards
from tests.lab import tiny_model, wheels
from tests.lab.cards import LIBRARIES, header, put_cards, put_driver
from tests.lab.fixtures import do_without_lab
from tests.lab.hub import Hub
from tests.lab.lab import Lab
from tests.lab.node import Node
from tests.lab.serving import FETCHED, INSTALLED, Run, inventory, run
from tests.lab.warm import MODEL, boot_warm
from tests.nvml import rigs

pytestmark = pytest.mark.slow

LAYOUT = Layout()
UNIT = "gpuwright-llm.service"
ON_CPU = {"model": MODEL, "gpus": "none"}
RELEASES = {"0.33.0": "cu130", "0.19.1": "cu128"}


def lock_of(release: str) -> LockRow:
    lock = load_matrix().lock("vllm", release, RELEASES[release], "x86_64")
    assert lock is not None
    return lock


class Box:
    """A node where the small model serves from the CPU, and the hub that has the rest."""

    def __init__(self, node: Node, hub: Hub, folder: Path, release: str, wheelhouse: Path) -> None:
        self.node, self.hub, self.folder, self.release = node, hub, folder, release
        self.cuda_h = header(folder, wheelhouse)
        commit = hub.add_repository(tiny_model.REPOSITORY, tiny_model.files()).commit
        self.want: dict[str, Any] = {
            "model": tiny_model.MODEL,
            "engine": "vllm",
            "release": release,
            "extra_models": str(tiny_model.write_row(folder / "models.yaml", commit)),
            "hub": hub.url,
            "python_index": hub.index_url,
            "start_timeout_seconds": 120,
        }

    def drive(self, version: int) -> None:
        """Let the driver's own library be one for this CUDA."""
        put_driver(self.node, self.folder, self.cuda_h, version=version)

    def serve(self, want: dict[str, Any], *, check: bool = True) -> Run:
        hosts = [(self.node, {"gpuwright": want})]
        return run(inventory(self.folder / "hosts.py", hosts), check=check, timeout=3600)

    def cpu_service(self) -> int:
        """The process of what served before, which answers."""
        self.node.run("curl -fsS http://127.0.0.1:8080/health")
        assert "/bin/llama-server" in self.node.run(f"cat {LAYOUT.unit_path('llm')}").stdout
        return int(self.node.run(f"systemctl show -p MainPID --value {UNIT}").stdout)

    def engine_dir(self) -> Path:
        (found,) = self.node.root.glob(f"{LAYOUT.engines[1:]}/vllm-{self.release}-*")
        return found


@pytest.fixture(scope="module", params=RELEASES)
def box(
    request: pytest.FixtureRequest, lab: Lab, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Box]:
    folder = tmp_path_factory.mktemp("cards")
    try:
        with wheels.borrowed(lock_of(request.param)) as wheelhouse, lab.hub() as hub:
            node = boot_warm(lab, f"vllm-{RELEASES[request.param]}")
            put_cards(node, folder, rigs.ONE_3090)
            hub.serve_packages(wheelhouse)
            made = Box(node, hub, folder, request.param, wheelhouse)
            made.drive(13000)
            made.serve(ON_CPU)
            yield made
            node.destroy()
    except wheels.UnavailableError as error:
        do_without_lab(str(error))


@pytest.fixture(scope="module")
def failed(box: Box) -> Run:
    """A run that does all but serve."""
    box.cpu_service()
    done = box.serve(box.want, check=False)
    assert done.status != 0
    return done


def test_it_is_installed_proven_and_takes_the_plan(box: Box, failed: Run) -> None:
    stamp = json.loads((box.engine_dir() / "gpuwright.json").read_text())
    print(box.release, stamp["seconds"])
    # Only what was rehearsed is started, and only what was started is waited for in vain.
    assert "what served before serves again" in failed.text, failed.text


def test_what_served_before_serves_on_where_it_cannot_start(box: Box, failed: Run) -> None:
    assert box.cpu_service() > 0


def test_a_second_run_installs_nothing_anew_and_asks_no_index(box: Box, failed: Run) -> None:
    stamp = box.engine_dir() / "gpuwright.json"
    before = stamp.stat().st_ino, stamp.stat().st_mtime_ns, stamp.read_bytes()
    box.hub.forget_requests()
    again = box.serve(box.want, check=False)
    # What it cannot do is serve, still; all before that stands.
    assert "what served before serves again" in again.text, again.text
    assert {FETCHED, INSTALLED} <= set(again.quiet), again.text
    assert box.hub.requests == []
    assert (stamp.stat().st_ino, stamp.stat().st_mtime_ns, stamp.read_bytes()) == before


def test_its_compiler_is_its_own(box: Box, failed: Run) -> None:
    toolkit = box.engine_dir() / "cuda"
    if box.release == "0.19.1":
        assert not toolkit.exists()
        return
    assert str((toolkit / "lib64/libcuda.so").readlink()) == f"/{LIBRARIES}/libcuda.so.1"
    nvcc = f"{LAYOUT.engines}/{box.engine_dir().name}/cuda/bin/nvcc"
    assert "release 13.0" in box.node.run(f"{nvcc} --version").stdout


def test_a_driver_whose_library_is_too_old_is_refused_before_anything_is_stopped(
    box: Box, failed: Run
) -> None:
    before = box.cpu_service()
    box.drive(11080)
    try:
        done = box.serve(box.want, check=False)
    finally:
        box.drive(13000)
    assert done.status != 0
    (tag,) = load_matrix().engine_release("vllm", box.release).build_tags
    major = str(tag.cuda).partition(".")[0]
    assert f"vllm {box.release}: driver: needs CUDA {major}.0 or later, found 11.8" in done.text
    assert box.cpu_service() == before


def test_a_card_that_its_code_is_not_for_is_refused(box: Box, failed: Run) -> None:
    row = load_matrix().engine_release("vllm", box.release).environment
    assert row is not None
    asked = {
        "kernels": list(row.kernels),
        "capabilities": ["6.1"],
        "cuda": load_matrix().engine_release("vllm", box.release).build_tags[0].cuda,
        "programs": [],
        "compiles": False,
    }
    spec = {
        "engine_dir": f"{LAYOUT.engines}/{box.engine_dir().name}",
        "scratch": "/run/gpuwright/card.rehearsal",
        "user": USER,
        "kept": LAYOUT.kernels("vllm", box.release),
        "label": f"vllm {box.release}",
        "cards": {"program": Path(cards.__file__).read_text(), "asked": asked},
    }
    told = carry.parse(
        box.node.run(carry.command("rehearse", spec), check=False).stdout.splitlines()
    )
    assert not told["ok"]
    assert (
        f"{row.kernels[0]}: needs code for compute capability 6.1, found code for" in told["error"]
    )
