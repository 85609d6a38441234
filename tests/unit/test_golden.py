"""Every rig with every want decides what its golden file says (`python -m tools.golden`)."""

import pytest

from tools.golden import PLANS, WANTS, golden, path_of, rigs

CASES = [(rig, want) for rig in rigs() for want in WANTS]


@pytest.mark.parametrize(("rig", "want"), CASES)
def test_a_rig_decides_what_its_golden_file_says(rig, want):
    assert golden(rig, want) == path_of(rig, want).read_text(encoding="utf-8")


def test_no_golden_file_is_left_over():
    assert set(PLANS.rglob("*.json")) == {path_of(rig, want) for rig, want in CASES}
