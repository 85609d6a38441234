import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwright.host import Host
from gpuwright.refusals import HostError
from tools.golden import document, rigs

MIB = 2**20


@pytest.mark.parametrize("rig", rigs())
def test_every_rig_is_a_host(rig):
    host = Host.from_document(document(rig))
    assert host.architecture in ("x86_64", "aarch64")
    assert host.has_card or ("10de" not in host.pci_vendors and not host.gpus)


def test_use_by_our_own_service_is_not_use_by_others():
    data = document("1x3090")
    device = data["gpus"]["devices"][0]
    device["processes"] = [
        {"pid": 77, "used_bytes": 20000 * MIB},
        {"pid": 78, "used_bytes": 300 * MIB, "kind": "graphics"},
    ]
    device["memory_free_bytes"] -= 20300 * MIB
    data["ours"]["service"] = service(active="active", main_pid=77)
    gpu = Host.from_document(data).gpus[0]
    assert gpu.others_bytes == 300 * MIB
    # What the driver keeps for itself, as on the idle card.
    assert gpu.unexplained_bytes == 440 * MIB


def test_use_that_no_process_admits_to_is_unexplained():
    data = document("1x3090")
    data["gpus"]["devices"][0]["memory_free_bytes"] -= 5000 * MIB
    assert Host.from_document(data).gpus[0].unexplained_bytes == 5440 * MIB


def test_use_is_unknown_where_our_own_processes_have_no_size():
    data = document("1x3090")
    data["gpus"]["devices"][0]["processes"] = [{"pid": 77, "used_bytes": None}]
    data["ours"]["service"] = service(main_pid=77)
    gpu = Host.from_document(data).gpus[0]
    assert (gpu.others_bytes, gpu.unexplained_bytes, gpu.sized) == (0, None, False)


@pytest.mark.parametrize("virtualization", ["lxc", "docker", "systemd-nspawn", "wsl", None])
def test_processes_with_numbers_of_another_kernel_are_nobodys(virtualization):
    data = document("1x3090-desktop") | {"virtualization": virtualization}
    gpu = Host.from_document(data).gpus[0]
    assert not gpu.listed
    assert gpu.others_bytes == 0


def test_whether_a_service_runs_may_be_unknown():
    data = document("1x3090")
    for active, runs in (("active", True), ("inactive", False), (None, None)):
        data["ours"]["service"] = service(active=active)
        assert Host.from_document(data).service.active is runs


def service(**changes):
    return {"unit": "gpuwright-llm.service", "active": "active", "main_pid": 0} | changes


@pytest.mark.parametrize("status", ["weird", None])
def test_an_unknown_gpu_status_is_a_host_error(status):
    data = document("1x3090")
    data["gpus"]["status"] = status
    with pytest.raises(HostError, match=r"gpus\.status"):
        Host.from_document(data)


def test_a_newer_schema_is_a_host_error():
    with pytest.raises(HostError, match="schema: needs 2, found 3"):
        Host.from_document(document("1x3090") | {"schema": 3})


@pytest.mark.parametrize("value", [None, [], "text", 3])
def test_what_is_no_document_is_a_host_error(value):
    with pytest.raises(HostError, match="needs a mapping"):
        Host.from_document(value)


def test_a_missing_section_is_named():
    data = document("1x3090")
    del data["memory"]
    with pytest.raises(HostError, match="memory"):
        Host.from_document(data)


PATHS = [
    ("uid",),
    ("glibc",),
    ("ports",),
    ("disks",),
    ("virtualization",),
    ("gpus", "devices"),
    ("gpus", "driver_version"),
    ("os", "version_id"),
    ("python", "version"),
    ("cpu", "flags"),
    ("memory", "total_bytes"),
    ("systemd", "version"),
    ("ours", "stamps"),
    ("ours", "service"),
    ("ours", "files"),
    ("ours", "partials"),
    ("packages",),
    ("cpu", "threads"),
    ("gpus", "devices", 0, "memory_free_bytes"),
    ("gpus", "devices", 0, "processes"),
    ("gpus", "devices", 0, "nvlink"),
    ("gpus", "devices", 0, "memory_total_bytes"),
    ("gpus", "devices", 0, "compute_capability"),
    ("gpus", "devices", 0, "name"),
    *(
        ("gpus", "devices", 0, key)
        for key in ("mig", "vgpu", "display_active", "health", "xids", "power", "pcie")
    ),
    ("gpus", "pairs"),
    ("gpus", "device_nodes"),
]
WRONG = st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.just([1]) | st.just({})


def test_a_version_is_its_leading_numbers():
    assert Host.from_document(
        put(document("1x3090"), ("python", "version"), "3.12.0rc1+")
    ).python == ("3.12.0")


@pytest.mark.parametrize("path", [("glibc",), ("gpus", "driver_version"), ("python", "version")])
def test_what_is_no_version_is_a_host_error(path):
    with pytest.raises(HostError, match="'N/A' is not a version"):
        Host.from_document(put(document("1x3090"), path, "N/A"))


@pytest.mark.parametrize("section", ["os", "python", "cpu", "memory", "systemd", "ours", "ports"])
def test_a_section_that_was_not_asked_for_is_unknown(section):
    host = Host.from_document(document("cpu-debian12") | {section: None})
    assert host.gpu_status == "no_gpu"


def put(data, path, value):
    data = copy.deepcopy(data)
    at = data
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return data


@pytest.mark.parametrize("path", PATHS)
def test_whatever_the_probe_may_not_know_may_be_null(path):
    Host.from_document(put(document("1x3090"), path, None))


@pytest.mark.parametrize(
    "path",
    [
        ("memory", "total_bytes"),
        ("cpu", "threads"),
        ("gpus", "devices", 0, "memory_total_bytes"),
        ("gpus", "devices", 0, "memory_free_bytes"),
    ],
)
def test_a_size_that_no_kernel_counts_is_a_host_error(path):
    with pytest.raises(HostError, match="needs 0 or more, found -1"):
        Host.from_document(put(document("1x3090"), path, -1))
    with pytest.raises(HostError, match="needs at most 9223372036854775807, found more"):
        Host.from_document(put(document("1x3090"), path, 10**4000))


@given(st.sampled_from(PATHS), WRONG)
def test_a_wrong_value_is_a_host_error_and_no_traceback(path, value):
    data = put(document("1x3090"), path, value)
    try:
        host = Host.from_document(data)
    except HostError as error:
        assert str(error)
    else:
        assert host.gpu_status == "ok"
