"""What is told of cards' condition and connections, and what a plan makes of it."""

import pytest

from gpuwright.explain import explain_host
from gpuwright.host import Host
from gpuwright.load import load_matrix
from gpuwright.refusals import HostError
from tests.unit.decisions import decided, planned, refused, warnings_of
from tools.golden import document

MODEL = {"model": "qwen3.6-27b"}


def card(index, **changes):
    """A change of a node's card."""

    def change(node):
        node["gpus"]["devices"][index].update(changes)

    return change


def pairs(*connected, nvlinks=4):
    """A change of a node: which of its cards are connected, and all others over PCIe alone."""

    def change(node):
        cards = range(len(node["gpus"]["devices"]))
        node["gpus"]["pairs"] = [
            {
                "a": a,
                "b": b,
                "nvlinks": nvlinks if (a, b) in connected else 0,
                "p2p": "ok" if (a, b) in connected else "not_supported",
                "topology": "node",
            }
            for a in cards
            for b in cards
            if a < b
        ]

    return change


def host(rig, change=None):
    node = document(rig)
    if change is not None:
        change(node)
    return Host.from_document(node)


def hazards(plan):
    return {warning.hazard for warning in plan.warnings}


# Divided and failing cards


def test_a_divided_card_is_no_whole_one_and_the_refusal_names_its_instances():
    mig = {"enabled": True, "pending": True, "instances": [{"name": "MIG 3g.40gb"}]}
    refusal = refused("a100-80gb", MODEL, card(0, mig=mig))
    assert any(
        "needs a whole card, found MIG on (MIG 3g.40gb)" in reason for reason in refusal.reasons
    )
    assert any("nvidia-smi -i 0 -mig 0" in remedy for remedy in refusal.remedies)


@pytest.mark.parametrize("mig", [None, {"enabled": None}, {"enabled": False, "instances": None}])
def test_a_card_that_is_not_divided_is_whole(mig):
    assert planned("a100-80gb", MODEL, card(0, mig=mig)).gpus


def test_a_card_that_failed_is_left_out_and_the_plan_says_so():
    plan = planned("2x3090-pcie", MODEL, card(1, health="failing", xids=[79]))
    assert [gpu.index for gpu in plan.gpus] == [0]
    assert any(
        text.startswith("GPU 1 (NVIDIA GeForce RTX 3090): needs no error of its hardware")
        and text.endswith("found Xid 79: left out")
        for text in warnings_of(plan)
    )


def test_the_only_card_that_failed_is_refused_and_a_pin_takes_it_with_a_warning():
    failing = card(0, health="failing", xids=[48, 64])
    refusal = refused("1x3090", MODEL, failing)
    assert any("found Xid 48, 64" in reason for reason in refusal.reasons)
    pinned = planned("1x3090", MODEL | {"gpus": [0]}, failing)
    assert any("pinned all the same" in text for text in warnings_of(pinned))


def test_throttling_and_errors_of_programs_change_no_plan():
    plain = planned("1x3090", MODEL)
    assert decided("1x3090", MODEL, card(0, health="throttled", xids=[31])) == plain


# What is warned about


def test_a_desktop_on_a_card_is_warned_about():
    assert any(
        "draws a desktop" in text
        for text in warnings_of(planned("1x3090", MODEL, card(0, display_active=True)))
    )
    assert not any("desktop" in text for text in warnings_of(planned("1x3090", MODEL)))


@pytest.mark.parametrize(("limit", "warned"), [(230.0, True), (280, False), (350.0, False)])
def test_a_card_that_is_held_far_below_its_power_limit_is_warned_about(limit, warned):
    plan = planned("1x3090", MODEL, card(0, power={"limit_w": limit, "default_w": 350.0}))
    assert ("held-down-power" in hazards(plan)) is warned


@pytest.mark.parametrize(("width", "warned"), [(1, True), (4, True), (8, False), (None, False)])
def test_tensors_over_a_narrow_link_are_warned_about(width, warned):
    want = MODEL | {"engine": "vllm", "tensor_parallel_size": 2}
    plan = planned(
        "2x3090-pcie",
        want,
        lambda node: [card(0, pcie={"width": 16})(node), card(1, pcie={"width": width})(node)],
    )
    assert ("narrow-link-in-step" in hazards(plan)) is warned


def test_a_guest_s_part_of_a_card_is_warned_about():
    plan = planned("1x3090", MODEL, card(0, vgpu="vgpu"))
    assert "virtual-gpu-without-a-licence" in hazards(plan)
    passed_through = planned("1x3090", MODEL, card(0, vgpu="passthrough"))
    assert "virtual-gpu-without-a-licence" not in hazards(passed_through)


