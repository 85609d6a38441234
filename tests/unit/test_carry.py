"""Carrying programs: one safe command, small enough, and answers read from among noise."""

import ast
import base64
import json
import random
import shlex
import subprocess
import sys
import time
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwright import carry
from tests.unit.onnode_rig import program_environment, run

# An argument, its end included, may have 32 pages: MAX_ARG_STRLEN.
LONGEST_ARGUMENT = 128 * 1024


@pytest.mark.parametrize("program", carry.PROGRAMS)
def test_every_program_is_one_line_that_a_shell_and_sudo_pass_on_as_one_argument(program: str):
    line = carry.command(program, {})
    assert "\n" not in line
    assert "!" not in line
    assert len(shlex.quote(f"sh -c {shlex.quote(line)}")) < LONGEST_ARGUMENT


def test_the_longest_program_leaves_a_third_of_the_room_to_its_specification():
    longest = max(len(carry.command(program, {})) for program in carry.PROGRAMS)
    assert longest < carry.LONGEST_COMMAND * 2 // 3


def test_runs_under_further_quoting_as_pyinfra_and_sshd_do_it():
    line = carry.command("probe", {"sections": ["glibc"], "paths": ["/it's $HOME `x` \\ !"]})
    nested = f"sh -c {shlex.quote(f'sh -c {shlex.quote(line)}')}"
    finished = subprocess.run(
        ["sh", "-c", nested], capture_output=True, text=True, env=program_environment()
    )
    assert carry.parse(finished.stdout.splitlines())["schema"] == 2
    assert finished.returncode == 0


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_runs_in_every_posix_shell(shell: str):
    finished = subprocess.run(
        [shell, "-c", carry.command("probe", {"sections": ["glibc"]})],
        capture_output=True,
        text=True,
        env=program_environment(),
    )
    assert carry.parse(finished.stdout.splitlines())["notes"] == []


@pytest.mark.parametrize("program", [one for one in carry.PROGRAMS if one != "probe"])
def test_a_node_without_python_answers_with_the_sentence_and_no_failed_command(program: str):
    finished = subprocess.run(
        ["/bin/sh", "-c", carry.command(program, {})],
        capture_output=True,
        text=True,
        env={"PATH": "/nonexistent"},
    )
    assert finished.returncode == 0
    answer = carry.parse(finished.stdout.splitlines())
    assert answer["ok"] is False
    assert answer["error"].startswith(carry.NEEDED)


def test_a_node_without_python_is_looked_at_by_its_shell():
    finished = subprocess.run(
        ["/bin/sh", "-c", carry.command("probe", {"disks": ["/"]})],
        capture_output=True,
        text=True,
        env={"PATH": "/nonexistent"},
    )
    assert (finished.returncode, finished.stderr) == (0, "")
    answer = carry.parse(["Welcome", *finished.stdout.splitlines()])
    assert (answer["schema"], answer["by"]) == (2, "shell")


def old_python(folder: Path) -> dict[str, str]:
    """An environment whose python3 claims to be an older one, and runs what it is given."""
    fake = folder / "python3"
    fake.write_text(
        f"#!{sys.executable} -IS\n"
        "import sys\n"
        "sys.version_info = (3, 7)\n"
        "if '--version' in sys.argv:\n"
        "    print('Python 3.7.3')\n"
        "    sys.exit()\n"
        "boot = sys.argv[sys.argv.index('-c') + 1]\n"
        "exec(boot, {})\n"
    )
    fake.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def test_a_python_that_is_too_old_says_so_and_which_it_is(tmp_path: Path):
    finished = subprocess.run(
        ["/bin/sh", "-c", carry.command("gate", {})],
        capture_output=True,
        text=True,
        env=old_python(tmp_path),
    )
    answer = carry.parse(finished.stdout.splitlines())
    assert answer == {"ok": False, "error": f"{carry.NEEDED}, found 3.7", "hint": ""}


def test_a_python_that_is_too_old_leaves_the_look_to_the_shell(tmp_path: Path):
    finished = subprocess.run(
        ["/bin/sh", "-c", carry.command("probe", {})],
        capture_output=True,
        text=True,
        env=old_python(tmp_path),
    )
    answer = carry.parse(finished.stdout.splitlines())
    assert (answer["by"], answer["python"]["version"]) == ("shell", "3.7.3")


