"""Which driver knows a card: each is of one generation, and other drivers are refused."""

import pytest

from gpuwright.load import load_matrix
from gpuwright.rows import KernelModule
from gpuwright.versions import within
from tests.unit.decisions import decided, planned, refused
from tests.unit.sketched import planned_on, refused_on

MATRIX = load_matrix()
WANT = {"model": "qwen3-0.6b"}


@pytest.mark.parametrize("row", MATRIX.gpus, ids=lambda row: row.id)
def test_every_listed_card_is_of_one_generation(row):
    found = [
        each for each in MATRIX.generations if within(row.compute_capability, each.capabilities)
    ]
    assert len(found) == 1


@pytest.mark.parametrize(
    ("card", "driver", "needed", "row"),
    [
        ("RTX 5090", "550.163.01", ">= 570", "generations blackwell"),
        ("RTX PRO 6000 Blackwell Workstation Edition", "565.77", ">= 570", "generations blackwell"),
        ("B200", "565.77", ">= 570", "generations blackwell-b200"),
        ("GB10", "575.57.08", ">= 580", "generations blackwell-spark"),
        ("V100-SXM2-16GB", "590.48.01", "of branch 580 or older", "generations volta"),
        ("GTX 1080 Ti", "595.58.03", "of branch 580 or older", "generations pascal"),
    ],
)
def test_a_driver_that_does_not_know_the_card_is_refused_with_the_row(card, driver, needed, row):
    refusal = refused_on([card], WANT, driver=driver)
    found = [each for each in refusal.why_not if each.row == row]
    assert found
    assert all((each.needed, each.found) == (needed, driver) for each in found)


@pytest.mark.parametrize(
    ("card", "driver"),
    [("RTX 5090", "570.86.16"), ("GB10", "580.95.05"), ("V100-SXM2-16GB", "580.126.20")],
)
def test_the_branch_that_knows_the_card_plans(card, driver):
    want = WANT | {"engine": "llama.cpp", "cuda_repository": True}
    assert planned_on([card], want, driver=driver)


def test_an_unlisted_card_is_judged_by_its_generation():
    card = {"name": "RTX 5111", "compute_capability": "12.0", "memory_gib": 16}
    refusal = refused_on([card], WANT, driver="560.35.03")
    assert "generations blackwell" in {each.row for each in refusal.why_not}


def test_a_card_that_the_driver_does_not_know_is_left_out_where_another_is_there():
    plan = planned_on(["RTX 3090", "RTX 5090"], WANT, driver="550.163.01")
    assert [gpu.index for gpu in plan.gpus] == [0]


def flavour(word):
    def change(node):
        node["driver"] = (node.get("driver") or {}) | {"flavour": word}

    return change


@pytest.mark.parametrize(
    ("rig", "word"), [("5090", "proprietary"), ("1080-ti", "open"), ("4x-v100-16gb", "open")]
)
def test_a_kernel_module_that_does_not_drive_the_card_is_refused(rig, word):
    refusal = refused(rig, WANT, flavour(word))
    needed = KernelModule.OPEN if word == "proprietary" else KernelModule.PROPRIETARY
    assert any(
        f"needs NVIDIA's {needed} one, found the {word} one" in each for each in refusal.reasons
    )
    assert f"the driver with its {needed} kernel module" in refusal.remedies


@pytest.mark.parametrize(
    ("rig", "word"),
    [("5090", "open"), ("1x3090", "open"), ("1x3090", "proprietary"), ("5090", None)],
)
def test_a_kernel_module_that_drives_the_card_changes_nothing(rig, word):
    assert decided(rig, WANT, flavour(word)) == planned(rig, WANT)
