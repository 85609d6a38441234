"""With which CUDA compiler of the node an environment compiles its kernels."""

import dataclasses

import pytest

from gpuwright.environments import Environment
from gpuwright.expectation import expectation, probe_packages
from gpuwright.host import Host
from gpuwright.kernel_compilers import node_toolchain
from gpuwright.load import load_matrix
from gpuwright.plan import Plan
from gpuwright.selection import decide
from gpuwright.sketch import read_sketch
from gpuwright.want import Want
from tests.cuda.rig import TEMPLATES
from tests.lab import tiny_model
from tests.unit.sketched import planned_on, refused_on

MATRIX = load_matrix()
SGLANG = {"model": "llama-3.1-8b", "engine": "sglang"}
RELEASE, WANT = MATRIX.engine_release("sglang", "0.5.10.post1"), Want.from_data(SGLANG)
VLLM = {"model": "llama-3.1-8b", "engine": "vllm", "release": "0.19.1"}
FP8 = VLLM | {"kv_cache_dtype": "fp8"}
TRIXIE = {"distro": "debian-13", "driver": "550.163"}
VENDOR = "NVIDIA's package repository on the node, and `cuda_repository: true`"
DEBIANS = {"executable": "/usr/bin/nvcc", "kind": "nvcc", "version": "12.4.131"}
VENDORS = {"executable": "/usr/local/cuda-12.8/bin/nvcc", "kind": "nvcc", "version": "12.8.1"}


def node(gpus=("RTX 3090",), *, sketch=TRIXIE, **more) -> Host:
    document, _ = read_sketch({"gpus": list(gpus), **sketch}, MATRIX)
    return Host.from_document(document | more)


def wanted(host, folder, data):
    """What must stand on a node that serves the tiny model."""
    rows = tiny_model.write_row(folder / "models.yaml", "0" * 40)
    want = Want.from_data(
        {"model": tiny_model.MODEL, "extra_models": str(rows)}
        | {"python_index": "https://index.example/simple"}
        | {key: value for key, value in data.items() if key != "model"}
    )
    matrix = load_matrix(want.extra_models)
    plan = decide(host, want, matrix)
    assert isinstance(plan, Plan), plan.sentence()
    assert plan.not_applicable is None
    return expectation(want=want, node=host, plan=plan, matrix=matrix, templates=TEMPLATES)


def test_debians_toolkit_is_installed_where_the_engine_compiles_at_every_start(tmp_path):
    found = wanted(node(), tmp_path, SGLANG)
    assert isinstance(found.making, Environment)
    assert (found.expected.plan.release, found.expected.plan.build_tag) == ("0.5.10.post1", "cu128")
    compiled = "kernels: compiled with CUDA 12.4 of debian-13, g++-13"
    assert compiled in found.expected.plan.reasons
    environment = found.start.environment
    assert environment["CUDA_HOME"] == "/usr"
    assert environment["NVCC_PREPEND_FLAGS"] == "-ccbin=/usr/bin/g++-13"
    assert environment["PATH"].split(":").count("/usr/bin") == 1
    assert 'Environment="CUDA_HOME=/usr"' in found.expected.unit
    assert {"nvidia-cuda-toolkit", "g++-13", "g++"} <= set(found.expected.runtime_packages)
    assert found.expected.repository == "the component non-free of Debian"
    assert found.expected.compiler_seconds > 0
    assert {"nvcc", "ninja", "c++"} <= set(found.cards["programs"])
    assert found.cards["compiles"]


@pytest.mark.parametrize("sketch", [TRIXIE, {"driver": "550.163"}])
def test_the_vendors_newer_one_comes_first_where_its_repository_is_there(tmp_path, sketch):
    found = wanted(node(sketch=sketch), tmp_path, SGLANG | {"cuda_repository": True})
    environment = found.start.environment
    assert environment["CUDA_HOME"] == "/usr/local/cuda-12.8"
    assert environment["PATH"].split(":")[0] == "/usr/local/cuda-12.8/bin"
    assert "cuda-minimal-build-12-8" in found.expected.runtime_packages
    assert found.expected.repository == "NVIDIA's own repository for this distribution"


def test_every_package_of_a_toolkit_is_looked_for_on_nodes():
    named = {name for row in MATRIX.toolkits for name in row.kernel_packages}
    assert named <= probe_packages(MATRIX)


def test_refuses_a_distribution_whose_toolkit_is_too_old_and_names_what_helps():
    refusal = refused_on(["RTX 3090"], SGLANG, driver="550.163")
    assert (
        "compiler that sglang 0.5.10.post1 calls at every start: needs CUDA >=12.4,<13 of NVIDIA's "
        "package repository or debian-13, found CUDA 11.8 of debian-12"
    ) in refusal.reasons
    assert VENDOR in refusal.remedies


def test_refuses_a_card_that_the_distributions_compiler_does_not_know():
    refusal = refused_on(["RTX 5090"], SGLANG, **TRIXIE | {"driver": "570.133"})
    needed = "CUDA 12.4 of debian-13: needs compute capability >=5.0,<=9.0, found 12.0"
    assert any(reason.startswith(needed) for reason in refusal.reasons)
    assert VENDOR in refusal.remedies
    more = SGLANG | {"cuda_repository": True}
    assert planned_on(["RTX 5090"], more, **TRIXIE | {"driver": "570.133"}).build_tag == "cu128"


