"""A toolkit out of wheels: whole or not there, and the same wherever it is unpacked."""

import hashlib
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

from gpuwright.onnode.outcome import NodeError
from gpuwright.onnode.stamps import STAMP
from gpuwright.onnode.toolkit import stand, standing

FILES = {"nvidia/cu13/bin/nvcc": "#!/bin/sh\n", "nvidia/cu13/lib/libcudart.so.13": "x" * 100}


def spec(
    tmp_path: Path,
    name: str = "toolkit",
    files: dict[str, str] = FILES,
    date: tuple[int, int, int, int, int, int] = (2026, 5, 4, 3, 2, 2),
) -> dict[str, Any]:
    wheel = tmp_path / "nvcc.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        for path, text in files.items():
            packed.writestr(zipfile.ZipInfo(path, date), text)
        packed.writestr("nvcc-1.dist-info/RECORD", "")
    return {
        "directory": str(tmp_path / name),
        "key": "k",
        "wheels": [{"path": str(wheel), "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest()}],
        "root": "nvidia/cu13",
        "links": {"lib64": "lib", "lib/libcudart.so": "libcudart.so.13"},
        "lock": str(tmp_path / "lock"),
        "need_bytes": 1000,
    }


def test_it_stands_with_its_links_and_is_unpacked_once(tmp_path: Path) -> None:
    wanted = spec(tmp_path)
    assert stand(wanted) is not None
    toolkit = tmp_path / "toolkit"
    assert os.access(toolkit / "bin/nvcc", os.X_OK)
    assert (toolkit / "lib64/libcudart.so").read_text() == "x" * 100
    assert not (toolkit / "nvcc-1.dist-info").exists()
    assert stand(wanted) is None


def test_unpacked_elsewhere_it_is_the_same_compiler_to_a_cache(tmp_path: Path) -> None:
    times = set()
    for name in ("one", "other"):
        stand(spec(tmp_path, name))
        times.add((tmp_path / name / "bin/nvcc").stat().st_mtime_ns)
    assert len(times) == 1


def test_one_that_is_used_again_is_the_newest(tmp_path: Path) -> None:
    wanted = spec(tmp_path)
    stand(wanted)
    os.utime(tmp_path / "toolkit" / STAMP, (1, 1))
    stand(wanted)
    assert (tmp_path / "toolkit" / STAMP).stat().st_mtime > 1


@pytest.mark.parametrize("name", ["bin/nvcc", "lib/libcudart.so.13"])
def test_a_changed_file_makes_it_anew(tmp_path: Path, name: str) -> None:
    wanted = spec(tmp_path)
    stand(wanted)
    (tmp_path / "toolkit" / name).write_text("changed")
    assert not standing(wanted)
    assert stand(wanted) is not None
    assert (tmp_path / "toolkit" / name).read_text() == FILES[f"nvidia/cu13/{name}"]


@pytest.mark.parametrize("month", [0, 15])
def test_a_file_without_a_date_is_unpacked(tmp_path: Path, month: int) -> None:
    wanted = spec(tmp_path, date=(1980, month, 0, 0, 0, 0))
    assert stand(wanted) is not None
    assert stand(wanted) is None


def test_another_wheel_than_the_rows_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    wanted = spec(tmp_path)
    wanted["wheels"][0]["sha256"] = "0" * 64
    with pytest.raises(NodeError, match="needed 0000000000000000"):
        stand(wanted)
    assert not list(tmp_path.glob("toolkit*"))


def test_a_wheel_that_leads_out_is_refused(tmp_path: Path) -> None:
    wanted = spec(tmp_path, files={"nvidia/cu13/../../../outside": "x"})
    with pytest.raises(NodeError, match="leads out"):
        stand(wanted)
    assert not (tmp_path.parent / "outside").exists()


def test_wheels_without_the_toolkit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match="nothing below nvidia/cu13"):
        stand(spec(tmp_path, files={"other": "x"}))
