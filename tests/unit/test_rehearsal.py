"""Whole pyinfra runs on rigs that do not exist: what people read when a node says odd things."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuwright.carry import NEEDED
from gpuwright.host import Host
from gpuwright.load import load_matrix
from gpuwright.plan import Plan
from gpuwright.refusals import HostError
from gpuwright.selection import decide
from gpuwright.want import Want
from inventory import rehearsal
from inventory.rigs import fake_rig
from tools import golden

ROOT = Path(__file__).resolve().parents[2]
INVENTORY = "inventory/rehearsal.py"
MATRIX = load_matrix()
EXPLAIN, SERVE = "deploys/explain.py", "deploys/serve.py"
MODULE = (sys.executable, "-m", "pyinfra")
SCRIPT = (str(Path(sys.executable).with_name("pyinfra")),)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class Done:
    """A finished run: its status, its JSON where it printed any, the lines for people."""

    def __init__(self, finished: subprocess.CompletedProcess[str]) -> None:
        self.status = finished.returncode
        self.text = _COLOUR.sub("", finished.stdout + finished.stderr)
        self.json: dict[str, Any] | None = None
        if finished.stdout.strip():
            self.json = json.loads(finished.stdout)

    def lines_of(self, host: str) -> list[str]:
        """Lines that say something is wrong with a host."""
        return [line for line in self.text.splitlines() if f"{host}: " in line]


def pyinfra(
    *arguments: str, launcher: tuple[str, ...] = MODULE, cwd: Path = ROOT, **variables: str
) -> Done:
    environment = os.environ | {
        "PYINFRA_FAKE_DELAY": "0",
        "PYINFRA_FAKE_DELAY_JITTER": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return Done(
        subprocess.run(
            [*launcher, "--json", *arguments],
            cwd=cwd,
            env=environment | variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
    )


def fake(name: str, probe: str, **data: Any) -> tuple[str, dict[str, Any]]:
    """A rig that answers the probe with a text, and says that its downloads can be had."""
    answers = {"gpuwright: probe": probe, "gpuwright: fetch": '{"ok": true, "from": {}}'}
    values = {"gpuwright": {"model": "auto"}, "fake_responses": answers, "fake_delay": 0}
    return f"@fake/{name}", values | data


def cpu_rig(name: str = "cpu", **data: Any) -> tuple[str, dict[str, Any]]:
    return fake(name, json.dumps(golden.document("cpu-debian12")), **data)


def written(folder: Path, *hosts: tuple[str, dict[str, Any]]) -> str:
    path = folder / "hosts.py"
    path.write_text(f"hosts = {list(hosts)!r}\n")
    return str(path)


def applicable() -> dict[str, bool]:
    """Each rig of the rehearsal, and whether the core calls its plan one that can be applied."""
    found = {}
    for name, data in rehearsal.hosts:
        node = Host.from_document(golden.document(name.removeprefix("@fake/")))
        result = decide(node, Want.from_data(data["gpuwright"]), load_matrix())
        found[name] = isinstance(result, Plan) and result.not_applicable is None
    return found


@pytest.mark.parametrize("launcher", [MODULE, SCRIPT], ids=["module", "script"])
def test_explain_plans_every_rig_without_an_operation(launcher: tuple[str, ...]) -> None:
    done = pyinfra(INVENTORY, EXPLAIN, launcher=launcher)
    assert done.status == 0, done.text
    assert done.json == {"plan": [], "results": None}
    for name, _ in rehearsal.hosts:
        assert re.search(rf"\[{re.escape(name)}\] +llm: ", done.text), done.text


@pytest.mark.parametrize("launcher", [MODULE, SCRIPT], ids=["module", "script"])
def test_deploy_runs_from_another_directory(tmp_path: Path, launcher: tuple[str, ...]) -> None:
    # Packages of the same names are installed, as any could be.
    for room in ("facts", "deploys", "gpuwright"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").write_text("raise RuntimeError('not ours')\n")
    words = ("--chdir", str(ROOT), INVENTORY, EXPLAIN)
    done = pyinfra(*words, launcher=launcher, cwd=Path("/"), PYTHONPATH=str(tmp_path))
    assert done.status == 0, done.text


def test_serve_names_every_rig_that_cannot_be_applied_and_no_other() -> None:
    rigs = applicable()
    assert set(rigs.values()) == {True, False}
    done = pyinfra("-y", INVENTORY, SERVE)
    assert done.status != 0
    assert "Traceback" not in done.text
    assert "so no host was touched" in done.text
    for name, can in rigs.items():
        assert len(done.lines_of(name)) == (0 if can else 1), done.text


def test_serve_pretends_to_have_done_nothing_on_a_rig_that_does_not_exist() -> None:
    done = pyinfra("-y", "--limit", "@fake/cpu-debian12", INVENTORY, SERVE)
    assert done.status != 0
    assert "Traceback" not in done.text
    assert "cpu-debian12 does not exist: this is a rehearsal" in done.text
    assert "Success" not in done.text


ODD = {
    "banner": ("Welcome to box\nhello", "the node gave no answer; it said: hello"),
    "truncated": ('{"schema": 2, "gpus": {"sta', "the node gave no answer; it said: {"),
    "silent": ("", "the probe gave no answer"),
    "list": ("[1, 2]", "the node gave no answer; it said: [1, 2]"),
    "bare": (json.dumps({"ok": False, "error": NEEDED, "hint": "install python3"}), NEEDED),
    "old": (json.dumps({"ok": False, "error": f"{NEEDED}, found 2.7"}), f"{NEEDED}, found 2.7"),
    "newer": ('{"schema": 3}', "schema: needs 2, found 3"),
    "crooked": (
        '{"schema": 2, "gpus": 7, "ours": {}}',
        "gpus: needs a mapping, found a whole number",
    ),
}


@pytest.mark.parametrize("deploy", [EXPLAIN, SERVE])
def test_odd_answer_of_a_probe_is_one_clear_line(tmp_path: Path, deploy: str) -> None:
    rigs = [fake(name, probe) for name, (probe, _) in ODD.items()]
    done = pyinfra("-y", written(tmp_path, cpu_rig(), *rigs), deploy)
    assert done.status != 0
    assert "Traceback" not in done.text
    for name, (_, sentence) in ODD.items():
        (line,) = done.lines_of(f"@fake/{name}")
        assert sentence in line
    assert done.lines_of("@fake/cpu") == []


def test_a_node_whose_python_does_not_run_is_explained_and_not_served_on(tmp_path: Path) -> None:
    seen = golden.document("cpu-debian12") | {"by": "shell"}
    hosts = written(tmp_path, fake("mute", json.dumps(seen)))
    assert pyinfra("-y", hosts, EXPLAIN).status == 0
    done = pyinfra("-y", hosts, SERVE)
    assert done.status != 0
    (line,) = done.lines_of("@fake/mute")
    assert f"{NEEDED}, found one that does not run" in line


def test_odd_answer_of_the_only_host_is_one_clear_line(tmp_path: Path) -> None:
    done = pyinfra("-y", written(tmp_path, fake("odd", "hello")), SERVE)
    assert done.status != 0
    assert "Traceback" not in done.text
    (line,) = done.lines_of("@fake/odd")
    assert line.endswith("the node gave no answer; it said: hello (nothing was touched)")


def test_probe_that_fails_is_one_clear_line(tmp_path: Path) -> None:
    name, data = cpu_rig()
    data["fake_responses"] = {"gpuwright: probe": {"success": False, "stderr": "sudo: no"}}
    done = pyinfra("-y", written(tmp_path, (name, data)), SERVE)
    assert done.status != 0
    assert "Traceback" not in done.text
    assert len(done.lines_of(name)) == 1


def test_dry_run_lists_what_would_change_and_no_secret(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("hf_a_very_secret_token\n")
    want = {"model": "auto", "hub_token_file": str(token), "proxy": "http://proxy:3128"}
    hosts = written(tmp_path, cpu_rig(gpuwright=want))
    done = pyinfra("--dry", hosts, SERVE)
    assert done.status == 0, done.text
    assert done.json is not None
    changing = [op["name"] for op in done.json["plan"] if op["hosts_with_change"] == ["@fake/cpu"]]
    # What is yet to be made has no mode to put back, and a node alone shares no build.
    others = (
        "Engine and model are root's alone to change",
        "The engine is handed over to equal nodes",
        "The engine is taken over from an equal node",
    )
    assert changing == [op["name"] for op in done.json["plan"] if op["name"] not in others]
    assert "The API key exists, for root alone" in changing
    assert changing[-1] == "The model answers"
    assert "hf_a_very_secret_token" not in done.text


def test_word_of_verify_is_checked(tmp_path: Path) -> None:
    done = pyinfra("--dry", written(tmp_path, cpu_rig()), SERVE, "--data", "verify=ful")
    assert done.status != 0
    (line,) = done.lines_of("@fake/cpu")
    assert "verify: 'ful', needed quick or full" in line


@pytest.mark.parametrize(
    ("word", "said"),
    [
        (None, "gone: not reached"),
        ("false", "gone: not reached"),
        ("ture", "allow_unreachable: 'ture', needed true or false"),
        ("yes", "allow_unreachable: 'yes', needed true or false"),
        ("true", None),
    ],
)
def test_run_goes_on_without_an_unreached_host_for_the_word_true_alone(
    tmp_path: Path, word: str | None, said: str | None
) -> None:
    gone = ("gone", {"ssh_hostname": "127.0.0.1", "ssh_port": 9, "gpuwright": {"model": "auto"}})
    options = ["--data", f"allow_unreachable={word}"] if word else []
    done = pyinfra("--dry", written(tmp_path, cpu_rig(), gone), SERVE, *options)
    assert "Traceback" not in done.text
    planned = done.json is not None and bool(done.json["plan"])
    assert planned == (said is None), done.text
    assert said is None or said in done.text


def test_two_entries_of_one_machine_are_refused_by_both_names(tmp_path: Path) -> None:
    def rig(name: str, port: int) -> tuple[str, dict[str, Any]]:
        host, data = cpu_rig(name, gpuwright={"model": "auto", "service": name, "port": port})
        answer = json.loads(data["fake_responses"]["gpuwright: probe"])
        answer["os"]["identity"] = "0123456789abcdef"
        data["fake_responses"]["gpuwright: probe"] = json.dumps(answer)
        return host, data

    done = pyinfra("--dry", written(tmp_path, rig("one", 8080), rig("two", 8081)), SERVE)
    assert done.status != 0
    assert "@fake/one: is the same machine as @fake/two" in done.text
    assert "@fake/two: is the same machine as @fake/one" in done.text


def test_names_of_a_want_are_checked_before_its_node_is_asked(tmp_path: Path) -> None:
    hosts = fake("silent", "hello", gpuwright={"engine": "vlm"})
    (line,) = pyinfra("-y", written(tmp_path, hosts), SERVE).lines_of("@fake/silent")
    assert "engine: 'vlm' is unknown; nearest: vllm" in line


def test_wants_of_all_hosts_are_checked_before_any_is_planned(tmp_path: Path) -> None:
    hosts = (
        cpu_rig("good"),
        cpu_rig("misspelt", gpuwright={"modle": "auto"}),
        cpu_rig("nothing", gpuwright=None),
        cpu_rig("unknown", gpuwright={"model": "SmolLM2-135M-Instuct"}),
    )
    done = pyinfra("-y", written(tmp_path, *hosts), SERVE)
    assert done.status != 0
    assert "3 hosts of 4" in done.text
    assert [len(done.lines_of(name)) for name, _ in hosts] == [0, 1, 1, 1]
    for (name, _), (wrong, near) in zip(
        (hosts[1], hosts[3]),
        (("modle", "model"), ("SmolLM2-135M-Instuct", "smollm2-135m-instruct")),
        strict=True,
    ):
        (line,) = done.lines_of(name)
        assert wrong in line
        assert near in line.replace(wrong, "")


def test_a_run_without_a_host_is_refused_and_says_where_to_write_one(tmp_path: Path) -> None:
    done = pyinfra("-y", written(tmp_path), SERVE)
    assert done.status != 0
    assert "the inventory names no host: write one into its `hosts`" in done.text
    assert "Traceback" not in done.text


def test_a_run_whose_limits_leave_no_host_is_refused() -> None:
    done = pyinfra("-y", INVENTORY, SERVE, "--limit", "nobody")
    assert done.status != 0
    assert "no host of the inventory is left by --limit and --exclude" in done.text


def test_documents_and_sketches_answer_alike_as_rigs(tmp_path):
    sketch = tmp_path / "tower.yaml"
    sketch.write_text("gpus: [RTX 3090]")
    for rig in ("4090", "gb10", sketch):
        name, data = fake_rig(rig, {"model": "Qwen3.6-27B"})
        assert name == f"@fake/{Path(rig).stem}"
        document = json.loads(data["fake_responses"]["gpuwright: probe"])
        decision = decide(Host.from_document(document), Want.from_data(data["gpuwright"]), MATRIX)
        assert isinstance(decision, Plan), decision


def test_a_run_explains_a_sketched_rig_under_its_own_name(tmp_path):
    path = tmp_path / "hosts.py"
    path.write_text(
        "from inventory.rigs import fake_rig\n"
        "hosts = [fake_rig('2x-p40', {'model': 'Qwen3.6-27B'}, name='old')]\n"
    )
    done = pyinfra(str(path), EXPLAIN, "--dry", "-y")
    assert done.status == 0, done.text
    assert "on GPU 0 (Tesla P40), GPU 1 (Tesla P40)" in done.text


def test_a_rig_that_nobody_wrote_down_is_said_to_be_missing():
    with pytest.raises(HostError, match="No such file"):
        fake_rig("nowhere.yaml", {})