def test_refuses_to_lay_debians_toolkit_over_a_driver_that_is_no_package():
    host = node(driver={"packages": []})
    refusal = decide(host, Want.from_data(SGLANG), MATRIX)
    assert any("a driver that came another way" in reason for reason in refusal.reasons)
    more = Want.from_data(SGLANG | {"cuda_repository": True})
    assert decide(host, more, MATRIX).build_tag == "cu128"


@pytest.mark.parametrize(
    ("compiler", "home"), [(DEBIANS, "/usr"), (VENDORS, "/usr/local/cuda-12.8")]
)
def test_a_toolkit_that_stands_is_used_by_a_release_that_goes_without_too(tmp_path, compiler, home):
    host = node(compilers=[compiler])
    assert decide(host, Want.from_data(FP8), MATRIX).attention_backend == "flashinfer"
    found = wanted(host, tmp_path, VLLM)
    assert found.start.environment["CUDA_HOME"] == home
    packages = set(found.expected.runtime_packages)
    assert any(name.startswith("g++-") for name in packages)
    assert not packages & {"nvidia-cuda-toolkit", "cuda-minimal-build-12-8"}


def test_a_toolkit_that_stands_is_enough_for_a_release_that_needs_one(tmp_path):
    host = node(sketch={"driver": "550.163"}, compilers=[VENDORS], driver={"packages": []})
    found = wanted(host, tmp_path, SGLANG)
    assert found.start.environment["CUDA_HOME"] == "/usr/local/cuda-12.8"
    assert "g++-12" in found.expected.runtime_packages
    assert "cuda-minimal-build-12-8" not in found.expected.runtime_packages
    assert found.expected.repository is None


def test_debians_toolkit_that_stands_is_taken_beside_a_driver_that_is_no_package(tmp_path):
    found = wanted(node(compilers=[DEBIANS], driver={"packages": []}), tmp_path, SGLANG)
    assert found.start.environment["CUDA_HOME"] == "/usr"
    assert "g++-13" in found.expected.runtime_packages
    assert "nvidia-cuda-toolkit" not in found.expected.runtime_packages
    assert found.expected.repository is None


def test_a_toolkit_that_may_not_be_installed_leaves_those_below_it_to_be_tried():
    reason = node_toolchain(bare := node(driver={"packages": []}), RELEASE, WANT, MATRIX)
    assert "a driver that came another way" in reason.sentence()
    compiler = DEBIANS | {"executable": "/usr/local/cuda-12.4/bin/nvcc"}
    host = node(driver={"packages": []}, compilers=[compiler])
    assert node_toolchain(host, RELEASE, WANT, MATRIX).toolkit.root == "/usr/local/cuda-12.4"
    assert node_toolchain(bare, RELEASE, WANT, MATRIX) == reason


@pytest.mark.parametrize("cuda", ["12.4", "12.5", "12.6", "12.8", "12.9"])
def test_a_toolkit_of_the_vendor_that_stands_is_taken_in_any_version_that_is_known(tmp_path, cuda):
    home = f"/usr/local/cuda-{cuda}"
    compiler = {"executable": f"{home}/bin/nvcc", "kind": "nvcc", "version": f"{cuda}.1"}
    host = node(sketch={"driver": "550.163"}, compilers=[compiler])
    found = wanted(host, tmp_path, SGLANG)
    assert found.start.environment["CUDA_HOME"] == home
    assert "g++-12" in found.expected.runtime_packages
    assert found.expected.repository is None
    assert decide(host, Want.from_data(FP8), MATRIX).attention_backend == "flashinfer"


def test_refuses_a_toolkit_that_no_row_has_and_says_where_it_was_found():
    home = "/usr/local/cuda-12.7"
    compilers = [
        {"executable": f"{place}/nvcc", "kind": "nvcc", "version": "12.7.1"}
        for place in ("/usr/bin", f"{home}/bin")
    ]
    host = node(sketch={"driver": "550.163"}, compilers=compilers)
    reason = node_toolchain(host, RELEASE, WANT, MATRIX)
    assert "needs CUDA >=12.4,<13 of NVIDIA's package repository or debian-13," in reason.sentence()
    assert f"11.8 of debian-12 and CUDA 12.7.1 in {home}, where no row" in reason.sentence()


def test_a_toolkit_that_is_not_there_is_not_installed_for_it(tmp_path):
    found = wanted(node(compilers=[]), tmp_path, VLLM)
    assert "CUDA_HOME" not in found.start.environment
    assert "nvidia-cuda-toolkit" not in found.expected.runtime_packages
    assert not found.cards["compiles"]


@pytest.mark.parametrize(
    ("version", "gpus"),
    [("13.0.88", ("RTX 3090",)), ("11.8.89", ("RTX 3090",)), ("12.4.131", ("RTX 5090",))],
)
def test_a_compiler_of_another_cuda_or_for_other_cards_does_not_count(tmp_path, version, gpus):
    compiler = DEBIANS | {"version": version}
    host = node(gpus, sketch=TRIXIE | {"driver": "570.133"}, compilers=[compiler])
    found = wanted(host, tmp_path, VLLM)
    assert found.expected.plan.parameters["flashinfer_sampler"] is False
    assert "CUDA_HOME" not in found.start.environment
    assert not found.cards["compiles"]


def test_the_rows_of_a_release_say_at_most_one_toolkit():
    row = MATRIX.engine_release("vllm", "0.33.0").environment
    both = dataclasses.replace(
        row, node_toolkit=MATRIX.engine_release("vllm", "0.19.1").environment.node_toolkit
    )
    assert list(row.faults()) == []
    assert list(both.faults()) == [".node_toolkit: stands only where its wheels bring no toolkit"]
