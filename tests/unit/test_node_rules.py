"""What is asked of a node before any engine: its system, its card's driver, its port, its disks."""

import pytest

from gpuwright.disk_rules import DISK_MARGIN_BYTES
from gpuwright.fetching import RESERVE_BYTES
from gpuwright.refusals import Refusal
from tests.unit.decisions import GIB, decided, planned, refused, setting, warnings_of, why_not
from tools.golden import document

SMALL = {"model": "smollm2"}

# The CPU


def test_a_node_without_a_card_serves_the_small_model_from_the_cpu():
    plan = planned("cpu-debian12")
    assert (plan.engine, plan.release, plan.build_tag) == ("llama.cpp", "b11434", "cpu")
    assert plan.model == "smollm2-135m-instruct"
    assert plan.not_applicable is None
    assert plan.gpus == ()
    assert plan.max_model_len == 8192
    assert plan.max_num_seqs == 2
    assert plan.parameters["threads"] == 2
    assert [file.bytes for file in plan.files] == [98362432]


def test_auto_says_which_better_models_would_fit_and_cannot_be_applied():
    sentence = why_not(planned("cpu-debian12"), "llama.cpp b11434 cpu, qwen3.6-27b-q4_k_xl")
    assert sentence.startswith("fits; it cannot be applied yet: ")
    assert "not pinned" in sentence


def test_a_card_gets_no_toy_because_nothing_better_can_be_applied_yet():
    plan = planned("1x3090")
    assert plan.model == "qwen3.8-27b"
    assert plan.not_applicable is not None
    toys = [each.reason for each in plan.why_not if "smollm2" in each.candidate]
    assert toys
    assert all("not looked at" in each or "too small" in each for each in toys)


def test_a_named_model_that_is_not_pinned_plans_and_says_so():
    plan = planned("cpu-debian12", {"model": "qwen3.6-27b"})
    assert plan.files == ()
    assert "not pinned" in plan.not_applicable


def test_a_card_is_never_left_for_the_cpu_unasked():
    plan = planned("1x3090", {"model": "smollm2"})
    assert plan.on_gpu
    assert plan.not_applicable is None
    assert "the CPU serves only where `gpus` says none" in why_not(plan, "llama.cpp b11434 cpu")


def test_gpus_none_serves_from_the_cpu_beside_a_card():
    plan = planned("1x3090", {"model": "smollm2", "gpus": "none"})
    assert plan.gpus == ()
    assert plan.not_applicable is None
    assert "`gpus: none`: the card of this node stays unused" in warnings_of(plan)


# Broken drivers


@pytest.mark.parametrize("rig", ["3090-no-driver", "3090-driver-mismatch", "3090-gpu-lost"])
@pytest.mark.parametrize("model", ["auto", "smollm2"])
def test_a_broken_driver_is_refused_rather_than_served_slowly(rig, model):
    refusal = refused(rig, {"model": model})
    status = document(rig)["gpus"]["status"]
    assert any(reason.startswith(f"GPU ({status}): ") for reason in refusal.reasons)
    assert any("`gpus: none`" in remedy for remedy in refusal.remedies)


@pytest.mark.parametrize("rig", ["3090-no-driver", "3090-driver-mismatch", "3090-gpu-lost"])
def test_a_broken_driver_does_not_matter_to_who_asks_for_the_cpu(rig):
    assert planned(rig, {"gpus": "none"}).not_applicable is None


# The node


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (setting("uid", to=1000), "privileges: needs root, found user id 1000"),
        (setting("uid", to=None), "privileges: needs root, found unknown"),
        (
            setting("systemd", to={"version": None, "running": False}),
            "process 1: needs systemd, found another program (systemd-nspawn)",
        ),
        (setting("python", "version", to="3.7.3"), "Python: needs >= 3.8, found 3.7.3"),
        (
            setting(
                "os",
                to={"id": "alpine", "version_id": "3", "name": "Alpine", "architecture": "x86_64"},
            ),
            "Alpine: unknown, no row in distros.yaml",
        ),
    ],
)
def test_refuses_a_node_that_cannot_serve_at_all(change, reason):
    assert refused("cpu-debian12", None, change).reasons == (reason,)


def test_refuses_another_architecture():
    refusal = refused("cpu-debian12", None, setting("os", "architecture", to="aarch64"))
    assert "architecture: needs x86_64, found aarch64" in refusal.reasons


def test_every_fault_of_a_node_is_reported_at_once():
    def change(node):
        node["uid"] = 1000
        node["systemd"]["running"] = False

    assert len(refused("cpu-debian12", None, change).reasons) == 2


NGINX = {"port": 8080, "pid": 9, "process": "nginx", "unit": "nginx.service"}


