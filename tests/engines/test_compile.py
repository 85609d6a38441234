"""FlashInfer's own way of compiling kernels works with the compiler that an environment brings."""

import shutil
import subprocess

import pytest

from gpuwright.environments import toolkit_links
from gpuwright.launch_environment import OwnCompiler
from gpuwright.layout import TOOLKIT
from gpuwright.load import load_matrix
from gpuwright.onnode.kit import lay
from gpuwright.questions.cards import lacking
from gpuwright.records import with_answers

MATRIX = load_matrix()
BRINGS = [
    pair
    for pair in with_answers()
    if (row := MATRIX.engine_release(*pair).environment) is not None and row.toolkit is not None
]
COMPILE = """
from flashinfer.jit.page import gen_page_module
module = gen_page_module()
module.build(verbose=True)
print(module.get_library_path())
"""


@pytest.mark.slow
@pytest.mark.parametrize("capability", ["8.6", "12.0"])
@pytest.mark.parametrize(("engine", "release"), BRINGS)
def test_a_kernel_is_compiled_with_what_the_wheels_bring(
    engine, release, capability, environments, tmp_path
):
    environment = environments(engine, release)
    venv = environment.directory / "venv"
    row = MATRIX.engine_release(engine, release).environment
    minor = next(venv.glob("lib/python*")).name.removeprefix("python")
    kit = toolkit_links(row.toolkit, minor, [str(environment.directory / "lib/libcuda.so.1")])
    shutil.rmtree(venv / TOOLKIT, ignore_errors=True)
    lay(str(venv), kit, release)
    variables = {"PATH": f"{venv}/bin:/usr/local/bin:/usr/bin:/bin"}
    done = subprocess.run(
        [venv / "bin/python", "-c", COMPILE],
        env={
            **variables,
            **OwnCompiler(toolkit=str(venv / TOOLKIT), jobs=2).variables(variables),
            "HOME": str(tmp_path),
            "FLASHINFER_WORKSPACE_BASE": str(tmp_path),
            "FLASHINFER_CUDA_ARCH_LIST": capability,
            "LD_LIBRARY_PATH": str(environment.directory / "lib"),
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    missing, carried = lacking(tmp_path / done.stdout.splitlines()[-1], [capability])
    assert not missing, carried
