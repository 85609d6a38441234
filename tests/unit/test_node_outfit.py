"""What stands around the cards: the installed driver, mounts, memory, clock, compilers, headers."""

import pytest

from gpuwright.refusals import Refusal
from tests.unit.decisions import GIB, decided, planned, refused, setting, warnings_of

# The driver that is installed


def driver(**known):
    def change(node):
        node["os"]["kernel"] = "6.1.0-31-amd64"
        node["driver"] = known

    return change


HERE, NEXT = "6.1.0-31-amd64", "6.1.0-44-amd64"
FAILED = {"module": "nvidia", "version": "535.1", "kernel": HERE, "state": "failed"}


@pytest.mark.parametrize(
    ("known", "remedy"),
    [
        ({"nouveau": "loaded"}, "nouveau kept out"),
        ({"kernel_ready": False, "dkms": [FAILED]}, "DKMS could not build nvidia 535.1"),
        ({"kernel_ready": False, "next_kernel": NEXT, "next_kernel_ready": True}, "a reboot into"),
        ({"kernel_ready": False}, f"installed for the running kernel {HERE}"),
        (
            {"kernel_ready": True, "secure_boot": True, "mok_enrolled": False},
            "`mokutil --import`",
        ),
        ({"kernel_ready": True, "secure_boot": False}, "`modprobe nvidia`"),
        ({}, "the NVIDIA driver installed and loaded"),
    ],
)
def test_a_driver_that_is_not_loaded_has_the_remedy_for_its_own_cause(known, remedy):
    refusal = refused("3090-no-driver", {"model": "auto"}, driver(**known))
    assert any(remedy in text for text in refusal.remedies), refusal.remedies


@pytest.mark.parametrize(
    ("known", "warned"),
    [
        (
            {"next_kernel": NEXT, "next_kernel_ready": False, "module_version": "570.1"},
            f"the next boot takes kernel {NEXT}",
        ),
        ({"next_kernel": HERE, "next_kernel_ready": False, "module_version": "570.1"}, None),
        ({"next_kernel": NEXT, "next_kernel_ready": True, "module_version": "570.1"}, None),
        ({"fabric_manager": {"needed": True, "active": False}}, "nvidia-fabricmanager does not"),
        ({"fabric_manager": {"needed": True, "active": None}}, None),
        ({"fabric_manager": {"needed": False, "active": False}}, None),
        (
            {"fabric_manager": {"needed": True, "version": "570.2"}, "module_version": "570.1"},
            "nvidia-fabricmanager is 570.2, the driver 570.1",
        ),
        ({"fabric_manager": {"needed": True, "version": "1"}, "module_version": "1"}, None),
    ],
)
def test_what_a_driver_will_do_later_is_a_warning(known, warned):
    plan = planned("1x3090", {"model": "Qwen3.6-27B"}, driver(**known))
    told = [text for text in warnings_of(plan) if "kernel" in text or "fabric" in text]
    assert bool(told) is bool(warned)
    assert not warned or warned in told[0]


def test_a_driver_does_not_matter_to_who_asks_for_the_cpu():
    change = driver(next_kernel=NEXT, next_kernel_ready=False, module_version="570.1")
    told = warnings_of(planned("1x3090", {"model": "smollm2", "gpus": "none"}, change))
    assert not [text for text in told if "kernel" in text]


# What surrounds the card


def mounted(path, **flags):
    def change(node):
        for disk in ("/opt/gpuwright/engines", "/var/lib/gpuwright/models", "/var/cache/gpuwright"):
            node["disks"][disk] = {"mount": "/", "free_bytes": 2**42}
        node["disks"][path] = {"mount": "/mnt", "free_bytes": 2**42, **flags}

    return change


