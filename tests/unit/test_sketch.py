"""A sketch becomes a node of which everything unsaid is assumed and listed."""

import pytest

from gpuwright.host import Host
from gpuwright.load import load_matrix
from gpuwright.refusals import HostError
from gpuwright.sketch import UNSAID, read_sketch
from gpuwright.sketch_values import ENVIRONMENTS, KEYS

GIB = 2**30
MATRIX = load_matrix()
SAID = {
    "gpus": ["RTX 3090", "RTX 3090"],
    "driver": "570.211.01",
    "distro": "ubuntu-24.04",
    "python": "3.10",
    "memory_gib": 96,
    "disk_free_gib": 100.5,
    "free_memory_gib": [20, 23],
    "interconnect": "nvlink",
    "p2p": True,
    "environment": "kvm",
    "cpu_threads": 12,
}


def sketched(**said):
    document, assumed = read_sketch(said, MATRIX)
    return Host.from_document(document), assumed


def faults_of(said):
    with pytest.raises(HostError) as caught:
        read_sketch(said, MATRIX)
    return caught.value.faults


def test_every_value_that_is_said_is_the_node_s():
    host, assumed = sketched(**SAID)
    assert [gpu.name for gpu in host.gpus] == ["NVIDIA GeForce RTX 3090"] * 2
    assert host.driver_version == "570.211.01"
    assert (host.os_id, host.os_version, host.glibc) == ("ubuntu", "24.04", "2.39")
    assert (host.python, host.cpu_threads, host.virtualization) == ("3.10", 12, "kvm")
    assert host.memory_total_bytes == 96 * GIB
    assert {disk.free_bytes for disk in host.disks.values()} == {int(100.5 * GIB)}
    assert all(gpu.nvlink for gpu in host.gpus)
    assert [gpu.linked for gpu in host.gpus] == [frozenset((1,)), frozenset((0,))]
    assert [gpu.reached for gpu in host.gpus] == [frozenset((1,)), frozenset((0,))]
    assert len(assumed) == 2
    visible = 24125 * 2**20
    assert [gpu.others_bytes for gpu in host.gpus] == [visible - 20 * GIB, visible - 23 * GIB]


@pytest.mark.parametrize("key", [key for key in KEYS if key not in ("gpus", "p2p")])
def test_what_is_not_said_is_assumed_and_listed(key):
    complete = SAID | {"interconnect": "pcie"}
    _, before = read_sketch(complete, MATRIX)
    _, after = read_sketch({name: complete[name] for name in complete if name != key}, MATRIX)
    assert len(after) == len(before) + 1
    assert all(sentence.endswith(UNSAID) for sentence in after)


def test_peer_access_is_assumed_only_where_there_is_no_nvlink():
    assert not any("peer" in each for each in sketched(gpus=["3090"] * 2, interconnect="nvlink")[1])
    host, assumed = sketched(gpus=["3090"] * 2)
    assert any("peer" in each for each in assumed)
    assert [gpu.reached for gpu in host.gpus] == [frozenset(), frozenset()]


def test_an_idle_card_of_a_sketch_has_all_that_its_row_sees():
    host, _ = sketched(gpus=["RTX 3090"])
    (gpu,) = host.gpus
    assert (gpu.total_bytes, gpu.others_bytes) == (24 * GIB, 0)
    assert gpu.unexplained_bytes == 24 * GIB - 24125 * 2**20


@pytest.mark.parametrize("row", MATRIX.gpus, ids=lambda row: row.id)
def test_every_card_of_the_catalogue_can_be_sketched_by_its_id(row):
    host, _ = sketched(gpus=[row.id])
    assert MATRIX.gpu(host.gpus[0]) is row
    assert host.driver_version is not None


def test_a_node_without_cards_is_sketched_by_none():
    host, assumed = sketched(gpus="none")
    assert (host.gpu_status, host.gpus, host.driver_version) == ("no_gpu", (), None)
    assert not any("driver" in each or "card" in each for each in assumed)


