"""Every rig with every want decides what its golden file says (`python -m tools.golden`)."""

import pytest
import yaml

from tools.golden import PLANS, golden_file, path_of, rigs, wants_of


@pytest.mark.parametrize("rig", rigs())
def test_a_rig_decides_what_its_golden_file_says(rig):
    assert golden_file(rig) == path_of(rig).read_text(encoding="utf-8")


def test_no_golden_file_is_left_over():
    assert set(PLANS.rglob("*")) == {path_of(rig) for rig in rigs()}


@pytest.mark.parametrize("rig", rigs())
def test_a_golden_file_is_yaml_with_every_want_in_order(rig):
    found = yaml.safe_load(path_of(rig).read_text(encoding="utf-8"))
    assert list(found) == wants_of(rig)
    assert all(("plan" in each) != ("refusal" in each) for each in found.values())
