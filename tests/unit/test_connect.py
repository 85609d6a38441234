"""`gpuwright connect`: words of nodes and operators are checked or quoted, keys travel in pipes."""

import json
import os
import shlex
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwright.cli import main
from gpuwright.connection import Connection, Served

RECORD: dict[str, Any] = {
    "schema": 2,
    "service": "llm",
    "served_model_name": "SmolLM2-135M-Instruct",
    "checkpoint": "smollm2-135m-instruct-q4_1",
    "engine": "llama.cpp",
    "release": "b11434",
    "bind": "127.0.0.1",
    "port": 8080,
    "environment_file": "/etc/gpuwright/services/llm.env",
    "secret_names": ["LLAMA_API_KEY"],
}
KEY = "k3y-0123456789abcdef0123456789abcdef"

# What a node is for these tests: it answers `cat` with the record, runs nothing else but `sh`.
SSH = """\
#!{python}
import json, os, subprocess, sys, time
here = os.path.dirname(sys.argv[0])
with open(here + "/calls", "a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
words = sys.argv[1:]
if "-G" in words:
    print("user me\\nhostname " + open(here + "/hostname").read())
elif "-L" in words:
    print("the tunnel stands", file=sys.stderr, flush=True)
    time.sleep(60)
elif words[-1].startswith("cat "):
    status, out, err = json.load(open(here + "/answer"))
    sys.stdout.write(out)
    sys.stderr.write(err)
    sys.exit(status)
else:
    sys.exit(subprocess.call(words[-1].replace("/etc/gpuwright", here), shell=True))
"""
CURL = """\
#!{python}
import json, os, sys
here = os.path.dirname(sys.argv[0])
json.dump([sys.argv[1:], sys.stdin.read()], open(here + "/asked", "w"))
"""


def connection(host: str = "box", ssh: tuple[str, ...] = ("ssh",), **record: Any) -> Connection:
    served = Served.from_record(RECORD | record)
    reachable = None if served.loopback else served.bind
    return Connection(host=host, ssh=ssh, served=served, local_port=8080, hostname=reachable)