def test_a_card_that_shares_the_node_s_memory_brings_its_size():
    host, _ = sketched(gpus=["GB10"])
    assert (host.memory_total_bytes, host.architecture) == (128 * GIB, "aarch64")


@pytest.mark.parametrize(
    ("card", "architecture"),
    [("GH200", "aarch64"), ("GB300", "aarch64"), ("Thor", "aarch64"), ("H200", "x86_64")],
)
def test_a_card_that_is_joined_with_a_processor_brings_it(card, architecture):
    host, _ = sketched(gpus=[card])
    assert host.architecture == architecture


@pytest.mark.parametrize(
    ("cards", "threads", "memory_gib"),
    [
        (["GH200"], 72, 447),
        (["GH200", "GH200"], 144, 894),
        (["GH200 144G"], 72, 64),
        (["GB10"], 20, 128),
        (["H200"], 16, 64),
    ],
)
def test_a_processor_that_cards_are_joined_with_brings_what_its_row_says(
    cards, threads, memory_gib
):
    host, assumed = sketched(gpus=cards)
    assert (host.cpu_threads, host.memory_total_bytes) == (threads, memory_gib * GIB)
    assert any(each.startswith(f"{threads} CPU threads") for each in assumed)


def test_an_unlisted_card_is_a_mapping():
    card = {"name": "RTX 6090", "compute_capability": "13.0", "memory_gib": 48}
    host, _ = sketched(gpus=[card])
    (gpu,) = host.gpus
    assert (gpu.name, gpu.compute_capability, gpu.total_bytes) == ("RTX 6090", "13.0", 48 * GIB)
    assert MATRIX.gpu(gpu) is None


@pytest.mark.parametrize(
    ("card", "fault"),
    [
        (
            {"name": "RTX 3090", "compute_capability": "12.0", "memory_gib": 24},
            "compute_capability of RTX 3090 needs '8.6' (row rtx-3090), found '12.0'",
        ),
        (
            {"name": "RTX 3090", "compute_capability": "8.6", "memory_gib": 48},
            "memory_gib of RTX 3090 needs 24 (row rtx-3090), found 48",
        ),
        (
            {"name": "NVIDIA GeForce RTX 4060 Ti", "compute_capability": "8.9", "memory_gib": 12},
            "memory_gib of NVIDIA GeForce RTX 4060 Ti needs 8 or 16 (row rtx-4060-ti-",
        ),
        (
            {"name": "H100", "compute_capability": "8.0", "memory_gib": 94},
            "compute_capability of H100 needs '9.0' (row h100-nvl), found '8.0'",
        ),
    ],
)
def test_what_a_sketch_says_of_a_listed_card_may_not_contradict_its_row(card, fault):
    (found,) = faults_of({"gpus": [card]})
    assert found.startswith(f"gpus[0]: {fault}")
    assert found.endswith("; a card that is not this one needs another name")


@pytest.mark.parametrize("row", MATRIX.gpus, ids=lambda row: row.id)
def test_a_listed_card_may_be_described_as_its_row_has_it(row):
    card = {
        "name": row.name,
        "compute_capability": row.compute_capability,
        "memory_gib": row.memory_mib / 1024,
    }
    host, _ = sketched(gpus=[card])
    found = MATRIX.gpu(host.gpus[0])
    assert (found.name, found.memory_mib) == (row.name, row.memory_mib)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("RTX 3060", "RTX 3060 is NVIDIA GeForce RTX 3060 12 GB, not NVIDIA GeForce RTX 3060 8 GB"),
        ("3080", "3080 is NVIDIA GeForce RTX 3080 10 GB, not NVIDIA GeForce RTX 3080 12 GB"),
        (
            "H100",
            "H100 is NVIDIA H100 80GB HBM3, not NVIDIA H100 PCIe 80 GB or NVIDIA H100 NVL 94 GB",
        ),
    ],
)
def test_a_name_of_several_cards_says_which_was_taken(name, sentence):
    _, assumed = sketched(gpus=[name, name])
    assert [each for each in assumed if " is " in each and each.startswith(sentence)]


