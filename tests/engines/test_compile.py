"""Engines' own ways of compiling kernels work with the compiler that an environment brings."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gpuwright.environments import toolkit_links
from gpuwright.launch_environment import CudaCompiler
from gpuwright.layout import TOOLKIT
from gpuwright.load import load_matrix
from gpuwright.onnode.kit import lay
from gpuwright.questions.cards import lacking
from gpuwright.records import with_answers
from tools.standins import SOURCES

MATRIX = load_matrix()
BRINGS = [
    pair
    for pair in with_answers()
    if (row := MATRIX.engine_release(*pair).environment) is not None and row.toolkit is not None
]
PROGRAM = Path(__file__).with_name("compile_kernels.py")


def compiled(environment, capability, folder, *names):
    """What the program says of each kernel, with the environment's own compiler."""
    release = MATRIX.engine_release(environment.engine, environment.release)
    venv = environment.directory / "venv"
    minor = next(venv.glob("lib/python*")).name.removeprefix("python")
    driver = [str(environment.directory / "lib/libcuda.so.1")]
    shutil.rmtree(venv / TOOLKIT, ignore_errors=True)
    lay(str(venv), toolkit_links(release.environment.toolkit, minor, driver), release.id)
    variables = {"PATH": f"{venv}/bin:/usr/local/bin:/usr/bin:/bin"}
    played = "import runpy, sys, torch_cards; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0])"
    done = subprocess.run(
        [venv / "bin/python", "-c", played, PROGRAM, *names],
        env={
            **variables,
            **CudaCompiler(toolkit=str(venv / TOOLKIT), jobs=2).variables(variables),
            "HOME": str(folder),
            "FLASHINFER_WORKSPACE_BASE": str(folder),
            "FLASHINFER_CUDA_ARCH_LIST": capability,
            "LD_LIBRARY_PATH": str(environment.directory / "lib"),
            "PYTHONPATH": str(SOURCES),
            "STANDIN_CAPABILITY": capability,
            "STANDIN_CARDS": "1",
            "STANDIN_MEMORY_GIB": "24",
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"name"')]
    for each in told:
        print(release.id, capability, each)
    assert [each["name"] for each in told] == list(names)


def libraries(folder):
    return [
        Path(place, name)
        for place, _, names in os.walk(folder)
        for name in names
        if name.endswith(".so")
    ]


@pytest.mark.slow
@pytest.mark.parametrize("capability", ["8.6", "12.0"])
@pytest.mark.parametrize(("engine", "release"), BRINGS)
def test_a_kernel_is_compiled_with_what_the_wheels_bring(
    engine, release, capability, environments, tmp_path
):
    compiled(environments(engine, release), capability, tmp_path, "page")
    (library,) = libraries(tmp_path)
    assert lacking(library, [capability])[0] == []


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "release"), BRINGS)
def test_attention_and_what_the_engine_compiles_itself_are_too(
    engine, release, environments, tmp_path
):
    own = ("positions",) if engine == "sglang" else ()
    compiled(environments(engine, release), "8.6", tmp_path, "decode", "prefill", *own)
    found = libraries(tmp_path)
    assert len(found) == 2 + len(own)
    assert all(lacking(each, ["8.6"])[0] == [] for each in found)
