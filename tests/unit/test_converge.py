"""What differs: each kind of drift has its own answer, and a node that serves has none."""

import copy
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gpuwright.converge import Changes, changes
from gpuwright.expected import PLAN_VARIABLE, STAMP, Directory, Expected, directories
from gpuwright.layout import Layout
from gpuwright.plan import PlannedGpu
from gpuwright.running import obstacle, remarks
from tests.unit.plans import BESIDE, FILE, PLAN

LAYOUT = Layout()
ENGINE = "/opt/gpuwright/engines/llama.cpp-b1-k"
BINARY = f"{ENGINE}/bin/llama-server"
MODEL = f"{LAYOUT.checkpoint_dir(PLAN.checkpoint)}/{FILE.path}"
DRAFTER_DIR = LAYOUT.checkpoint_dir(BESIDE.id)
DRAFTER = f"{DRAFTER_DIR}/{FILE.path}"
KEY_FILE = LAYOUT.environment_path("llm")
STARTED = 1000.0

EXPECTED = Expected(
    layout=LAYOUT,
    plan=replace(PLAN, beside=(BESIDE,)),
    engine_dir=ENGINE,
    engine_files=("bin/llama-server",),
    unit=f'[Service]\nEnvironment="{PLAN_VARIABLE}=abc"\n',  # as units.py writes it
    secret_names=("LLAMA_API_KEY",),
    build_packages=("cmake",),
    runtime_packages=("libgomp1",),
    start_timeout_seconds=120,
)


def _file(text: str | None = None, **changed: Any) -> dict[str, Any]:
    entry = {
        "type": "file",
        "mode": "0644",
        "owner": "root",
        "group": "root",
        "size": 1000,
        "mtime_ns": 5,
        "inode": 7,
        "sha256": None if text is None else hashlib.sha256(text.encode()).hexdigest(),
    }
    return entry | changed


def _serving() -> dict[str, Any]:
    """The document of a node that serves the plan."""
    stamp = {"bytes": 1000, "sha256": FILE.sha256, "mtime_ns": 5, "inode": 7}
    files: dict[str, Any] = {
        row.path: _file(type="dir", mode=row.mode) for row in directories(LAYOUT)
    }
    files |= {
        BINARY: _file(mode="0755"),
        ENGINE: _file(type="dir", mode="0755"),
        f"{ENGINE}/bin": _file(type="dir", mode="0755"),
        f"{ENGINE}/{STAMP}": _file(),
        LAYOUT.checkpoint_dir(PLAN.checkpoint): _file(type="dir", mode="0755"),
        MODEL: _file(),
        DRAFTER_DIR: _file(type="dir", mode="0755"),
        DRAFTER: _file(),
        KEY_FILE: _file(mode="0600", variables=["LLAMA_API_KEY"]),
        EXPECTED.unit_path: _file(EXPECTED.unit),
        EXPECTED.record_path: _file(EXPECTED.record),
    }
    return {
        "time": 2000.0,
        "virtualization": "none",
        "ports": [{"port": 8080, "address": "127.0.0.1", "unit": "gpuwright-llm.service"}],
        "notes": [],
        "packages": {"libgomp1": "1", "cmake": None},
        "gpus": {"devices": []},
        "ours": {
            "user": {"name": "gpuwright", "uid": 998, "shell": "/usr/sbin/nologin"},
            "files": files,
            "stamps": {
                f"{ENGINE}/gpuwright.json": {"files": {"bin/llama-server": dict(stamp)}},
                f"{DRAFTER_DIR}/gpuwright.json": {"files": {FILE.path: dict(stamp)}},
                f"{LAYOUT.checkpoint_dir(PLAN.checkpoint)}/gpuwright.json": {
                    "files": {FILE.path: stamp}
                },
            },
            "service": {
                "load": "loaded",
                "active": "active",
                "drop_ins": [],
                "exe": {"path": BINARY, "inode": 7},
                "uid": 998,
                "enabled": "enabled",
                "need_daemon_reload": False,
                "main_pid": 42,
                "pids": [42],
                "started_at": STARTED,
                "environment": {PLAN_VARIABLE: "abc"},
                "health": {"status": 200, "models_status": 200, "models": ["Tiny"], "error": None},
            },
        },
    }


def _changed(change: Callable[[dict[str, Any]], object]) -> Changes:
    document = copy.deepcopy(_serving())
    change(document)
    return changes(EXPECTED, document)


def _named(found: Changes) -> set[str]:
    return {name for name in Changes.__dataclass_fields__ if getattr(found, name)}


def _files(document: dict[str, Any]) -> dict[str, Any]:
    files: dict[str, Any] = document["ours"]["files"]
    return files