@pytest.mark.parametrize("name", ["RTX 3060 12 GB", "RTX 3090", "H100 PCIe", "RTX 4060 Ti 16 GB"])
def test_a_name_of_one_card_assumes_nothing(name):
    _, assumed = sketched(gpus=[name])
    assert not any(", not NVIDIA" in each for each in assumed)


@pytest.mark.parametrize("word", ENVIRONMENTS)
def test_every_environment_is_one_that_the_probe_knows(word):
    assert sketched(gpus=["3090"], environment=word)[0].virtualization == ENVIRONMENTS[word]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"gpus": None}, "gpus: missing; needs names of cards, or 'none'"),
        ({"gpus": ["RTX 3091"]}, "gpus[0]: 'RTX 3091' is unknown; nearest: "),
        ({"gpus": [3090.5]}, "gpus[0]: needs a card's name as text, found 3090.5"),
        ({"gpus": [3091]}, "gpus[0]: '3091' is unknown; nearest: "),
        ({"gpus": ["3090"] * 65}, "gpus: needs at most 64 cards, found 65"),
        ({"gpus": [{"name": "X"}]}, "gpus[0]: compute_capability missing"),
        ({"gpus": [{"name": "X", "size": 3}]}, "gpus[0]: unknown key 'size'; known: name"),
        ({"dirver": "570"}, "dirver: unknown key; nearest: driver"),
        (
            {"driver": 570.1},
            'driver: needs a version as text, such as "580.95.05", found 570.1; quote it',
        ),
        ({"distro": "ubuntu-24.4"}, "distro: 'ubuntu-24.4' is unknown; nearest: ubuntu-24.04"),
        ({"memory_gib": 0}, "memory_gib: needs more than 0 and at most 1,048,576 GiB, found 0"),
        ({"memory_gib": float("nan")}, "memory_gib: needs more than 0"),
        (
            {"memory_gib": "64"},
            "memory_gib: needs a number of GiB, without a unit, found '64'; nearest: 64",
        ),
        ({"python": 3.1}, 'python: needs a version as text, such as "3.12", found 3.1; quote it'),
        ({"free_memory_gib": [20]}, "free_memory_gib: 1 figure for 2 cards"),
        ({"free_memory_gib": 25}, "free_memory_gib: 25 of a card of 24 GiB"),
        ({"interconnect": "nvlnk"}, "interconnect: 'nvlnk' is unknown; nearest: nvlink; known: "),
        ({"p2p": False}, "p2p: false contradicts interconnect nvlink"),
        ({"gpus": ["RTX 4090"] * 2}, "interconnect: NVIDIA GeForce RTX 4090 has no NVLink (row "),
        ({"gpus": ["RTX 3090"]}, "free_memory_gib: 2 figures for 1 card"),
        ({"gpus": "none"}, "driver: needs a card, and gpus says none"),
        ({"environment": "wsl"}, "environment: 'wsl' is unknown; nearest: wsl2; known: bare, "),
        ({"cpu_threads": True}, "cpu_threads: needs 1 to 4,096, found True"),
    ],
)
def test_a_wrong_value_says_what_was_said_and_what_is_legal(change, fault):
    assert any(each.startswith(fault) for each in faults_of(SAID | change)), faults_of(
        SAID | change
    )


def test_a_name_that_yaml_reads_as_a_number_is_a_name():
    for gpus in (3090, [3090], ["3090"]):
        assert sketched(gpus=gpus)[0].gpus == sketched(gpus="RTX 3090")[0].gpus


@pytest.mark.parametrize("text", ["1e3", "64 TiB", "640m"])
def test_digits_of_another_unit_are_no_nearest_size(text):
    (fault,) = faults_of({"gpus": "3090", "memory_gib": text})
    assert "nearest" not in fault


def test_all_faults_are_reported_at_once():
    assert len(faults_of({"gpus": ["x", "y"], "driver": "new", "colour": "red"})) == 4


@pytest.mark.parametrize("value", [None, [], "RTX 3090", 3])
def test_what_is_no_mapping_is_no_sketch(value):
    assert faults_of(value)[0].startswith("a sketch needs a mapping")
