"""Debian's CUDA toolkit, for cards and drivers that NVIDIA's wheels do not serve."""

import json
import shutil
from pathlib import Path

import pytest

from gpuwright import carry
from tests.cuda.rig import Specs, planned
from tests.cuda.test_kernels import CACHED, OBJECTS
from tests.lab import caches
from tests.lab.fixtures import BootNode
from tests.lab.node import Node
from tests.lab.serving import ROOT, Run, inventory, run
from tests.unit.onnode_rig import run as run_here
from tests.unit.test_onnode_build import archive
from tools.sm_scan import targets_of

SUITES = [("bookworm", "debian-12"), ("trixie", "debian-13")]

TOOLKIT = "nvidia-cuda-toolkit"
DEPLOY = """
from deploys.operations import node

node.packages_are_installed(name="Packages", names={names!r}, repository={repository!r})
"""

# Steps of the carried build program, up to one object.
COMPILE = """
import json, os, sys
sys.path.insert(0, "/opt/ours")
from gpuwright.onnode.workshop import Workshop
shop = Workshop(json.load(open("/opt/ours/spec.json")), os.open("/dev/null", os.O_RDONLY))
os.makedirs(shop.place)
shop.configure(shop.unpack())
shop.compile()
print(shop.place)
"""

# Links what llama.cpp links.
TINY = {
    "tiny-1/CMakeLists.txt": """cmake_minimum_required(VERSION 3.18)
project(tiny CXX CUDA)
find_package(CUDAToolkit REQUIRED)
add_executable(tiny-server tiny.cu)
set_target_properties(tiny-server PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
target_link_libraries(tiny-server PRIVATE CUDA::cudart CUDA::cublas CUDA::cuda_driver)
""",
    "tiny-1/tiny.cu": """#include <cstdio>
#include <cublas_v2.h>
#include <cuda.h>
__global__ void one(float *x) { *x = 1.0f; }
int main() {
    int driver = 0, blas = 0;
    cuDriverGetVersion(&driver);
    cublasGetProperty(MAJOR_VERSION, &blas);
    if (driver) one<<<1, 1>>>(nullptr);
    printf("tiny %d\\n", blas);
}
""",
}


def install(node: Node, folder: Path, names: tuple[str, ...], repository: str | None) -> Run:
    """The operation that installs packages, on its own."""
    deploy = folder / "packages.py"
    deploy.write_text(DEPLOY.format(names=names, repository=repository))
    hosts = inventory(folder / "hosts.py", [(node, {})])
    return run(hosts, deploy=str(deploy), check=False, timeout=1200)


@pytest.mark.lab
def test_apt_is_not_let_at_a_driver_that_is_no_package(boot_node: BootNode, tmp_path: Path):
    node = boot_node("bare")
    done = install(node, tmp_path, (TOOLKIT,), None)
    assert done.status != 0
    assert "apt would change the driver of this node" in done.text
    assert "libcuda1" in done.text
    assert node.run(f"dpkg -l {TOOLKIT} libcuda1", check=False).returncode != 0


@pytest.mark.lab
def test_package_sources_that_lack_the_toolkit_are_named(boot_node: BootNode, tmp_path: Path):
    node = boot_node("free")
    node.run("sed -i 's/ contrib non-free.*//' /etc/apt/sources.list")
    told = planned(["Tesla P40"])
    done = install(node, tmp_path, (TOOLKIT,), told.repository)
    assert done.status != 0
    assert TOOLKIT in done.text.partition("E: ")[2]
    assert "the node's package sources must have the component non-free of Debian" in done.text


@pytest.mark.slow
@pytest.mark.parametrize(("suite", "distro"), SUITES)
def test_debians_toolkit_compiles_for_pascal_and_its_runtime_packages_are_enough(
    boot_node: BootNode, tmp_path: Path, suite: str, distro: str
):
    told = planned(["Tesla P40"], sketch={"distro": distro})
    node = boot_node("compiles", suite, apt_cache=False)
    node.run("apt-get update -q=2 && apt-get install -q=2 libcuda1 libnvidia-ml1", timeout=600)
    done = install(node, tmp_path, told.build_packages, told.repository)
    assert done.status == 0, done.text
    kernel = targets_of(compiled(node, told))
    assert set(kernel.code) == {"6.1"}
    assert not kernel.ptx
    binary = linked(node, told, tmp_path)
    runs = boot_node("runs", suite, apt_cache=False)
    done = install(runs, tmp_path, told.runtime_packages, told.repository)
    assert done.status == 0, done.text
    shutil.copy(binary, runs.root / "opt/tiny-server")
    lacking = [
        line.split()[0]
        for line in runs.run(["ldd", "/opt/tiny-server"]).stdout.splitlines()
        if "not found" in line
    ]
    assert lacking == ["libcuda.so.1"]


def compiled(node: Node, told: Specs) -> Path:
    """One kernel of llama.cpp, made by the steps of the plan's build; the object."""
    spec, shared = told.build, caches.shared("cuda") / "sources"
    fetch = json.loads(json.dumps(told.fetch).replace(caches.SOURCES, str(shared)))
    answer, _ = run_here("fetch", fetch, seconds=900)
    assert answer["ok"], answer
    put(node, spec["archive"], shared / Path(spec["archive"]).name)
    package = node.root / "opt/ours/gpuwright"
    shutil.copytree(ROOT / "gpuwright/onnode", package / "onnode")
    (package / "__init__.py").touch()
    target = spec | {"target": f"{OBJECTS}/{CACHED}"}
    (node.root / "opt/ours/spec.json").write_text(json.dumps(target))
    place = node.run(["python3", "-c", COMPILE], timeout=1500).stdout.split()[-1]
    return node.root / place.lstrip("/") / "build" / OBJECTS / CACHED


def linked(node: Node, told: Specs, folder: Path) -> Path:
    """A program that links what llama.cpp links, made by the carried build; the file."""
    place = "/var/cache/gpuwright/sources/tiny.tar.gz"
    spec = told.build | {
        "archive": place,
        "sha256": archive(folder / "tiny.tar.gz", TINY),
        "source_subdir": "",
        "target": "tiny-server",
        "user": "daemon",
        "proof_args": [],
        "proof_expect": "tiny 1",
        "devices_args": [],
    }
    put(node, place, folder / "tiny.tar.gz")
    done = node.run(carry.command("build", spec), timeout=600, check=False)
    answer = carry.parse(done.stdout.splitlines())
    assert answer["ok"], answer
    return node.root / spec["engine_dir"].lstrip("/") / "bin/tiny-server"


def put(node: Node, path: str, source: Path) -> None:
    target = node.root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)