@pytest.mark.parametrize(
    ("listening", "bind", "taken"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("0.0.0.0", "127.0.0.1", True),
        ("::", "127.0.0.1", True),
        ("127.0.0.1", "0.0.0.0", True),
        ("10.0.0.5", "127.0.0.1", False),
        ("::1", "127.0.0.1", False),
        ("127.0.0.1", "::", True),
    ],
)
def test_a_port_is_taken_where_addresses_overlap(listening, bind, taken):
    change = setting("ports", to=[NGINX | {"address": listening}])
    decision = decided("cpu-debian12", {"bind": bind}, change)
    assert isinstance(decision, Refusal) is taken
    if taken:
        assert decision.reasons == (
            f"port 8080: needs to be free, nginx (pid 9, nginx.service) listens on {listening}",
        )


def test_another_port_is_no_matter():
    change = setting("ports", to=[NGINX | {"address": "127.0.0.1"}])
    assert planned("cpu-debian12", {"port": 8081}, change)


def test_our_own_listener_does_not_take_the_port():
    mine = NGINX | {"address": "127.0.0.1", "process": "llama-server", "unit": None}

    def change(node):
        node["ports"] = [mine]
        node["ours"]["service"] = {
            "unit": "gpuwright-llm.service",
            "active": "active",
            "main_pid": 9,
        }

    assert planned("cpu-debian12", None, change)
    by_unit = setting("ports", to=[mine | {"pid": 4, "unit": "gpuwright-llm.service"}])
    assert planned("cpu-debian12", None, by_unit)


def free(**gib):
    def change(node):
        for path, disk in node["disks"].items():
            name = path.split("/")[3 if path.startswith("/var/cache") else -1]
            if name in gib:
                disk["free_bytes"] = int(gib[name] * GIB)
                disk["mount"] = path

    return change


def test_refuses_a_disk_that_is_too_small_for_the_model():
    refusal = refused("cpu-debian12", {"model": "smollm2"}, free(models=0.3))
    sentence = why_not(refusal, "llama.cpp b11434 cpu, smollm2-135m-instruct-q4_1")
    assert sentence.startswith("disk /var/lib/gpuwright/models below")
    assert "smollm2-135m-instruct-q4_1, found 0.30 GiB free" in sentence


def test_what_is_downloaded_already_needs_no_room():
    file = planned("cpu-debian12").files[0]

    def change(node):
        free(models=0.3)(node)
        node["ours"]["stamps"] = {
            "/var/lib/gpuwright/models/smollm2-135m-instruct-q4_1/gpuwright.json": {
                "schema": 1,
                "files": {file.path: {"bytes": file.bytes, "sha256": file.sha256}},
            }
        }

    assert planned("cpu-debian12", {"model": "smollm2"}, change)


ENGINE = "/opt/gpuwright/engines/llama.cpp-b11434-abc"


def test_refuses_a_disk_that_is_too_small_for_the_build_unless_it_is_built():
    small = free(gpuwright=0.5)
    refusal = refused("cpu-debian12", {"model": "smollm2"}, small)
    assert "the build" in refusal.reasons[0]

    def built(node):
        small(node)
        node["ours"]["stamps"] = {f"{ENGINE}/gpuwright.json": {"cmake_args": ["-DX=ON"]}}

    assert planned("cpu-debian12", {"model": "smollm2"}, built)

    def built_for_cards(node):
        small(node)
        node["ours"]["stamps"] = {f"{ENGINE}/gpuwright.json": {"cmake_args": ["-DGGML_CUDA=ON"]}}

    assert refused("cpu-debian12", {"model": "smollm2"}, built_for_cards)


def test_what_an_interrupted_download_left_is_not_missing():
    change = free(models=1.05)
    assert "found 1.05 GiB free" in refused("cpu-debian12", SMALL, change).reasons[0]

    def interrupted(node):
        change(node)
        store = "/var/lib/gpuwright/models/smollm2-135m-instruct-q4_1"
        node["ours"]["partials"] = {f"{store}/.partial": 160 * 2**20}

    assert planned("cpu-debian12", SMALL, interrupted)


def test_what_another_models_download_left_is_no_room_for_this_one():
    def change(node):
        free(models=1.05)(node)
        node["ours"]["partials"] = {"/var/lib/gpuwright/models/other/.partial": 10 * GIB}

    assert refused("cpu-debian12", SMALL, change)


