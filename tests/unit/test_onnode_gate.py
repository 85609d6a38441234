"""The gate against servers that fail in every way they know, and a systemd of scripts."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.nvml import rigs
from tests.unit.onnode_rig import Exchange, listen, put, run, site

KEY = "0123456789abcdef"
UNIT = "gpuwright-llm.service"
STATE = {
    "LoadState": "loaded",
    "ActiveState": "active",
    "SubState": "running",
    "UnitFileState": "enabled",
    "MainPID": "77",
    "NeedDaemonReload": "no",
    "Result": "success",
    "NRestarts": "0",
    "ControlGroup": f"/system.slice/{UNIT}",
}


class Node:
    """A systemd and a journal made of scripts, and the spec of the gate in front of them."""

    def __init__(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path
        self.root = put(tmp_path / "node", {"/etc/llm.env": f"LLAMA_API_KEY={KEY}\n"})
        put(self.root, {f"/sys/fs/cgroup/system.slice/{UNIT}/cgroup.procs": "77\n"})
        self.tools = tmp_path / "tools"
        self.tools.mkdir()
        self.says()
        self.script("journalctl", f"for i in $(seq 50); do echo line $i key {KEY}; done")
        self.environment: dict[str, str] = {}

    def script(self, name: str, body: str) -> None:
        (self.tools / name).write_text(f"#!/bin/sh\n{body}\n")
        (self.tools / name).chmod(0o755)

    def says(self, **changed: str) -> None:
        text = "\n".join(f"{k}={v}" for k, v in {**STATE, **changed}.items())
        self.script("systemctl", f"cat <<'END'\n{text}\nEND")

    def gate(
        self, port: int, *, listening: str = UNIT, pid: int | None = 77, **more: Any
    ) -> dict[str, Any]:
        """The gate's answer where `port` is held by the unit `listening`."""
        listen(self.root, port, listening, pid=pid)
        spec = {
            "unit": UNIT,
            "bind": "127.0.0.1",
            "port": port,
            "served_model_name": "smol",
            "env_file": "/etc/llm.env",
            "deadline_seconds": 2,
            "patience_seconds": 0.3,
            "prompt": "Say hello.",
            "gpu_uuids": [],
            "root": str(self.root),
            **more,
        }
        path = f"{self.tools}:{os.environ['PATH']}"
        answer, finished = run("gate", spec, environment={"PATH": path, **self.environment})
        assert KEY not in finished.stdout + finished.stderr
        assert finished.returncode == (0 if answer["ok"] else 1)
        return answer


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def serving(
    *, name: str = "smol", said: object = "Hello.", status: int = 200, key: str = KEY
) -> Callable[..., None]:
    """A server as llama.cpp and vLLM answer, with the key of the environment file."""

    def answer(exchange: Exchange) -> None:
        if exchange.path == "/health":
            exchange.reply_json({"status": "ok"})
        elif exchange.headers.get("Authorization") != f"Bearer {key}":
            exchange.reply_json({"error": "no"}, 401)
        elif exchange.path == "/v1/models":
            exchange.reply_json({"data": [{"id": name}]})
        else:
            body = json.loads(exchange.rfile.read(int(exchange.headers["Content-Length"])))
            if not body:
                exchange.reply_json({"error": "no messages"}, 400)
                return
            assert body["messages"] == [{"role": "user", "content": "Say hello."}]
            message = {"role": "assistant", "content": said}
            answer = {"choices": [{"message": message}], "usage": {"completion_tokens": 3}}
            exchange.reply_json(answer, status)

    return answer


def test_a_model_that_answers_passes_with_its_words(node: Node):
    with site(serving()) as server:
        answer = node.gate(server.port)
    assert answer["ok"] is True
    assert (answer["completion"]["text"], answer["completion"]["tokens"]) == ("Hello.", 3)
    assert (answer["gpus"], answer["restarts"]) == ([], 0)


