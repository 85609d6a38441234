"""What an environment is asked about a plan's cards: the program itself, on small files."""

import getpass
import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpuwright.attention_rows import Toolchain
from gpuwright.load import load_matrix
from gpuwright.onnode.outcome import NodeError
from gpuwright.onnode.rehearse import main
from gpuwright.questions import cards
from gpuwright.rehearsals import cards_asked
from tests.unit.sketched import planned_on
from tests.unit.test_sm_scan import CODE, PTX, container, entry

MATRIX = load_matrix()
PROGRAM = Path(cards.__file__)
DRIVER = "int cuDriverGetVersion(int *version) { *version = %d; return 0; }"
NVCC = """#!{python}
import sys
from pathlib import Path
out = Path(sys.argv[sys.argv.index("-o") + 1])
if "-lcuda" not in sys.argv or not any(word.startswith("-L") for word in sys.argv):
    sys.exit("error: cannot find -lcuda")
out.write_bytes(Path({library!r}).read_bytes())
"""


@pytest.fixture(scope="module")
def holding(tmp_path_factory):
    """A shared object with code for 8.0 and 8.9, and PTX for 9.0."""
    folder = tmp_path_factory.mktemp("binaries")
    (folder / "empty.c").write_text("int nothing;\n")
    (folder / "section").write_bytes(container(entry(CODE, 80), entry(CODE, 89), entry(PTX, 90)))
    plain, path = folder / "plain.so", folder / "kernels.so"
    subprocess.run(["gcc", "-shared", "-o", plain, folder / "empty.c"], check=True)
    section = f".nv_fatbin={folder / 'section'}"
    subprocess.run(["objcopy", "--add-section", section, plain, path], check=True)
    return path


class Environment:
    """A directory that looks like an engine's, for the interpreter that runs this test."""

    def __init__(self, folder: Path, holding: Path, driver: int = 13000) -> None:
        self.folder = folder
        self.site = folder / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
        (self.site / "torch").mkdir(parents=True)
        (self.site / "torch/version.py").write_text("cuda: Optional[str] = '13.0'\n")
        (self.site / "kernels.so").write_bytes(holding.read_bytes())
        (folder / "bin").mkdir()
        (folder / "bin/python").symlink_to(sys.executable)
        (folder / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).parent}\n")
        self.nvcc = folder / "bin/nvcc"
        self.nvcc.write_text(NVCC.format(python=sys.executable, library=str(holding)))
        self.nvcc.chmod(0o755)
        (folder / "driver.c").write_text(DRIVER % driver)
        library = folder / "driver/libcuda.so.1"
        library.parent.mkdir()
        subprocess.run(["gcc", "-shared", "-o", library, folder / "driver.c"], check=True)

    def wrong(self, **more) -> list[str]:
        asked = {
            "kernels": ["kernels.so"],
            "capabilities": ["8.6", "8.9"],
            "cuda": "13.0",
            "programs": ["gcc"],
            "compiles": True,
        }
        (self.folder / "asked.json").write_text(json.dumps(asked | more))
        done = subprocess.run(
            [self.folder / "bin/python", PROGRAM, self.folder / "asked.json"],
            env={
                "PATH": f"{self.folder}/bin:/usr/bin:/bin",
                "CUDA_HOME": str(self.folder),
                "LD_LIBRARY_PATH": str(self.folder / "driver"),
            },
            capture_output=True,
            text=True,
            check=True,
        )
        return json.loads(done.stdout.splitlines()[-1])["wrong"]


@pytest.fixture
def environment(tmp_path, holding):
    return Environment(tmp_path, holding)


def test_an_environment_that_serves_the_cards_has_nothing_wrong(environment):
    assert environment.wrong() == []


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"capabilities": ["7.5"], "compiles": False},
         "kernels.so: needs code for compute capability 7.5, found code for 8.0, 8.9"),
        ({"capabilities": ["9.0"], "compiles": False},
         "kernels.so: needs code for compute capability 9.0, found code for 8.0, 8.9"),
        ({"kernels": ["gone.so"]}, "gone.so: needed in the environment, found nowhere"),
        ({"cuda": "12.8"}, "torch: needs CUDA 12.8, found 13.0"),
        ({"programs": ["gcc", "tileiras-9"]},
         "tileiras-9: needed on the service's PATH, found nowhere on it"),
        ({"capabilities": ["12.0"], "kernels": []},
         "nvcc: needs to compile for 12.0, found code for 8.0, 8.9"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_a_sentence_with_what_was_needed_and_found(environment, more, said):
    assert environment.wrong(**more) == [said]


def test_a_compiler_that_fails_is_told_by_its_first_error(environment):
    environment.nvcc.write_text("#!/bin/sh\necho note >&2\necho 'x.cu(1): error: no' >&2\nexit 1\n")
    assert environment.wrong() == [
        "nvcc: needs to compile a kernel for 86, 89, said: x.cu(1): error: no"
    ]


def test_a_driver_of_an_older_major_version_is_named(tmp_path, holding):
    old = Environment(tmp_path, holding, driver=12080)
    assert old.wrong() == ["driver: needs CUDA 13.0 or later, found 12.8"]


def test_a_driver_of_an_older_minor_version_will_do(tmp_path, holding):
    newer = Environment(tmp_path, holding, driver=13000)
    (newer.site / "torch/version.py").write_text("cuda: Optional[str] = '13.5'\n")
    assert newer.wrong(cuda="13.5") == []


def test_a_driver_that_is_not_there_is_named(environment):
    (environment.folder / "driver/libcuda.so.1").unlink()
    (sentence,) = environment.wrong()
    assert sentence.startswith("libcuda.so.1: needed of the driver, found: ")


def test_the_plan_is_not_asked_about_where_the_cards_are_not_served(environment, tmp_path):
    spec = {
        "engine_dir": str(environment.folder),
        "scratch": str(tmp_path / "scratch"),
        "user": getpass.getuser(),
        "kept": str(tmp_path / "kept"),
        "env": {},
        "label": "vllm 0.33.0",
        "cards": {
            "program": 'print(\'{"wrong": ["a: needs b, found c"]}\')',
            "asked": {},
        },
        "questions": "raise SystemExit('asked all the same')",
        "arguments": [],
        "expected": {},
    }
    tmp_path.chmod(0o755)
    with pytest.raises(NodeError) as failed:
        main(spec, None)
    assert failed.value.error == "vllm 0.33.0: a: needs b, found c"


@pytest.mark.parametrize(("release", "compiles"), [("0.33.0", True), ("0.19.1", False)])
def test_what_is_asked_is_what_the_release_and_its_cards_need(release, compiles):
    plan = planned_on(["RTX 3090"], {"engine": "vllm", "release": release})
    row = MATRIX.engine_release("vllm", release)
    asked = cards_asked(row, plan, None, compiles=compiles)
    assert asked["kernels"] == list(row.environment.kernels)
    assert asked["capabilities"] == ["8.6"]
    assert asked["compiles"] is compiles
    assert ("nvcc" in asked["programs"]) is compiles
    backend = next(row for row in MATRIX.backends("vllm") if row.toolchain is Toolchain.NVCC)
    assert cards_asked(row, plan, backend, compiles=False)["compiles"]
