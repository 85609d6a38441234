"""Every golden unit is what its plan starts (`python -m tools.golden`), as its release takes it."""

import re

import pytest

from gpuwright.flag_lint import lint
from gpuwright.launch import launch
from gpuwright.layout import Layout
from gpuwright.records import load_record, recorded
from tools.golden_units import CASES, SERVICES, plan_of, unit


@pytest.mark.parametrize("name", CASES)
def test_a_unit_is_what_its_file_says(name):
    assert unit(name) == (SERVICES / f"{name}.service").read_text(encoding="utf-8")


def test_no_unit_is_left_over():
    assert {path.stem for path in SERVICES.iterdir()} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_a_unit_has_no_place_left_open(name):
    assert not re.findall(r"\{[a-z_]+\}", unit(name))


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("tensorrt")])
def test_its_release_takes_every_argument(name):
    plan = plan_of(name)
    assert (plan.engine, plan.release) in recorded()
    argv = launch(plan, Layout(), "/models/m", "/opt/engine").argv
    first = next(i for i, word in enumerate(argv) if word.startswith("--"))
    assert lint(argv[first:], load_record(plan.engine, plan.release).flags) == []