def _service(document: dict[str, Any]) -> dict[str, Any]:
    service: dict[str, Any] = document["ours"]["service"]
    return service


def test_nothing_is_to_be_done_on_a_node_that_serves_the_plan() -> None:
    assert changes(EXPECTED, _serving()) == Changes()
    assert Changes().reasons() == ()


def test_everything_is_to_be_done_on_a_bare_node() -> None:
    document = _serving()
    document["packages"] = {"libgomp1": None, "cmake": None}
    document["ours"] = {"user": None, "files": {}, "stamps": {}, "service": None}
    found = changes(EXPECTED, document)
    assert _named(found) == set(Changes.__dataclass_fields__) - {
        "environment_mode",
        "modes",
        "rehearse",
        "kept",
    }
    assert found.packages == ("libgomp1", "cmake")
    assert len(found.reasons()) == len(_named(found))


RESTARTED = {"restart", "gate"}


@pytest.mark.parametrize(
    ("what", "change", "names"),
    [
        ("unit edited", lambda d: _files(d)[EXPECTED.unit_path].update(sha256="0"),
         {"unit", "reload"} | RESTARTED),
        ("unit gone", lambda d: _files(d).update({EXPECTED.unit_path: None}),
         {"unit", "reload"} | RESTARTED),
        ("unit edited on disk and read", lambda d: _service(d).update(need_daemon_reload=True),
         {"reload"}),
        ("stopped", lambda d: _service(d).update(active="inactive"), RESTARTED),
        ("failed", lambda d: _service(d).update(active="failed"), RESTARTED),
        ("disabled", lambda d: _service(d).update(enabled="disabled"), {"enable"}),
        ("key file readable", lambda d: _files(d)[KEY_FILE].update(mode="0644"),
         {"environment_mode"}),
        ("key file not root's", lambda d: _files(d)[KEY_FILE].update(owner="me"),
         {"environment_mode"}),
        ("key gone", lambda d: _files(d)[KEY_FILE].update(variables=[]),
         {"environment"} | RESTARTED),
        ("key changed", lambda d: _service(d)["health"].update(models_status=401), RESTARTED),
        ("model truncated", lambda d: _files(d)[MODEL].update(size=10), {"fetch"} | RESTARTED),
        ("model touched", lambda d: _files(d)[MODEL].update(mtime_ns=6), {"fetch"} | RESTARTED),
        ("model replaced", lambda d: _files(d)[MODEL].update(inode=8), {"fetch"} | RESTARTED),
        ("model gone", lambda d: _files(d).pop(MODEL), {"fetch"} | RESTARTED),
        ("model's hash wrong", lambda d: _files(d)[MODEL].update(sha256="b" * 64),
         {"fetch"} | RESTARTED),
        ("model's stamp gone", lambda d: d["ours"]["stamps"].popitem(), {"fetch"} | RESTARTED),
        ("model is a link", lambda d: _files(d)[MODEL].update(type="link"),
         {"fetch"} | RESTARTED),
        ("drafter gone", lambda d: _files(d).pop(DRAFTER), {"fetch"} | RESTARTED),
        ("drafter's stamp gone", lambda d: d["ours"]["stamps"].pop(f"{DRAFTER_DIR}/gpuwright.json"),
         {"fetch"} | RESTARTED),
        ("drafter writable", lambda d: _files(d)[DRAFTER].update(mode="0666"), {"modes"}),
        ("drafter's directory closed", lambda d: _files(d)[DRAFTER_DIR].update(mode="0700"),
         {"modes"}),
        ("build gone", lambda d: _files(d).pop(BINARY), {"build", "packages"} | RESTARTED),
        ("build replaced", lambda d: _files(d)[BINARY].update(inode=8),
         {"build", "packages"} | RESTARTED),
        ("plan unknown to the process", lambda d: _service(d).update(environment={}), RESTARTED),
        ("another binary runs", lambda d: _service(d).update(
            exe={"path": f"{BINARY} (deleted)", "inode": 6}), RESTARTED),
        ("runs as root", lambda d: _service(d).update(uid=0), RESTARTED),
        ("hears everywhere", lambda d: d["ports"][0].update(address="0.0.0.0"), RESTARTED),
        ("needs no key", lambda d: _service(d)["health"].update(keyless_status=200), RESTARTED),
        ("model writable", lambda d: _files(d)[MODEL].update(mode="0666"), {"modes"}),
        ("binary not root's", lambda d: _files(d)[BINARY].update(owner="nobody"), {"modes"}),
        ("stamp not root's", lambda d: _files(d)[f"{ENGINE}/{STAMP}"].update(owner="nobody"),
         {"modes"}),
        ("engine closed", lambda d: _files(d)[ENGINE].update(mode="0700"), {"modes"}),
        ("older plan runs", lambda d: _service(d)["environment"].update({PLAN_VARIABLE: "old"}),
         RESTARTED),
        ("still loading", lambda d: _service(d).update(
            started_at=1990.0, health={"status": 503, "models_status": None, "models": None}),
         {"gate"}),
        ("does not answer for long", lambda d: _service(d)["health"].update(status=None),
         RESTARTED),
        ("serves another model", lambda d: _service(d)["health"].update(models=["Other"]),
         RESTARTED),
        ("record gone", lambda d: _files(d).pop(EXPECTED.record_path), {"record"}),
        ("directory open", lambda d: _files(d)[LAYOUT.environments].update(mode="0755"),
         {"directories"}),
        ("user gone", lambda d: d["ours"].update(user=None), {"user"}),
        ("library gone", lambda d: d["packages"].update(libgomp1=None), {"packages"}),
    ],
)  # fmt: skip
def test_drift_is_answered_with_exactly_what_it_needs(
    what: str, change: Callable[[dict[str, Any]], object], names: set[str]
) -> None:
    assert _named(_changed(change)) == names, what


