"""Cards whose memory is the node's RAM, of which the driver gives no size."""

import pytest

from gpuwright.explain import explain_host
from gpuwright.host import Host
from gpuwright.load import load_matrix
from tests.unit.decisions import GIB, planned, refused, setting
from tools.golden import document

SPARK = "gb10-nvitop-208"
UNTOLD = {"total_bytes": None, "available_bytes": None, "swap_total_bytes": None}
UNTOLD |= {"limit_bytes": None}


@pytest.mark.parametrize(
    ("engine", "had"),
    [("vllm", 130_663_165_952 * 82 // 100), ("llama.cpp", 130_663_165_952)],
)
def test_a_spark_is_planned_with_its_ram(engine, had):
    plan = planned(SPARK, {"model": "gpt-oss-20b", "engine": engine})
    assert plan.memory.where == "GPU 0 (NVIDIA GB10)"
    assert plan.memory.available_bytes == had


def test_a_spark_in_a_container_has_what_that_may_use():
    limited = setting("memory", "limit_bytes", to=64 * GIB)
    plan = planned(SPARK, {"model": "gpt-oss-20b", "engine": "llama.cpp"}, limited)
    assert plan.memory.available_bytes == 64 * GIB


def test_a_spark_whose_ram_is_unknown_is_refused_with_what_would_tell_it():
    refusal = refused(SPARK, {"model": "gpt-oss-20b"}, setting("memory", to=UNTOLD))
    assert any(
        "NVIDIA GB10: needs the size of the node's RAM, which is its memory, found unknown" in each
        for each in refusal.reasons
    )
    assert any("/proc/meminfo" in each for each in refusal.remedies)


def test_a_card_with_memory_of_its_own_never_takes_the_ram():
    untold = setting("gpus", "devices", 0, "memory_total_bytes", to=None)
    refusal = refused("1x3090", {"model": "gpt-oss-20b"}, untold)
    assert any("needs a memory size, found unknown" in each for each in refusal.reasons)


def test_people_are_told_that_the_memory_is_the_ram():
    text = explain_host(Host.from_document(document(SPARK)), load_matrix())
    assert "121.69 GiB, which is the RAM, row gb10" in text
