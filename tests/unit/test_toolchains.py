"""Where a node has the CUDA compiler from, and what a build for its cards is told."""

import re

import pytest

from gpuwright.host import Host
from gpuwright.load import load_matrix
from gpuwright.rows import WHEELS
from gpuwright.selection import decide
from gpuwright.sketch import read_sketch
from gpuwright.toolchains import host_compiler
from gpuwright.versions import within
from gpuwright.want import Want
from tests.cuda.rig import specs
from tests.unit.sketched import planned_on, refused_on

MATRIX = load_matrix()
LLAMA = {"model": "smollm2", "engine": "llama.cpp"}
BLACKWELL = ["RTX 5090"]


def options(spec):
    return dict(re.fullmatch("-D([^=]+)=(.*)", each).groups() for each in spec["cmake_args"])


@pytest.mark.parametrize(
    ("gpus", "sketch", "tag"),
    [
        (["RTX 3090"], {}, "cuda13"),
        (BLACKWELL, {}, "cuda13"),
        (["RTX 3090"], {"driver": "550.90"}, "cuda11.8"),
        (["RTX 3090"], {"driver": "550.90", "distro": "debian-13"}, "cuda12.4"),
        (["Tesla P40"], {}, "cuda11.8"),
        (["V100 SXM2 16GB"], {"distro": "debian-13"}, "cuda12.4"),
        (["Tesla P40"], {"distro": "ubuntu-24.04"}, "cuda12.0"),
    ],
)
def test_a_new_driver_and_card_get_wheels_all_others_what_their_distribution_has(gpus, sketch, tag):
    assert planned_on(gpus, LLAMA, **sketch).build_tag == tag


def test_refuses_blackwell_under_an_old_driver_and_says_what_would_help():
    refusal = refused_on(BLACKWELL, LLAMA, driver="570.86")
    assert "driver >= 580" in refusal.remedies
    assert any("`cuda_repository: true`" in remedy for remedy in refusal.remedies)
    plan = planned_on(BLACKWELL, {**LLAMA, "cuda_repository": True}, driver="570.86")
    assert plan.build_tag == "cuda12"


def test_refuses_a_distribution_whose_compilers_are_all_too_new_for_this_cuda():
    want = {**LLAMA, "cuda_repository": True}
    refusal = refused_on(["Tesla P40"], want, distro="ubuntu-26.04")
    needed = "C++ compiler for CUDA 12.8: needs gcc <= 14, found g++-15 of ubuntu-26.04"
    assert needed in refusal.reasons
    assert any("`older_compilers`" in remedy for remedy in refusal.remedies)


def test_a_c_library_that_is_too_old_says_which_would_do():
    want = {"model": "Qwen3.6-27B", "engine": "sglang"}
    refusal = refused_on(["RTX 3090"], want, distro="debian-11")
    assert "glibc: needs >= 2.34, found 2.31" in refusal.reasons
    assert any("glibc 2.34 or newer" in remedy for remedy in refusal.remedies)


def test_an_older_compiler_of_the_distribution_is_taken_where_its_own_is_too_new(tmp_path):
    spec = specs(["Tesla P40"], tmp_path, tmp_path / "shared").build
    assert spec["compiler"] == options(spec)["CMAKE_CUDA_HOST_COMPILER"] == "g++-11"


@pytest.mark.parametrize(
    ("gpus", "sketch", "architectures", "compiler"),
    [
        (["GTX 1080 Ti"], {}, "61-real", "g++-11"),
        (["GTX 1080 Ti"], {"distro": "debian-13"}, "61-real", "g++-13"),
        (["V100 SXM2 16GB"], {"distro": "debian-13"}, "70-real", "g++-13"),
        (["RTX 3090"], {"driver": "550.90"}, "86-real", "g++-11"),
        (["RTX 3090"], {"driver": "525.60.13", "distro": "debian-13"}, "86-real", "g++-13"),
        (["RTX 3090", "GTX 1080 Ti"], {"distro": "debian-13"}, "61-real;86-real", "g++-13"),
        (["GTX 1080 Ti"], {"distro": "ubuntu-24.04"}, "61-real", "g++-12"),
    ],
)
def test_an_old_card_or_driver_is_built_for_with_the_distributions_toolkit(
    tmp_path, gpus, sketch, architectures, compiler
):
    spec = specs(gpus, tmp_path, tmp_path / "shared", sketch=sketch).build
    assert options(spec)["CMAKE_CUDA_ARCHITECTURES"] == architectures
    assert options(spec)["CMAKE_CUDA_COMPILER"] == "/usr/bin/nvcc"
    assert spec["compiler"] == options(spec)["CMAKE_CUDA_HOST_COMPILER"] == compiler
    assert "CMAKE_INSTALL_RPATH" not in options(spec)
    assert spec["toolkit"] is None