def test_waits_while_the_model_is_loaded(node: Node):
    began = time.monotonic()
    ready = serving()

    def loading(exchange: Exchange) -> None:
        if time.monotonic() - began < 0.8:
            exchange.reply_json({"error": {"message": "Loading model"}}, 503)
        else:
            ready(exchange)

    with site(loading) as server:
        assert node.gate(server.port, deadline_seconds=20)["ok"] is True


def test_a_model_that_loads_for_ever_is_given_up_at_the_deadline(node: Node):
    def loading(exchange: Exchange) -> None:
        exchange.reply_json({}, 503)

    with site(loading) as server:
        answer = node.gate(server.port, deadline_seconds=1)
    assert answer["error"] == f"{UNIT} did not answer within 1 s: /health answers 503"
    assert len(answer["journal"]) == 30
    assert answer["journal"][-1] == "line 50 key ***"


@pytest.mark.parametrize(("comm", "limit"), [("nvcc", 2), ("vllm", 1)])
def test_compilers_at_work_put_the_deadline_off_and_nothing_else_does(node: Node, comm, limit):
    """As far as they may, and not for ever."""

    def loading(exchange: Exchange) -> None:
        exchange.reply_json({}, 503)

    group = f"/sys/fs/cgroup/system.slice/{UNIT}/cgroup.procs"
    put(node.root, {group: "77\n78\n", "/proc/78/comm": f"{comm}\n"})
    with site(loading) as server:
        answer = node.gate(server.port, deadline_seconds=1, compiler_seconds=1)
    assert answer["error"] == f"{UNIT} did not answer within {limit} s: /health answers 503"


def test_nothing_on_the_port_is_said(node: Node):
    assert "nothing listens on 127.0.0.1:1" in node.gate(1, deadline_seconds=0.5)["error"]
    with site(serving()) as server:
        spec = {"bind": "127.0.0.2", "deadline_seconds": 0.5}
        assert "nothing listens on 127.0.0.2" in node.gate(server.port, **spec)["error"]
        assert server.seen == []


def test_a_failed_unit_ends_the_wait_at_once(node: Node):
    node.says(ActiveState="failed", Result="exit-code")
    answer = node.gate(1, deadline_seconds=50)
    assert "failed (result exit-code)" in answer["error"]
    assert answer["journal"]


def test_an_unknown_or_stopped_unit_is_said(node: Node):
    node.says(LoadState="not-found")
    assert "is not known to systemd" in node.gate(1, deadline_seconds=50)["error"]
    node.says(ActiveState="inactive")
    assert "is not running" in node.gate(1, deadline_seconds=50)["error"]


def test_a_unit_that_starts_over_and_over_is_given_up(node: Node):
    counter = node.tmp_path / "count"
    counter.write_text("5")
    words = "\n".join(f"{k}={v}" for k, v in STATE.items() if k != "NRestarts")
    node.script(
        "systemctl",
        f"n=$(cat {counter}); echo $((n+1)) > {counter}; cat <<END\n{words}\nNRestarts=$n\nEND",
    )
    answer = node.gate(1, deadline_seconds=50)
    assert "starts over and over: 3 restarts" in answer["error"]


def test_a_key_that_the_server_does_not_accept_is_said_early(node: Node):
    with site(serving(key="another-key")) as server:
        answer = node.gate(server.port, deadline_seconds=50)
    assert answer["error"] == f"{UNIT} does not accept the key in /etc/llm.env"


def test_another_model_is_named(node: Node):
    with site(serving(name="other")) as server:
        answer = node.gate(server.port, deadline_seconds=50)
    assert answer["error"] == f"{UNIT} serves other, needed smol"


def test_somebody_else_on_the_port_is_named_and_is_not_asked(node: Node):
    with site(serving()) as server:
        answer = node.gate(server.port, listening="old.service", deadline_seconds=50)
        assert server.seen == [], "whoever took the port must not be given the key"
    assert f"is held by llama-server (pid 77, old.service), not by {UNIT}" in answer["error"]