def test_what_an_interrupted_build_left_is_room_for_the_next():
    change = free(gpuwright=1.9)
    assert "the build" in refused("cpu-debian12", SMALL, change).reasons[0]

    def interrupted(node):
        change(node)
        node["ours"]["partials"] = {"/var/cache/gpuwright/build": GIB // 2}

    assert planned("cpu-debian12", SMALL, interrupted)


def test_a_file_that_is_gone_is_missing_whatever_its_stamp_says():
    file = planned("cpu-debian12").files[0]
    store = "/var/lib/gpuwright/models/smollm2-135m-instruct-q4_1"

    def change(node):
        free(models=0.3)(node)
        stamp = {"schema": 1, "files": {file.path: {"bytes": file.bytes, "sha256": file.sha256}}}
        node["ours"]["stamps"] = {f"{store}/gpuwright.json": stamp}
        node["ours"]["files"] = {f"{store}/{file.path}": None}

    assert refused("cpu-debian12", SMALL, change)


def test_a_build_of_another_release_is_not_the_one_that_is_wanted():
    def change(node):
        free(gpuwright=0.5)(node)
        node["ours"]["stamps"] = {"/opt/gpuwright/engines/llama.cpp-b1-abc/gpuwright.json": {}}

    assert refused("cpu-debian12", SMALL, change)


def test_a_plan_leaves_as_much_room_as_the_downloads_ask_for():
    assert DISK_MARGIN_BYTES == RESERVE_BYTES


def test_model_source_and_build_on_one_filesystem_are_added_up():
    def on_one(**sizes):
        def change(node):
            for disk in node["disks"].values():
                disk["mount"] = "/"
                disk["free_bytes"] = int(2.3 * GIB)
            node["ours"]["partials"] = sizes.get("partials", {})

        return change

    sentence = refused("cpu-debian12", SMALL, on_one()).reasons[0]
    assert "smollm2-135m-instruct-q4_1 and its source and the build and the engine" in sentence
    left = {"/var/cache/gpuwright/build": GIB // 2}
    assert planned("cpu-debian12", SMALL, on_one(partials=left))


def test_room_on_one_filesystem_is_counted_once():
    def change(node):
        for disk in node["disks"].values():
            disk["free_bytes"] = int(1.7 * GIB)

    # Build, engine and model fit one by one and not together.
    assert "disk / below" in refused("cpu-debian12", {"model": "smollm2"}, change).reasons[0]


def test_free_space_that_is_unknown_is_said():
    plan = planned("cpu-debian12", None, setting("disks", "/var/lib/gpuwright/models", to=None))
    assert "free space below /var/lib/gpuwright/models is unknown" in warnings_of(plan)


# Directories that the operator chose

GOOD = {"type": "dir", "mode": "0755", "owner": "root", "group": "root"}


def standing(path, **changes):
    return setting("ours", "files", to={path: GOOD | changes})


@pytest.mark.parametrize("key", ["model_store", "cache"])
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"type": "link", "mode": "0777"}, "needs a directory, found a link"),
        ({"type": "file"}, "needs a directory, found another kind of file"),
        ({"owner": "me"}, "needs a directory of root's, found mode 0755, owner me"),
        (
            {"mode": "0775"},
            "needs a directory that root alone writes to, found mode 0775, owner root",
        ),
        (
            {"mode": "1777"},
            "needs a directory that root alone writes to, found mode 1777, owner root",
        ),
        (
            {"mode": "0750"},
            "needs a directory that the service's user may enter and read, found mode 0750, "
            "owner root",
        ),
    ],
)
def test_refuses_a_directory_that_is_not_safe_or_not_readable(key, changes, reason):
    refusal = refused("cpu-debian12", {key: "/srv/ours"}, standing("/srv/ours", **changes))
    assert refusal.reasons == (f"{key} /srv/ours: {reason}",)


def test_a_link_is_refused_with_what_to_name_instead():
    refusal = refused("cpu-debian12", {"cache": "/srv/c"}, standing("/srv/c", type="link"))
    assert refusal.remedies == ("the path that the link leads to, in its place",)


@pytest.mark.parametrize("entry", [None, GOOD, GOOD | {"mode": "2755"}, GOOD | {"owner": "0"}])
def test_a_directory_that_is_absent_or_roots_own_is_taken(entry):
    change = setting("ours", "files", to={"/srv/models": entry})
    assert planned("cpu-debian12", {"model_store": "/srv/models"}, change)


@pytest.mark.parametrize("path", ["/var/lib/gpuwright/models", "/var/cache/gpuwright"])
def test_our_own_directories_are_repaired_but_not_through_a_link(path):
    assert planned("cpu-debian12", {}, standing(path, mode="0777", owner="me"))
    assert refused("cpu-debian12", {}, standing(path, type="link"))
    assert refused("cpu-debian12", {}, standing(path, type="file"))


def test_our_own_places_are_no_links():
    refusal = refused("cpu-debian12", {}, standing("/opt/gpuwright", type="link"))
    needed = "/opt/gpuwright: needs a directory, or another disk mounted there"
    assert refusal.reasons == (f"{needed}, found a link",)
    assert "mount --bind" in refusal.remedies[0]
    refusal = refused("cpu-debian12", {}, standing("/etc/gpuwright/services", type="file"))
    assert refusal.remedies == ("/etc/gpuwright/services moved away",)


@pytest.mark.parametrize("key", ["files", "stamps", "partials"])
def test_what_nobody_could_look_at_is_not_held_against_a_node(key):
    change = setting("ours", key, to=None)
    assert planned("cpu-debian12", {"model_store": "/srv/models"}, change)


def test_refuses_a_model_that_ram_does_not_hold():
    change = setting("memory", "total_bytes", to=8 * GIB)
    refusal = refused("cpu-debian12", {"model": "qwen3.6-27b"}, change)
    sentence = why_not(refusal, "llama.cpp b11434 cpu, qwen3.6-27b-iq4_xs")
    assert sentence.startswith("RAM: weights, buffers and 1 x 2,048 tokens needs ")
    assert sentence.endswith(", 7.00 GiB can be had")