def test_an_explained_node_names_what_is_odd_of_its_cards_and_what_stands_beside_them():
    def change(node):
        card(0, health="failing", xids=[79], display_active=True, vgpu="passthrough")(node)
        card(0, power={"limit_w": 250.0, "default_w": 350.0}, pcie={"width": 4})(node)
        node["gpus"]["ignored"] = ["0000:00:02.0 (8086:a780) is an Intel controller: not used"]
        node["gpus"] |= {"status": "gpu_lost", "detail": "GPU 1: GPU is lost"}

    shown = explain_host(host("1x3090", change), load_matrix())
    assert (
        ", failing (Xid 79), virtualized (passthrough), a desktop on it, power held at 71 %, "
        "PCIe x4\n"
    ) in shown
    assert "GPU      gpu_lost: GPU 1: GPU is lost\n" in shown
    assert "beside   0000:00:02.0 (8086:a780) is an Intel controller: not used" in shown
    plain = explain_host(host("1x3090"), load_matrix())
    assert "row rtx-3090\n" in plain
    assert "beside" not in plain


# Containers


def container(kind, *nodes):
    def change(node):
        node["virtualization"] = kind
        node["gpus"]["device_nodes"] = list(nodes)
        node["gpus"]["devices"][0]["processes"] = None

    return change


def test_a_container_without_uvm_is_refused_unless_the_cpu_is_to_serve():
    change = container("lxc", "/dev/nvidia0", "/dev/nvidiactl")
    refusal = refused("1x3090", MODEL, change)
    assert (
        "container (lxc): needs /dev/nvidia-uvm from its host, without which CUDA does not start, "
        "found /dev/nvidia0, /dev/nvidiactl"
    ) in refusal.reasons
    assert planned("1x3090", {"gpus": "none"}, change)


@pytest.mark.parametrize("kind", ["lxc", "wsl", "none"])
def test_the_file_is_asked_for_in_containers_alone(kind):
    nodes = ("/dev/dxg",) if kind == "wsl" else ("/dev/nvidia-uvm",) if kind == "lxc" else ()
    assert planned("1x3090", MODEL, container(kind, *nodes)).gpus


# Connections


def test_nvlink_counts_between_the_cards_of_the_plan():
    """Four cards with two bridges: a pair that a bridge connects has NVLink, all four have not."""

    def bridged(node):
        pairs((0, 1), (2, 3))(node)
        for device in node["gpus"]["devices"]:
            device["nvlink"] = True

    want = MODEL | {"engine": "vllm"}
    both = planned("4x3090", want | {"gpus": [0, 1], "tensor_parallel_size": 2}, bridged)
    assert "pcie-custom-all-reduce" not in hazards(both)
    across = planned("4x3090", want | {"gpus": [1, 2], "tensor_parallel_size": 2}, bridged)
    assert "pcie-custom-all-reduce" in hazards(across)
    every = planned("4x3090", want | {"tensor_parallel_size": 4}, bridged)
    assert "pcie-custom-all-reduce" in hazards(every)
    shown = explain_host(host("4x3090", bridged), load_matrix())
    assert "NVLink between GPU 0 and 1, 2 and 3; else PCIe" in shown


def test_texts_of_a_node_are_printable_and_of_one_line():
    odd = ["a\x1b[2J\nb", 7, None, 10**5000]
    node = host("1x3090", lambda node: node["gpus"].update(ignored=odd, device_nodes=odd))
    assert node.ignored[0] == "a\\x1b[2J\\nb"
    assert len(node.ignored) == len(node.device_nodes) == 4


def test_peer_access_is_read_from_the_pairs():
    reached = host("2x3090-pcie", pairs((0, 1), nvlinks=0))
    assert [gpu.reached for gpu in reached.gpus] == [frozenset((1,)), frozenset((0,))]
    assert "PCIe, the cards reach each other's memory" in explain_host(reached, load_matrix())
    untold = host("2x3090-pcie")
    assert [gpu.reached for gpu in untold.gpus] == [None, None]


def test_an_answer_that_is_missing_of_one_pair_leaves_its_cards_open():
    def untold(node):
        pairs((0, 1))(node)
        node["gpus"]["pairs"][0]["nvlinks"] = None

    gpus = host("4x3090", untold).gpus
    assert [gpu.linked for gpu in gpus] == [None, None, frozenset(), frozenset()]


@pytest.mark.parametrize(
    "power",
    [
        {"limit_w": "much"},
        {"limit_w": -1},
        {"default_w": True},
        {"limit_w": float("nan")},
        {"limit_w": 10**5000},
        {"default_w": float("inf")},
    ],
)
def test_what_is_no_power_is_a_host_error(power):
    with pytest.raises(HostError, match=r"devices\[0\]\.power\.\w+_w: needs a number"):
        host("1x3090", card(0, power=power))


def test_a_pair_of_one_card_is_a_host_error():
    with pytest.raises(HostError, match=r"gpus\.pairs\[0\]: needs two cards"):
        host("1x3090", lambda node: node["gpus"].update(pairs=[{"a": 0, "b": 0}]))