@pytest.mark.parametrize(
    ("path", "flags", "reason"),
    [
        ("/var/lib/gpuwright/models", {"read_only": True}, "found mounted read-only"),
        ("/opt/gpuwright/engines", {"read_only": True}, "found mounted read-only"),
        ("/opt/gpuwright/engines", {"noexec": True}, "found mounted noexec"),
        ("/var/lib/gpuwright/models", {"noexec": True}, None),
        ("/opt/gpuwright/engines", {"read_only": None, "noexec": None}, None),
    ],
)
def test_engines_need_a_filesystem_that_takes_them_and_lets_them_run(path, flags, reason):
    change = mounted(path, **flags)
    if reason is None:
        planned("cpu-debian12", None, change)
    else:
        found = refused("cpu-debian12", None, change).reasons
        assert [text for text in found if reason in text and path in text] == list(found)


def test_a_container_has_no_more_memory_than_its_group():
    def change(node):
        node["memory"]["limit_bytes"] = GIB // 4

    assert decided("cpu-debian12", None, change) != decided("cpu-debian12")
    assert isinstance(decided("cpu-debian12", None, change), Refusal)


@pytest.mark.parametrize(
    ("time", "clock", "virtualization", "warned"),
    [
        (0, {"synchronized": True}, "none", "says 1970-01-01: downloads fail"),
        (-1e300, None, "none", "a time before all dates"),
        (1.8e9, {"synchronized": False}, "none", "follows no time server"),
        (1.8e9, {"synchronized": False}, "lxc", None),
        (1.8e9, {"synchronized": True}, "none", None),
        (1.8e9, None, "none", None),
        (None, None, "none", None),
    ],
)
def test_a_clock_that_is_wrong_or_on_its_own_is_a_warning(time, clock, virtualization, warned):
    def change(node):
        node.update(time=time, clock=clock, virtualization=virtualization)

    told = [text for text in warnings_of(planned("cpu-debian12", None, change)) if "clock" in text]
    assert len(told) == (1 if warned else 0)
    assert not warned or warned in told[0]


def pythons(*rows):
    found = [
        {"executable": f"/opt/{number}/bin/python3", "version": version, "headers": has}
        for number, (version, has) in enumerate(rows)
    ]
    return setting("pythons", to=found)


VLLM = {"model": "Qwen3.6-27B", "engine": "vllm"}


@pytest.mark.parametrize(
    ("rows", "warned"),
    [
        ([("3.12.3", False)], True),
        ([("3.12.3", False), ("3.12.9", True)], False),
        ([("3.11.2", False)], False),
    ],
)
def test_an_engine_that_compiles_wants_the_headers_of_its_python(rows, warned):
    def change(node):
        node["python"]["version"] = "3.12.3"
        pythons(*rows)(node)

    told = warnings_of(planned("1x3090", VLLM, change))
    assert bool([text for text in told if "python3.12-dev" in text]) is warned


NVCC = [{"executable": "/usr/bin/nvcc", "kind": "nvcc", "version": "12.4.131"}]
ELSEWHERE = [{"executable": "/srv/cuda/bin/nvcc", "kind": "nvcc", "version": "12.4.131"}]
# Of this release no wheel brings a compiler.
FLASHINFER = {
    "model": "llama-3.1-8b",
    "engine": "vllm",
    "release": "0.19.1",
    "attention_backend": "FLASHINFER",
}


@pytest.mark.parametrize("tools", [[], ELSEWHERE])
def test_a_backend_that_is_compiled_at_start_is_refused_where_no_unit_finds_nvcc(tools):
    refusal = refused("1x3090", FLASHINFER, setting("compilers", to=tools))
    told = [each.reason for each in refusal.why_not if "nvcc and ninja" in each.reason]
    assert told, refusal.why_not


def test_a_compiler_that_is_there_needs_no_word_and_one_that_is_unknown_does():
    def told(tools):
        plan = planned("1x3090", FLASHINFER, setting("compilers", to=tools))
        return [text for text in warnings_of(plan) if text.startswith("attention backend")]

    assert told(NVCC) == []
    assert len(told(None)) == 1


@pytest.mark.parametrize("tools", [None, [], ELSEWHERE])
def test_a_compiler_that_the_environment_brings_needs_no_word_either(tools):
    brings = FLASHINFER | {"release": "0.33.0"}
    plan = planned("1x3090", brings, setting("compilers", to=tools))
    assert not [text for text in warnings_of(plan) if text.startswith("attention backend")]
