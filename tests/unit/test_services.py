"""Several services on one node."""

import pytest

from gpuwright.host import Host
from gpuwright.load import load_matrix
from gpuwright.plan import Plan
from gpuwright.refusals import Refusal, WantError
from gpuwright.services import decide_services
from gpuwright.sketch import read_sketch
from gpuwright.want import Want

MATRIX = load_matrix()


def decided(gpus, *services, **sketch):
    wants = [
        Want.from_data({"service": f"s{index}", "port": 8080 + index, **service})
        for index, service in enumerate(services)
    ]
    document, _ = read_sketch({"gpus": gpus, **sketch}, MATRIX, wants[0].layout)
    return decide_services(Host.from_document(document), wants, MATRIX)


def cards(decision):
    assert isinstance(decision, Plan), decision.sentence()
    return [gpu.index for gpu in decision.gpus]


def test_no_card_is_given_to_two_services():
    found = decided(["RTX 3090"] * 3, {"model": "qwen3.6-27b"}, {"model": "gemma-4-12b"})
    assert [cards(each) for each in found] == [[0, 1], [2]]


def test_a_service_that_needs_more_cards_gets_them_whatever_its_place():
    long = {"model": "qwen3.6-27b", "engine": "vllm", "max_model_len": 131072}
    found = decided(["RTX 3090"] * 3, {"model": "gemma-4-12b"}, long)
    assert [cards(each) for each in found] == [[0], [1, 2]]


def test_a_named_card_is_its_services_own():
    found = decided(
        ["RTX 3090"] * 2, {"model": "gemma-4-12b"}, {"model": "llama-3.1-8b", "gpus": 0}
    )
    assert [cards(each) for each in found] == [[1], [0]]


def test_a_service_beyond_the_cards_is_refused_and_the_others_stand():
    small = {"model": "qwen3-0.6b"}
    found = decided(["RTX 3090"], small, small)
    assert sorted(isinstance(each, Refusal) for each in found) == [False, True]


def test_a_service_that_shares_plans_on_what_the_others_leave():
    small = {"model": "qwen3-0.6b", "engine": "llama.cpp"}
    (alone,) = decided(["A100 80GB"], small)
    big = {"model": "gemma-4-12b", "engine": "llama.cpp", "max_num_seqs": 1}
    first, second = decided(["A100 80GB"], big, {**small, "share_gpus": True})
    assert cards(first) == cards(second) == [0]
    left = alone.memory.available_bytes - second.memory.available_bytes
    assert first.memory.needed_bytes <= left < first.memory.needed_bytes + 2**29


def test_of_each_shared_card_what_the_others_take_of_that_one_is_missing():
    small = {"model": "qwen3-0.6b", "engine": "llama.cpp", "gpus": [0, 1]}
    cards = ["RTX 3090", "RTX 3060 12GB"]
    (alone,) = decided(cards, small)
    big = {**small, "model": "qwen3.6-27b", "max_model_len": 16384, "max_num_seqs": 1}
    first, second = decided(cards, big, {**small, "share_gpus": True})
    assert first.devices[0].needed_bytes > first.devices[1].needed_bytes + 2**30
    for card, before, after in zip(first.devices, alone.devices, second.devices, strict=True):
        # What is to be had of a card is reckoned in steps of 256 MiB.
        assert 0 <= before.available_bytes - after.available_bytes - card.needed_bytes < 2**28


def test_two_services_on_the_cpu_share_its_ram():
    small = {"model": "smollm2", "gpus": "none"}
    first, second = decided("none", small, small, memory_gib=16)
    assert second.memory.available_bytes < first.memory.available_bytes


@pytest.mark.parametrize(("ram", "both"), [(14, False), (64, True)])
def test_a_second_service_has_the_ram_that_the_first_ones_experts_leave(ram, both):
    asked = {"model": "qwen3.6-35b-a3b", "engine": "llama.cpp", "max_model_len": 16384}
    cards = ["RTX 3060 12GB"] * 2
    first, second = decided(cards, {**asked, "gpus": 0}, {**asked, "gpus": 1}, memory_gib=ram)
    assert isinstance(first, Plan)
    assert first.parameters["cpu_expert_layers"] > 0
    assert first.ram_bytes > 6 * 2**30
    assert isinstance(second, Plan) is both


@pytest.mark.parametrize(
    ("second", "fault"),
    [
        ({"service": "s0"}, "service: 's0' stands for two services"),
        ({"port": 8080}, "port: 8080 stands for two services"),
        ({"gpus": [0]}, "s1 and s0 both name GPU 0"),
    ],
)
def test_what_two_services_cannot_both_have_is_bad_input(second, fault):
    with pytest.raises(WantError, match=fault):
        decided(["RTX 3090"] * 2, {"gpus": [0]}, second)


def test_a_share_that_a_card_ought_not_to_exceed_is_that_of_all_its_services():
    small = {"model": "gemma-4-12b", "engine": "vllm", "share_gpus": True}
    first = {"model": "llama-3.1-8b", "engine": "vllm", "max_model_len": 32768}
    found = decided(["GB10"], {**first, "engine": "llama.cpp"}, small)
    plans = [each for each in found if isinstance(each, Plan)]
    assert len(plans) == 2
    visible = 121.7 * 2**30
    assert sum(each.memory.needed_bytes for each in plans) <= 0.82 * visible
    assert plans[1].memory.needed_bytes > 0.5 * visible
    (_, refused) = decided(["GB10"], first, small)
    assert isinstance(refused, Refusal)