def test_nobody_is_asked_while_who_listens_cannot_be_told(node: Node):
    with site(serving()) as server:
        answer = node.gate(server.port, pid=None, deadline_seconds=50)
        assert server.seen == []
    assert answer["error"] == f"who listens on 127.0.0.1:{server.port} cannot be told"


def test_the_key_is_sent_when_it_is_needed_and_not_before(node: Node):
    with site(serving()) as server:
        assert node.gate(server.port)["ok"] is True
        sent = [(path, headers.get("Authorization")) for _, path, headers in server.seen]
    assert sent[0] == ("/health", None)
    # With the key to be answered, and without it to be refused.
    with_key = [path for path, key in sent if key == f"Bearer {KEY}"]
    assert with_key == ["/v1/models", "/v1/chat/completions"]
    assert {path for path, key in sent if key is None} == {"/health", "/v1/models"}


def test_a_service_that_answers_without_a_key_does_not_pass(node: Node):
    def careless(exchange: Exchange) -> None:
        exchange.headers.replace_header("Authorization", f"Bearer {KEY}") if (
            "Authorization" in exchange.headers
        ) else exchange.headers.add_header("Authorization", f"Bearer {KEY}")
        serving()(exchange)

    with site(careless) as server:
        answer = node.gate(server.port)
    assert answer["ok"] is False
    assert "answers without a key" in answer["error"]


def test_a_service_that_names_its_model_to_everybody_and_answers_none_of_them_passes(node: Node):
    def naming(exchange: Exchange) -> None:
        if exchange.path == "/v1/models":
            exchange.reply_json({"data": [{"id": "smol"}]})
        else:
            serving()(exchange)

    with site(naming) as server:
        assert node.gate(server.port)["ok"] is True


def test_the_first_of_several_keys_is_sent_and_none_is_shown(node: Node):
    second = "second-of-two-keys"
    put(node.root, {"/etc/llm.env": f"LLAMA_API_KEY='{KEY},{second}'\r\n"})
    node.script("journalctl", f"echo {KEY} {second}")
    with site(serving()) as server:
        assert node.gate(server.port)["ok"] is True
    assert node.gate(1, deadline_seconds=0.2)["journal"] == ["*** ***"]


@pytest.mark.parametrize(
    ("handler", "word"),
    [
        (serving(said=""), "answers a prompt with nothing"),
        (serving(said=None), "answers a prompt with nothing"),
        (serving(status=500), "answers a prompt with 500"),
    ],
)
def test_a_model_that_says_nothing_does_not_pass(
    node: Node, handler: Callable[..., None], word: str
):
    with site(handler) as server:
        assert word in node.gate(server.port)["error"]


def test_a_server_that_accepts_and_never_answers_ends_at_the_deadline(node: Node):
    def hanging(exchange: Exchange) -> None:
        time.sleep(7)

    with site(hanging) as server:
        answer = node.gate(server.port, deadline_seconds=1)
    assert "did not answer within" in answer["error"]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rigs.build(tmp_path_factory.mktemp("nvml"))


def on_gpus(node: Node, library: Path, *lines: str) -> None:
    (node.tmp_path / "scenario").write_text(rigs.scenario(rigs.card(0), rigs.card(1), *lines))
    node.environment = {
        "LD_LIBRARY_PATH": str(library),
        "NVML_SCENARIO": str(node.tmp_path / "scenario"),
    }


def test_processes_on_every_planned_gpu_pass(node: Node, library: Path):
    on_gpus(node, library, "process 0 77 100", "process 1 77 100", "process 1 5 1")
    with site(serving()) as server:
        answer = node.gate(server.port, gpu_uuids=[rigs.uuid(0), rigs.uuid(1)])
    assert answer["gpus"] == [rigs.uuid(0), rigs.uuid(1)]


