"""Kernels of llama.cpp and of its fork, made by the toolkit and with the arguments of a plan."""

import os
import subprocess
from pathlib import Path

import pytest

from gpuwright.onnode.toolkit import stand
from gpuwright.onnode.workshop import Workshop
from tests.cuda.rig import Specs, specs
from tests.lab import caches
from tests.unit.onnode_rig import run
from tools.sm_scan import targets_of

OBJECTS = "ggml/src/ggml-cuda/CMakeFiles/ggml-cuda.dir"
CACHED = "template-instances/fattn-vec-instance-q8_0-q8_0.cu.o"
"""Attention over a packed cache."""
QUANTIZED = "quantize.cu.o"
"""Activations in MXFP4, with what only cards of 12.x compute."""
FORK = {"engine": "ik_llama.cpp", "release": "0.1.5"}
FORKS_OBJECTS = "ggml/src/CMakeFiles/ggml.dir/ggml-cuda"


def fetched(found: Specs) -> None:
    answer, _ = run("fetch", found.fetch, seconds=900)
    assert answer["ok"], answer


def compiled(found: Specs, name: str) -> Path:
    """One object of the build, made by the build's own steps."""
    shop = Workshop(found.build | {"target": name}, os.open("/dev/null", os.O_RDONLY))
    Path(shop.place).mkdir(parents=True)
    shop.configure(shop.unpack())
    shop.compile()
    return Path(shop.place) / "build" / name


@pytest.mark.engine
@pytest.mark.parametrize(
    ("card", "want", "name", "capability"),
    [
        ("RTX 3090", {}, f"{OBJECTS}/{CACHED}", "8.6"),
        ("RTX 5090", {}, f"{OBJECTS}/{QUANTIZED}", "12.0"),
        ("RTX 3090", FORK, f"{FORKS_OBJECTS}/{QUANTIZED}", "8.6"),
    ],
    ids=["8.6", "12.0", "fork-8.6"],
)
def test_a_kernel_is_machine_code_for_the_card_and_nothing_else(
    tmp_path, card, want, name, capability
):
    found = specs([card], tmp_path, caches.shared("cuda"), **want)
    fetched(found)
    stand(found.build["toolkit"])
    targets = targets_of(compiled(found, name))
    assert set(targets.code) == {capability}
    assert not targets.ptx


@pytest.mark.slow
def test_the_whole_engine_links_starts_and_lists_its_devices(tmp_path):
    found = specs(["RTX 3090"], tmp_path, caches.shared("cuda"))
    fetched(found)
    answer, finished = run("build", found.build, seconds=3 * 3600)
    assert answer["ok"], answer
    directory = Path(found.build["engine_dir"])
    server = directory / "bin/llama-server"
    told = subprocess.run([server, "--list-devices"], capture_output=True, text=True, check=True)
    # No card is here; on a node with cards the build fails unless it lists them.
    assert "Available devices:" in told.stdout
    assert set(targets_of(server).code) == {"8.6"}
    assert not targets_of(server).ptx
    linked = subprocess.run(["ldd", server], capture_output=True, text=True, check=True).stdout
    for name in ("libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13"):
        assert f"{directory}/bin/{name}" in linked
    assert run("build", found.build)[0]["engine"] == "kept"
    print(answer, finished.stderr[-500:])