def _of_another_plan(document: dict[str, Any]) -> None:
    _files(document)[EXPECTED.unit_path].update(sha256="0")
    _service(document)["environment"].update({PLAN_VARIABLE: "old"})


def test_what_serves_another_plan_is_kept_while_the_new_one_proves_itself() -> None:
    kept = (EXPECTED.unit_path, EXPECTED.record_path)
    assert _changed(_of_another_plan).kept == kept


@pytest.mark.parametrize(
    "change",
    [
        lambda d: _service(d)["health"].update(status=503),
        lambda d: _service(d)["health"].update(models_status=401),
        lambda d: _service(d).update(need_daemon_reload=True),
        lambda d: _service(d)["environment"].update({PLAN_VARIABLE: "abc"}),
    ],
)
def test_what_does_not_serve_is_not_kept(change: Callable[[dict[str, Any]], object]) -> None:
    def both(document: dict[str, Any]) -> None:
        _of_another_plan(document)
        change(document)

    found = _changed(both)
    assert found.unit
    assert found.kept == ()


def test_file_newer_than_the_process_restarts_it_even_when_a_killed_run_installed_it() -> None:
    def renewed(document: dict[str, Any]) -> None:
        _files(document)[MODEL]["mtime_ns"] = int(1500e9)
        document["ours"]["stamps"][f"{LAYOUT.checkpoint_dir(PLAN.checkpoint)}/gpuwright.json"][
            "files"
        ][FILE.path]["mtime_ns"] = int(1500e9)

    assert _named(_changed(renewed)) == RESTARTED


def test_file_from_a_clock_that_was_ahead_does_not_restart_for_ever() -> None:
    def ahead(document: dict[str, Any]) -> None:
        stamps = document["ours"]["stamps"].values()
        for entry in [
            _files(document)[MODEL],
            _files(document)[DRAFTER],
            *(row for s in stamps for row in s["files"].values()),
        ]:
            entry["mtime_ns"] = int(9e18)
        _files(document)[BINARY]["mtime_ns"] = int(9e18)

    assert _changed(ahead) == Changes()


def test_slow_moment_of_a_young_service_is_waited_for_not_restarted() -> None:
    def slow(document: dict[str, Any]) -> None:
        _service(document).update(started_at=document["time"] - 60)
        _service(document)["health"].update(status=None)

    assert _named(_changed(slow)) == {"gate"}


@pytest.mark.parametrize(
    ("unknown", "what"),
    [
        (lambda d: d["ours"].update(files=None), "our files"),
        (lambda d: d.update(packages=None), "installed packages"),
        (lambda d: _service(d).update(active=None), "gpuwright-llm.service"),
        (lambda d: d["ours"].update(service=None), "gpuwright-llm.service"),
    ],
)
def test_what_the_probe_could_not_tell_is_not_taken_for_absent(
    unknown: Callable[[dict[str, Any]], object], what: str
) -> None:
    document = _serving() | {"notes": ["it took too long"]}
    unknown(document)
    found = obstacle(EXPECTED, document)
    assert found is not None
    assert what in found
    assert "it took too long" in found


def test_masked_unit_is_an_obstacle_and_a_serving_node_has_none() -> None:
    document = _serving()
    assert obstacle(EXPECTED, document) is None
    _service(document)["load"] = "masked"
    assert "systemctl unmask gpuwright-llm.service" in (obstacle(EXPECTED, document) or "")