class Bench:
    """A folder first on PATH whose `ssh` is ours, and what was asked of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, program in (("ssh", SSH), ("curl", CURL)):
            path = folder / name
            path.write_text(program.format(python=sys.executable))
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
        (folder / "services").mkdir()
        (folder / "services" / "llm.env").write_text(f"A=b\nLLAMA_API_KEY={KEY}\n")
        (folder / "hostname").write_text("10.0.0.5\n")
        self.answers(json.dumps(RECORD))

    def answers(self, out: str, err: str = "", status: int = 0) -> None:
        (self.folder / "answer").write_text(json.dumps([status, out, err]))

    def serves(self, **record: Any) -> None:
        self.answers(json.dumps(RECORD | record))

    @property
    def calls(self) -> list[list[str]]:
        path = self.folder / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def asked(self, line: str) -> tuple[list[str], str]:
        """Run a shell line; what its curl was called with and read."""
        subprocess.run(["sh", "-c", line], check=True, timeout=30)
        words, read = json.loads((self.folder / "asked").read_text())
        return words, read


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return Bench(tmp_path)


Shown = Callable[..., dict[str, Any]]


@pytest.fixture
def shown(bench: Bench, capsys: Any) -> Shown:
    def shown(*arguments: str) -> dict[str, Any]:
        assert main(["connect", *arguments, "--json"]) == 0
        data: dict[str, Any] = json.loads(capsys.readouterr().out)
        return data

    return shown


@pytest.mark.parametrize(
    ("bind", "endpoint", "target"),
    [
        ("127.0.0.1", "http://127.0.0.1:8080/v1", "127.0.0.1:8080:127.0.0.1:8080"),
        ("127.0.0.2", "http://127.0.0.1:8080/v1", "127.0.0.1:8080:127.0.0.2:8080"),
        ("::1", "http://127.0.0.1:8080/v1", "127.0.0.1:8080:[::1]:8080"),
        ("10.0.0.7", "http://10.0.0.7:8080/v1", None),
        ("2001:db8::7", "http://[2001:db8::7]:8080/v1", None),
        ("fe80::7%eth0", "http://[fe80::7%25eth0]:8080/v1", None),
    ],
)
def test_service_on_loopback_needs_a_tunnel_and_another_does_not(
    bind: str, endpoint: str, target: str | None
) -> None:
    found = connection(bind=bind)
    assert found.endpoint == endpoint
    assert (found.tunnel and found.tunnel[found.tunnel.index("-L") + 1]) == target


@pytest.mark.parametrize(
    ("bind", "name", "endpoint"),
    [
        ("0.0.0.0", "10.0.0.5", "http://10.0.0.5:8080/v1"),
        ("::", "2001:db8::5", "http://[2001:db8::5]:8080/v1"),
        ("::", "box.lan", "http://box.lan:8080/v1"),
    ],
)
def test_service_on_every_address_is_reached_where_ssh_reaches_the_node(
    bench: Bench, shown: Shown, bind: str, name: str, endpoint: str
) -> None:
    bench.serves(bind=bind)
    (bench.folder / "hostname").write_text(f"{name}\n")
    found = shown("-p", "2222", "alias")
    assert (found["endpoint"], found["tunnel"]) == (endpoint, None)
    assert bench.calls[-1] == ["-p", "2222", "-G", "--", "alias"]


def test_options_of_ssh_are_passed_on_in_their_order_everywhere(bench: Bench, shown: Shown) -> None:
    options = [
        "-o",
        "User=a b",
        "-i",
        "~/key file",
        "-J",
        "jump",
        "-p",
        "22",
        "-F",
        "x",
        "-l",
        "me",
    ]
    found = shown(*options, "root@box")
    assert bench.calls[0][: len(options)] == options
    assert bench.calls[0][-2:] == ["root@box", "cat /var/lib/gpuwright/plans/llm.json"]
    assert found["tunnel"][: len(options) + 1] == ["ssh", *options]
    assert found["key_header"][: len(options) + 1] == ["ssh", *options]


def test_curl_line_sends_the_key_through_a_pipe_and_in_no_argument(
    bench: Bench, shown: Shown
) -> None:
    words, read = bench.asked(shown("box")["curl"])
    assert read == f"Authorization: Bearer {KEY}\n"
    assert words[words.index("-H") + 1] == "@-"
    assert words[-1] == "http://127.0.0.1:8080/v1/chat/completions"
    assert json.loads(words[words.index("-d") + 1])["model"] == RECORD["served_model_name"]
    assert KEY not in json.dumps([words, bench.calls])


def test_curl_line_asks_no_proxy(bench: Bench, shown: Shown) -> None:
    words, _ = bench.asked(shown("box")["curl"])
    assert words[words.index("--noproxy") + 1] == "*"


def test_file_that_only_root_may_read_is_read_with_sudo(bench: Bench, shown: Shown) -> None:
    (bench.folder / "services" / "llm.env").unlink()
    sudo = bench.folder / "sudo"
    sudo.write_text('#!/bin/sh\necho "Authorization: Bearer $*"\n')
    sudo.chmod(0o755)
    _, read = bench.asked(shown("box")["curl"])
    assert read.startswith("Authorization: Bearer -n sed -n s/^LLAMA_API_KEY=/")


words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
AS_HEARD = 'ssh() { printf "%s\\0" "$@"; }; curl() { cat; }; '


@given(st.lists(words, max_size=4), words)
@settings(max_examples=60, deadline=None)
def test_every_outside_word_reaches_ssh_as_it_is(options: list[str], host: str) -> None:
    found = connection(host=host, ssh=("ssh", *options))
    assert found.tunnel is not None
    for line, words in (
        (found.curl, found.key_header),
        (shlex.join(found.tunnel), found.tunnel),
    ):
        heard = subprocess.run(["sh", "-c", AS_HEARD + line], capture_output=True, check=True)
        assert heard.stdout.decode().split("\0")[:-1] == list(words[1:])


@pytest.mark.parametrize("host", ["a; touch hit", "$(touch hit)", "`touch hit`", "a\ntouch hit #"])
def test_hostile_host_runs_nothing(bench: Bench, host: str) -> None:
    bench.asked(f"cd {bench.folder}; {connection(host=host).curl}")
    assert bench.calls[-1][-2] == host
    assert not (bench.folder / "hit").exists()


@pytest.mark.parametrize(
    "record",
    [
        {"bind": "everywhere"},
        {"bind": "127.0.0.1; id"},
        {"bind": "fe80::1%a b"},
        {"bind": None},
        {"port": 0},
        {"port": 65536},
        {"port": "8080"},
        {"port": True},
        {"service": "llm\n"},
        {"served_model_name": "x\x1b[2J"},
        {"served_model_name": "$(id)"},
        {"served_model_name": ["x"]},
        {"engine": "a b"},
        {"release": ""},
        {"checkpoint": "x" * 200},
        {"environment_file": "/etc/x; id"},
        {"environment_file": "etc/x"},
        {"environment_file": "/etc/../root/x"},
        {"environment_file": "/etc/-x/.."},
        {"secret_names": []},
        {"secret_names": None},
        {"secret_names": ["KEY=/x/e;s/a"]},
        {"secret_names": [{"a": 1}]},
    ],
)
def test_record_that_no_deploy_writes_is_refused_with_its_key(
    bench: Bench, capsys: Any, record: dict[str, Any]
) -> None:
    bench.serves(**record)
    assert main(["connect", "box"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(
        f"gpuwright: box: /var/lib/gpuwright/plans/llm.json: {next(iter(record))}: "
    )
    assert len(said.err.splitlines()) == 1
    assert "\x1b" not in said.err


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000, '{"port": 1}'])
def test_answer_that_is_no_record_is_refused_in_one_line(
    bench: Bench, capsys: Any, text: str
) -> None:
    bench.answers(text)
    assert main(["connect", "box"]) == 1
    said = capsys.readouterr()
    assert (said.out, len(said.err.splitlines())) == ("", 1)


@pytest.mark.parametrize(
    ("status", "err", "sentence"),
    [
        (255, "hello\nbox: Name or service not known\n", "box: box: Name or service not known"),
        (255, "", "box: ssh failed"),
        (1, "cat: x: No such file\n", "no record of a service llm (cat: x: No such file)"),
        (1, "\x1b[2Jboo\n", "(?[2Jboo)"),
    ],
)
def test_node_that_does_not_answer_is_one_line_and_exit_1(
    bench: Bench, capsys: Any, status: int, err: str, sentence: str
) -> None:
    bench.answers("", err, status)
    assert main(["connect", "box"]) == 1
    said = capsys.readouterr().err
    assert sentence in said
    assert len(said.splitlines()) == 1


def test_machine_without_ssh_is_told_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["connect", "box"]) == 1
    assert "ssh is not installed" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--", "-oProxyCommand=id"],
        [""],
        ["a b"],
        ["a\x1b[2J"],
        ["box", "--service", "../x"],
        ["box", "--service", "x\n"],
        ["box", "--port", "0"],
        ["box", "--port", "70000"],
    ],
)
def test_bad_input_is_exit_2_and_asks_nobody(
    bench: Bench, capsys: Any, arguments: list[str]
) -> None:
    assert main(["connect", *arguments]) == 2
    assert bench.calls == []
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_text_for_people_names_endpoint_tunnel_key_file_and_curl_line(
    bench: Bench, capsys: Any
) -> None:
    assert main(["connect", "root@box"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["llm", "endpoint", "tunnel", "key", "try"]


def test_tunnel_is_open_until_sigint_and_leaves_no_process(bench: Bench) -> None:
    bench.serves(bind="0.0.0.0")
    process = _start("root@box", "--tunnel", "--port", "9999")
    _ended_by(process, signal.SIGINT, 0)
    (call,) = [call for call in bench.calls if "-L" in call]
    assert call[call.index("-L") + 1] == "127.0.0.1:9999:127.0.0.1:8080"


def test_tunnel_ends_with_us_at_sigterm(bench: Bench) -> None:
    _ended_by(_start("root@box", "--tunnel"), signal.SIGTERM, 0)


def test_tunnel_that_breaks_off_is_exit_1(bench: Bench, capsys: Any) -> None:
    ssh = bench.folder / "ssh"
    ssh.write_text(ssh.read_text().replace("time.sleep(60)", "sys.exit(255)"))
    assert main(["connect", "box", "--tunnel"]) == 1
    assert "the tunnel broke off" in capsys.readouterr().err


def _start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "gpuwright", "connect", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _ended_by(process: subprocess.Popen[str], number: signal.Signals, status: int) -> None:
    assert process.stderr is not None
    with process:
        assert process.stderr.readline() == "the tunnel stands\n"
        process.send_signal(number)
        _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (status, "")
    deadline = time.monotonic() + 10
    while _alive(process.pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _alive(process.pid)


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
