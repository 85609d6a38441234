"""The cards' rows: what must hold of all of them, and how a name or a node's card finds its own."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwright.cli import main
from gpuwright.gpu_names import find_gpu
from gpuwright.load import load_matrix
from gpuwright.quoting import quoted
from gpuwright.refusals import WantError
from gpuwright.rows import VENDOR, WHEELS, GpuKind, KernelModule
from gpuwright.versions import at_least, within
from tests.unit.decisions import planned

MIB = 2**20
ROWS = load_matrix().gpus
each_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)


def seen(pci_id, name, mib):
    row = load_matrix().gpu_index.card(pci_id, name, None if mib is None else mib * MIB)
    return None if row is None else row.id


@each_row
def test_a_row_is_found_by_all_that_people_call_it(row):
    size = f"{row.memory_mib // 1024}"
    for name in (row.id, *row.aliases, f"{row.name} {size}GB", f"{row.name} {size} GiB"):
        assert find_gpu(ROWS, name).memory_mib == row.memory_mib
    for name in (row.id, *row.aliases):
        assert find_gpu(ROWS, name) is row


@each_row
def test_a_card_as_the_driver_shows_it_finds_its_row(row):
    for pci_id in row.pci_ids:
        assert seen(pci_id, row.name, row.memory_mib) == row.id
        assert seen(pci_id, row.name, row.memory_mib * 94 // 100) == row.id
    by_name = load_matrix().gpu_index.card(None, row.name, row.memory_mib * MIB)
    assert (by_name.name, by_name.memory_mib) == (row.name, row.memory_mib)


@each_row
def test_what_a_row_lacks_follows_from_its_compute_capability(row):
    first = {"bf16": "8.0", "fp8": "8.9", "nvfp4": "10.0"}
    capability = row.compute_capability
    assert row.lacks == tuple(unit for unit in first if not at_least(capability, first[unit]))


@each_row
def test_the_kernel_module_follows_from_the_generation(row):
    if not at_least(row.compute_capability, "7.5"):
        assert row.kernel_module is KernelModule.PROPRIETARY
    elif at_least(row.compute_capability, "10.0") and row.kind is not GpuKind.JETSON:
        assert row.kernel_module is KernelModule.OPEN
    else:
        assert row.kernel_module is not KernelModule.PROPRIETARY


@each_row
def test_figures_of_a_row_are_in_a_sane_range(row):
    assert 4096 <= row.memory_mib <= 294912
    assert row.bandwidth_gb_per_s is None or 128 <= row.bandwidth_gb_per_s <= 8192
    assert row.visible_mib is None or 0.9 < row.visible_mib / row.memory_mib < 1
    assert row.unified_memory == (row.kind in (GpuKind.INTEGRATED, GpuKind.JETSON))


def test_the_catalogue_reaches_from_pascal_to_blackwell_in_every_kind():
    assert len(ROWS) >= 130
    assert {row.kind for row in ROWS} == set(GpuKind)
    generations = {row.compute_capability for row in ROWS}
    assert generations >= {"6.0", "6.1", "7.0", "7.5", "8.0", "8.6", "8.9", "9.0"}
    assert generations >= {"10.0", "10.3", "12.0", "12.1"}


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("RTX 3090", "rtx-3090"),
        ("3090", "rtx-3090"),
        ("GeForce RTX 3090", "rtx-3090"),
        ("NVIDIA GeForce RTX 3090", "rtx-3090"),
        ("rtx3090", "rtx-3090"),
        ("RTX_4090", "rtx-4090"),
        ("4060 Ti 16 GB", "rtx-4060-ti-16gb"),
        ("RTX 4060 Ti 8GiB", "rtx-4060-ti-8gb"),
        ("RTX 5060 Ti 16GB", "rtx-5060-ti-16gb"),
        ("RTX 3060 12GB", "rtx-3060"),
        ("RTX 3060", "rtx-3060"),
        ("RTX 2080 Ti 22GB (mod)", "rtx-2080-ti-22gb"),
        ("RTX 4090 48GB (modified)", "rtx-4090-48gb"),
        ("RTX 5090 Laptop", "rtx-5090-laptop"),
        ("RTX 3080 Mobile 16GB", "rtx-3080-laptop-16gb"),
        ("GTX 1080 Ti", "gtx-1080-ti"),
        ("Tesla P40", "p40"),
        ("V100-SXM2-16GB", "v100-sxm2-16gb"),
        ("A100 80GB", "a100-sxm4-80gb"),
        ("A100 80GB PCIe", "a100-pcie-80gb"),
        ("H100 SXM", "h100-sxm"),
        ("H100 80GB", "h100-sxm"),
        ("A6000", "rtx-a6000"),
        ("RTX 6000 Ada", "rtx-6000-ada"),
        ("RTX PRO 6000", "rtx-pro-6000"),
        ("RTX PRO 6000 Max-Q", "rtx-pro-6000-max-q"),
        ("DGX Spark", "gb10"),
    ],
)
def test_a_name_is_understood_however_it_is_spelled(text, row):
    assert find_gpu(ROWS, text).id == row


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            "RTX 4060 Ti",
            "gpu: 'RTX 4060 Ti' means NVIDIA GeForce RTX 4060 Ti 8 GB "
            "or NVIDIA GeForce RTX 4060 Ti 16 GB",
        ),
        (
            "Tesla V100",
            "gpu: 'Tesla V100' is unknown; nearest: Tesla V100-SXM2-16GB, Tesla V100-SXM2-32GB, "
            "Tesla V100-PCIE-16GB, Tesla V100-PCIE-32GB, Tesla V100S-PCIE-32GB, "
            "Quadro GV100 32 GB",
        ),
        ("RTX 3099", "gpu: 'RTX 3099' is unknown; nearest: NVIDIA GeForce RTX 3090 24 GB"),
        ("abacus", "gpu: 'abacus' is unknown; `gpuwright gpus` lists them"),
        ("", "gpu: '' is unknown; `gpuwright gpus` lists them"),
    ],
)
def test_a_name_that_means_no_card_or_several_is_refused_with_those_that_come_near(text, fault):
    with pytest.raises(WantError) as caught:
        find_gpu(ROWS, text)
    assert caught.value.faults == (fault,)


@given(st.text(max_size=30))
def test_any_text_names_a_card_or_is_refused(text):
    try:
        assert find_gpu(ROWS, text) in ROWS
    except WantError as error:
        assert quoted(text) in error.faults[0]


@pytest.mark.parametrize(
    ("mib", "row"),
    [
        (24564, "rtx-4090"),
        (49140, "rtx-4090-48gb"),
        (None, "rtx-4090"),
        (32768, None),
        (12282, None),
    ],
)
def test_cards_with_one_pci_id_are_told_apart_by_their_memory(mib, row):
    assert seen("10de:2684", "NVIDIA GeForce RTX 4090", mib) == row


def test_a_pci_id_that_no_row_has_leaves_the_name():
    assert seen("10de:ffff", "NVIDIA GeForce RTX 3060", 8188) == "rtx-3060-8gb"
    assert seen("10de:2504", "NVIDIA GeForce RTX 3060", 8188) == "rtx-3060-8gb"
    assert seen("10de:ffff", "NVIDIA GeForce RTX 9090", 24576) is None


def test_a_name_tells_cards_with_one_pci_id_apart_before_their_memory_does():
    assert seen("10de:1e30", "Quadro RTX 6000", 24576) == "quadro-rtx-6000"
    assert seen("10de:1e30", "Quadro RTX 8000", 49152) == "quadro-rtx-8000"


def test_a_listed_card_of_a_size_that_no_row_has_is_planned_as_unlisted():
    def change(node):
        size = {"memory_total_bytes": 20 * 1024 * MIB, "memory_free_bytes": 20 * 1024 * MIB}
        node["gpus"]["devices"][0].update(size)

    plan = planned("1x3090", {"model": "smollm2"}, change)
    assert any("has no row in gpus/: planned from" in warning.because for warning in plan.warnings)


# CUDA toolkits


def test_a_toolkit_is_native_to_a_driver_no_older_than_the_oldest_that_runs_it():
    for cuda in load_matrix().cuda:
        assert cuda.native_driver is None or at_least(cuda.native_driver, cuda.min_driver)


def test_a_newer_toolkit_asks_for_no_older_driver_and_takes_no_older_compiler():
    toolkits = sorted(load_matrix().cuda, key=lambda cuda: [int(n) for n in cuda.id.split(".")])
    for older, newer in itertools.pairwise(toolkits):
        assert at_least(newer.min_driver, older.min_driver)
        assert at_least(newer.native_driver or "999", older.native_driver or "0")
        for name in ("gcc", "clang"):
            assert at_least(newer.host_compilers[name], older.host_compilers[name])


def test_every_toolkit_can_be_had_somewhere_and_wheels_begin_with_13():
    for cuda in load_matrix().cuda:
        assert VENDOR in cuda.nvcc_from
        assert (WHEELS in cuda.nvcc_from) == at_least(cuda.id, "13.0")


def test_every_card_is_known_to_a_toolkit():
    for row in ROWS:
        ranges = [cuda.capabilities for cuda in load_matrix().cuda]
        assert any(within(row.compute_capability, each) for each in ranges), row.id


# The command


def test_cards_are_listed_as_a_table_in_groups_that_compute_alike(capsys):
    assert main(["gpus"]) == 0
    text = capsys.readouterr().out
    assert "\ngeforce, compute capability 12.0, open kernel module\n" in text
    (line,) = [line for line in text.splitlines() if line.startswith("rtx-3090 ")]
    assert " ".join(line.split()) == "rtx-3090 24 GiB 936 GB/s yes NVIDIA GeForce RTX 3090"
    assert max(map(len, text.splitlines())) <= 120


def test_cards_are_listed_as_json_with_every_key(capsys):
    assert main(["gpus", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["id"] for row in rows] == [row.id for row in ROWS]
    assert rows[0]["sources"][0]["url"].startswith("https://")
