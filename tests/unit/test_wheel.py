"""The built wheel holds gpuwright, all of it, and nothing else of this checkout."""

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with what the wheel would install."""
    out = tmp_path_factory.mktemp("wheel")
    built = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = out.iterdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(out / "installed")
    yield out / "installed"


def _files(folder: Path) -> set[str]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(p.relative_to(folder)) for p in paths if "__pycache__" not in p.parts}


def test_top_level_is_gpuwright_and_metadata_only(installed: Path) -> None:
    names = sorted(path.name for path in installed.iterdir())
    assert names[0] == "gpuwright"
    assert [name.partition("-")[0] for name in names] == ["gpuwright", "gpuwright"]
    assert names[1].endswith(".dist-info")


def test_every_file_of_the_package_is_in_it(installed: Path) -> None:
    found = _files(installed / "gpuwright")
    assert found == _files(ROOT / "gpuwright")
    assert {
        "matrix/models/smollm2.yaml",
        "matrix/engines/llama.cpp.yaml",
        "onnode/probe.py",
    } <= found


def test_licence_and_console_script_are_in_it(installed: Path) -> None:
    (metadata,) = installed.glob("*.dist-info")
    assert "gpuwright = gpuwright.cli:main" in (metadata / "entry_points.txt").read_text()
    assert (metadata / "licenses" / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


def test_package_reads_its_matrix_and_carries_its_programs_from_there(
    installed: Path, tmp_path: Path
) -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import gpuwright\n"
        "from gpuwright.carry import PROGRAMS, command\n"
        "from gpuwright.load import load_matrix\n"
        "print(gpuwright.__file__)\n"
        "print(len(load_matrix().models), sum(len(command(name, {})) for name in PROGRAMS))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(installed)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    where, counts = done.stdout.splitlines()
    assert Path(where).is_relative_to(installed)
    assert all(int(count) > 0 for count in counts.split())