@pytest.mark.parametrize("status", [2, 127, 139])
def test_a_python_that_does_not_run_leaves_the_look_to_the_shell(tmp_path: Path, status: int):
    broken = tmp_path / "python3"
    broken.write_text(f"#!/bin/sh\necho libpython3.11.so.1.0: cannot open >&2\nexit {status}\n")
    broken.chmod(0o755)
    finished = subprocess.run(
        ["/bin/sh", "-c", carry.command("probe", {})],
        capture_output=True,
        text=True,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
    )
    answer = carry.parse(finished.stdout.splitlines())
    assert (finished.returncode, answer["by"], answer["python"]["version"]) == (0, "shell", None)


def test_the_bootstrap_parses_in_a_python_that_is_too_old_for_the_programs():
    assert ast.parse(carry._BOOTSTRAP, feature_version=(3, 4))
    assert not [n for n in ast.walk(ast.parse(carry._BOOTSTRAP)) if isinstance(n, ast.JoinedStr)]


def test_refuses_an_unknown_program_and_a_specification_that_does_not_fit():
    with pytest.raises(ValueError, match="program 'rm'"):
        carry.command("rm", {})
    noise = random.Random(1).randbytes(200_000).hex()
    with pytest.raises(ValueError, match="split the specification"):
        carry.command("write", {"files": [{"path": "/x", "content": noise}]})


def test_carrying_is_quick_on_the_control_machine():
    carry.command("probe", {})
    began = time.perf_counter()
    for _ in range(20):
        carry.command("probe", {"service": "llm"})
    assert (time.perf_counter() - began) / 20 < 0.03


def test_the_probe_carries_the_management_library_and_the_downloader_does_not():
    probe = shlex.split(carry.command("probe", {}).split("; ")[1])
    fetch = shlex.split(carry.command("fetch", {}).split("; ")[1])
    assert len(probe) == len(fetch) + 1


def test_modules_come_in_the_order_of_their_imports():
    for program in carry.PROGRAMS:
        names = [name for name, _ in carry.modules(program)]
        assert names[-1] == f"gpuwright.onnode.{program}"
        for place, (_, source) in enumerate(carry.modules(program)):
            for line in source.splitlines():
                if line.startswith("from gpuwright.onnode."):
                    assert names.index(line.split()[1]) < place


def test_a_program_that_meets_nonsense_answers_with_a_sentence():
    for program in carry.PROGRAMS:
        if program != "probe":
            answer, finished = run(program, {"files": 7, "engine_dir": None})
            assert answer["ok"] is False
            assert answer["error"]
            assert finished.returncode == 1


def test_takes_the_last_json_object_and_passes_over_banners():
    lines = ['{"ok": true}', "Welcome to node 7 {", '{"ok": false, "error": "x"}', "bye", ""]
    assert carry.parse(lines) == {"ok": False, "error": "x"}


@pytest.mark.parametrize("lines", [[], ["", "  "], ["hello"], ["[1, 2]"], ['{"broken": '], ["{x}"]])
def test_no_answer_is_a_failure_with_a_sentence(lines: list[str]):
    answer = carry.parse(lines)
    assert answer["ok"] is False
    assert str(answer["error"]).startswith("the node gave no answer")


@given(st.lists(st.text(max_size=60), max_size=6))
def test_any_lines_give_an_answer(lines: list[str]):
    assert isinstance(carry.parse(lines), dict)


@settings(deadline=None)  # the first example packs the program
@given(st.dictionaries(st.text(max_size=8), st.text(max_size=30), max_size=3))
def test_whatever_stands_in_the_specification_only_base64_reaches_the_shell(spec: dict[str, str]):
    line = carry.command("write", spec)
    words = shlex.split(line.split("; ")[1])
    assert json.loads(carry_unpacked(words[-1])) == spec


def carry_unpacked(word: str) -> str:
    return zlib.decompress(base64.b64decode(word)).decode()