def test_a_service_that_fell_back_to_the_cpu_does_not_pass(node: Node, library: Path):
    on_gpus(node, library, "process 0 77 100", "process 1 5 1")
    with site(serving()) as server:
        answer = node.gate(server.port, gpu_uuids=[rigs.uuid(0), rigs.uuid(1)])
    assert f"has no process on {rigs.uuid(1)}: it runs on the CPU" in answer["error"]


def test_in_a_container_an_open_card_has_to_do(node: Node, library: Path):
    put(node.root, {"/run/systemd/container": "lxc", "/proc/77/comm": "llama-server"})
    on_gpus(node, library, "process 0 123456 100")
    with site(serving()) as server:
        answer = node.gate(server.port, gpu_uuids=[rigs.uuid(0)])
        assert "runs on the CPU" in answer["error"]
        (node.root / "proc/77/fd/9").symlink_to("/dev/nvidia0")
        assert node.gate(server.port, gpu_uuids=[rigs.uuid(0)])["ok"] is True


UNIT_FILE, RECORD_FILE = f"/etc/systemd/system/{UNIT}", "/var/lib/gpuwright/plans/llm.json"
RECORD = {"bind": "127.0.0.1", "served_model_name": "old", "engine": "llama.cpp", "release": "b1"}


def replaced(node: Node) -> list[Path]:
    """The unit's file and record, with what was there before beside them."""
    put(node.root, {UNIT_FILE: "new", RECORD_FILE: "{}"})
    before = json.dumps(RECORD)
    put(node.root, {f"{UNIT_FILE}.previous": "old", f"{RECORD_FILE}.previous": before})
    return [Path(f"{node.root}{path}") for path in (UNIT_FILE, RECORD_FILE)]


def starts_only_what_was_before(node: Node) -> None:
    states = [
        "\n".join(f"{key}={value}" for key, value in {**STATE, **changed}.items())
        for changed in ({"ActiveState": "failed", "Result": "exit-code"}, {})
    ]
    mark, said = node.tmp_path / "restarted", node.tmp_path / "commands"
    node.script(
        "systemctl",
        f'test "$1" = show || echo "$@" >>{said}; test "$1" = restart && touch {mark}\n'
        f"if test -e {mark}; then echo '{states[1]}'; else echo '{states[0]}'; fi",
    )


def test_what_served_before_serves_again_when_the_new_one_does_not_start(node: Node):
    unit, record = replaced(node)
    starts_only_what_was_before(node)
    with site(serving(name="old")) as found:
        answer = node.gate(found.port, kept=[UNIT_FILE, RECORD_FILE])
    assert not answer["ok"]
    assert "failed (result exit-code)" in answer["error"]
    assert "what served before serves again: old on llama.cpp b1" in answer["error"]
    assert answer["journal"]
    assert (unit.read_text(), json.loads(record.read_text())) == ("old", RECORD)
    assert not list(node.root.rglob("*.previous"))
    assert (node.tmp_path / "commands").read_text().splitlines() == [
        "daemon-reload",
        f"reset-failed {UNIT}",
        f"restart {UNIT}",
    ]


def test_a_plan_before_that_does_not_answer_either_is_said_too(node: Node):
    replaced(node)
    starts_only_what_was_before(node)
    with site(serving(name="neither")) as found:
        answer = node.gate(found.port, kept=[UNIT_FILE, RECORD_FILE])
    assert "was put back and does not answer" in answer["error"]
    assert "serves neither, needed old" in answer["error"]


def test_what_is_kept_is_let_go_when_the_new_one_has_answered(node: Node):
    unit, _ = replaced(node)
    with site(serving()) as found:
        assert node.gate(found.port, kept=[UNIT_FILE, RECORD_FILE])["ok"]
    assert unit.read_text() == "new"
    assert not list(node.root.rglob("*.previous"))


def test_nothing_is_put_back_where_nothing_was_kept(node: Node):
    starts_only_what_was_before(node)
    with site(serving(name="old")) as found:
        answer = node.gate(found.port, kept=[UNIT_FILE, RECORD_FILE])
    assert "before" not in answer["error"]
    assert not (node.tmp_path / "commands").exists()