@pytest.mark.parametrize(
    "user",
    [{"uid": 0, "shell": "/usr/sbin/nologin"}, {"uid": 1000, "shell": "/bin/bash"}],
)
def test_user_that_is_root_or_logs_in_is_an_obstacle(user: dict[str, Any]) -> None:
    document = _serving()
    document["ours"]["user"] |= user
    assert "user gpuwright" in (obstacle(EXPECTED, document) or "")


@pytest.mark.parametrize("path", [KEY_FILE, EXPECTED.unit_path, EXPECTED.record_path])
def test_link_in_the_place_of_a_file_of_ours_is_an_obstacle(path: str) -> None:
    document = _serving()
    _files(document)[path]["type"] = "link"
    assert f"{path} is a link" in (obstacle(EXPECTED, document) or "")


def test_key_that_cannot_be_used_is_an_obstacle_and_never_replaced() -> None:
    document = _serving()
    _files(document)[KEY_FILE]["unusable"] = ["LLAMA_API_KEY"]
    assert "LLAMA_API_KEY" in (obstacle(EXPECTED, document) or "")


def test_drop_ins_are_named_and_left_alone() -> None:
    document = _serving()
    everywhere = "/run/systemd/system/service.d/zzz.conf"
    _service(document)["drop_ins"] = [everywhere]
    assert remarks(EXPECTED, document) == ()
    own = "/etc/systemd/system/gpuwright-llm.service.d/override.conf"
    _service(document)["drop_ins"] = [everywhere, own]
    (line,) = remarks(EXPECTED, document)
    assert "override.conf" in line
    assert changes(EXPECTED, document) == Changes()


def test_directory_that_the_operator_named_is_left_as_it_is() -> None:
    moved = replace(EXPECTED, layout=Layout(model_store="/srv/models"))
    document = _serving()
    files = document["ours"]["files"]
    assert Directory(path="/srv/models", kept=True) in changes(moved, document).directories
    files["/srv/models"] = _file(type="dir", mode="0750", owner="root")
    assert changes(moved, document).directories == ()


def test_record_holds_no_figure_that_moves_by_itself() -> None:
    record = json.loads(EXPECTED.record)
    assert "memory" not in record
    assert "reasons" not in record
    assert record["files"] == {FILE.path: FILE.sha256}
    assert record["beside"] == {BESIDE.id: {FILE.path: FILE.sha256}}


def test_every_checkpoint_that_differs_is_named() -> None:
    def change(document: dict[str, Any]) -> None:
        for path in (MODEL, DRAFTER):
            _files(document).pop(path)

    wrong = ((PLAN.checkpoint, MODEL), (BESIDE.id, DRAFTER))
    said = "; ".join(f"fetch {name}: {path} is missing" for name, path in wrong)
    assert _changed(change).fetch == said


def test_service_off_its_gpus_is_not_serving() -> None:
    gpu = PlannedGpu(uuid="GPU-1", index=0, name="card", compute_capability="8.6")
    on_gpu = replace(EXPECTED, plan=replace(PLAN, gpus=(gpu,)))
    document = _serving()
    document["ours"]["files"][on_gpu.record_path] = _file(on_gpu.record)
    device = {"uuid": "GPU-1", "processes": [{"pid": 42}]}
    document["gpus"]["devices"] = [device]
    assert changes(on_gpu, document) == Changes()
    device["processes"] = [{"pid": 43}]
    document["virtualization"] = "lxc"
    assert changes(on_gpu, document) == Changes()
    document["virtualization"] = "kvm"
    assert _named(changes(on_gpu, document)) == RESTARTED


def test_an_environment_without_its_python_is_installed_anew() -> None:
    installed = replace(EXPECTED, installed=True)
    document = _serving()
    assert (
        changes(installed, document).build
        == f"install llama.cpp b1: {ENGINE}/bin/python is missing"
    )
    document["ours"]["files"][f"{ENGINE}/bin/python"] = _file(type="link")
    assert changes(installed, document).build is None


def test_an_environment_that_is_not_what_was_installed_is_installed_anew() -> None:
    installed = replace(EXPECTED, installed=True)
    document = _serving()
    document["ours"]["files"][f"{ENGINE}/bin/python"] = _file(type="link")
    document["ours"]["altered"] = {"/opt/gpuwright/engines/other": "another's"}
    assert changes(installed, document).build is None
    document["ours"]["altered"][ENGINE] = f"{ENGINE}/lib/x.py was changed"
    assert (
        changes(installed, document).build == f"install llama.cpp b1: {ENGINE}/lib/x.py was changed"
    )