def test_debians_toolkit_is_not_laid_over_a_driver_that_is_no_package():
    document, _ = read_sketch({"gpus": ["Tesla P40"]}, MATRIX, Want.from_data(LLAMA).layout)

    def decided(packages, **more):
        document["driver"] = {"packages": packages}
        return decide(Host.from_document(document), Want.from_data(LLAMA | more), MATRIX)

    def named(*names):
        return [{"name": name, "version": "1", "held": False} for name in names]

    for owner in ("libcuda1", "libnvidia-ml1", "libnvidia-tesla-470-cuda1"):
        assert decided(named("nvidia-alternative", owner)).build_tag == "cuda11.8"
    beside = named("libnvidia-container-tools", "libnvidia-container1", "nvidia-persistenced")
    assert decided(beside).reasons == decided([]).reasons
    assert any("a driver that came another way" in reason for reason in decided([]).reasons)
    assert decided([], cuda_repository=True).build_tag == "cuda12"
    nvcc = {"executable": "/usr/bin/nvcc", "kind": "nvcc", "version": "11.8.89"}
    document["compilers"] = [nvcc]
    assert decided([]).build_tag == "cuda11.8"


@pytest.mark.parametrize("owner", ["libnvidia-compute-535-server", "libnvidia-compute"])
def test_ubuntus_driver_is_a_package_under_its_own_name(owner):
    layout = Want.from_data(LLAMA).layout
    sketch = {"gpus": ["Tesla P40"], "distro": "ubuntu-24.04"}
    document, _ = read_sketch(sketch, MATRIX, layout)
    document["driver"] = {"packages": [{"name": owner, "version": "1", "held": False}]}
    assert Host.from_document(document).driver.packaged


def test_an_ubuntu_whose_toolkit_is_too_old_is_told_of_nvidias_repository():
    refusal = refused_on(["Tesla P40"], LLAMA, distro="ubuntu-22.04")
    assert any("`cuda_repository: true`" in remedy for remedy in refusal.remedies)
    want = {**LLAMA, "cuda_repository": True}
    assert planned_on(["Tesla P40"], want, distro="ubuntu-22.04").build_tag == "cuda12"


def test_no_compiler_is_newer_than_its_cuda_takes():
    for cuda in MATRIX.cuda:
        for distro in MATRIX.distros:
            command = host_compiler(cuda, distro)
            newest = int(cuda.host_compilers["gcc"])
            assert command is None or int(command.rpartition("-")[2]) <= newest


@pytest.mark.parametrize(
    ("gpus", "architectures"),
    [(["RTX 3090"], "86-real"), (["RTX 5090", "RTX 3090"], "86-real;120-real")],
)
def test_machine_code_for_the_cards_of_the_plan_and_nothing_else(tmp_path, gpus, architectures):
    spec = specs(gpus, tmp_path, tmp_path / "shared").build
    assert options(spec)["CMAKE_CUDA_ARCHITECTURES"] == architectures


def test_no_toolkit_is_used_for_cards_that_it_miscompiles():
    for release in MATRIX.releases:
        for tag in release.build_tags:
            if release.build is not None and tag.cuda is not None:
                bad = MATRIX.cuda_runtime(tag.cuda).known_bad
                wrong = [c for c in tag.capabilities for b in bad if within(c, b.capabilities)]
                assert not wrong, (release.id, tag.tag)


def test_toolkits_of_wheels_name_every_wheel_by_its_hash():
    rows = [row for row in MATRIX.toolkits if row.origin == WHEELS]
    assert {row.architectures for row in rows} == {("x86_64",), ("aarch64",)}
    assert all(len({wheel.sha256 for wheel in row.wheels}) == 6 for row in rows)


def test_a_cache_of_another_type_gets_its_kernels_and_a_usual_one_builds_nothing_anew(tmp_path):
    def quants(dtype):
        spec = specs(["RTX 3090"], tmp_path, tmp_path / "shared", kv_cache_dtype=dtype).build
        return spec["key"], options(spec)["GGML_CUDA_FA_QUANTS"]

    assert quants("f16") == quants("q8_0")
    assert quants("q5_1")[1] == quants("f16")[1] + ";q5_1-q5_1"
