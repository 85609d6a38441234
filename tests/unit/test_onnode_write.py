"""Files, directories and keys: atomic, private from the first moment, left alone if right."""

import errno
import os
import re
import stat
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwright.onnode import write
from gpuwright.onnode.envfile import variables, with_key
from gpuwright.onnode.outcome import NodeError
from tests.unit.onnode_rig import run

NAME = "LLAMA_API_KEY"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_makes_directories_and_files_with_their_modes(tmp_path: Path):
    text = tmp_path / "a" / "b" / "unit"
    spec = {
        "directories": [{"path": str(text.parent), "mode": "0700", "owner": "root"}],
        "files": [{"path": str(text), "mode": "0640", "content": "[Unit]\n", "group": "root"}],
    }
    answer, _ = run("write", spec)
    assert answer == {"ok": True, "changed": [str(text.parent), str(text)], "same": []}
    assert text.read_text() == "[Unit]\n"
    assert (mode(text), mode(text.parent), mode(tmp_path / "a")) == (0o640, 0o700, 0o755)


def test_a_second_run_touches_nothing(tmp_path: Path):
    path = tmp_path / "f"
    spec = {
        "directories": [{"path": str(tmp_path / "d"), "mode": "0755"}],
        "files": [
            {"path": str(path), "mode": "0644", "content": "x"},
            {"path": str(tmp_path / "k"), "mode": "0600", "generate": ["LLAMA_API_KEY"]},
        ],
    }
    run("write", spec)
    before = (path.stat().st_mtime_ns, path.stat().st_ino, (tmp_path / "k").read_text())
    answer, _ = run("write", spec)
    assert answer["changed"] == []
    assert before == (path.stat().st_mtime_ns, path.stat().st_ino, (tmp_path / "k").read_text())


def test_only_a_wrong_mode_is_mended_without_a_new_file(tmp_path: Path):
    path = tmp_path / "f"
    path.write_text("x")
    path.chmod(0o666)
    inode = path.stat().st_ino
    run("write", {"files": [{"path": str(path), "mode": "0600", "content": "x"}]})
    assert (mode(path), path.stat().st_ino) == (0o600, inode)
    answer, _ = run("write", {"modes": [{"path": str(path), "mode": "0640"}]})
    assert (answer["changed"], mode(path)) == ([str(path)], 0o640)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
@pytest.mark.parametrize("how", ["modes", "directories"])
def test_a_tree_of_another_users_is_given_back_as_a_whole(tmp_path: Path, how: str):
    outside = tmp_path / "outside"
    outside.write_text("x")
    outside.chmod(0o666)
    tree = tmp_path / "tree"
    (tree / "bin").mkdir(parents=True)
    (tree / "bin/tool").write_text("x")
    (tree / "link").symlink_to(outside)
    subprocess.run(["chown", "-hR", "nobody", tree], check=True)
    (tree / "bin/tool").chmod(0o4777)
    row = {"path": str(tree), "mode": "0755", "owner": "root", "group": "root"}
    run("write", {how: [row]})
    assert (tree / "bin/tool").owner() == "nobody"
    (tree).chmod(0o777)
    os.chown(tree, 65534, 0)
    run("write", {how: [row | {"whole": True}]})
    found = [tree, *tree.rglob("*")]
    assert {os.lstat(path).st_uid for path in found} == {0}
    assert (mode(tree), mode(tree / "bin/tool")) == (0o755, 0o755)
    assert stat.S_IMODE(outside.stat().st_mode) == 0o666


@pytest.fixture
def nobodys(tmp_path: Path) -> Path:
    """A tree of another user's, three deep."""
    tree = tmp_path / "tree"
    (tree / "lib/deep").mkdir(parents=True)
    for name in ("a", "lib/b", "lib/deep/c"):
        (tree / name).write_text("x")
    subprocess.run(["chown", "-R", "nobody", tree], check=True)
    return tree


def give_back(tree: Path) -> dict[str, Any]:
    row = {"path": str(tree), "mode": "0755", "owner": "root", "group": "root", "whole": True}
    return write.main({"modes": [row]}, None)


def owners(tree: Path) -> set[int]:
    return {os.lstat(path).st_uid for path in (tree, *tree.rglob("*"))}


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
@pytest.mark.parametrize("call", ["fchown", "fchmod"])
def test_a_tree_whose_giving_back_was_broken_off_is_given_back_by_the_next_run(
    nobodys: Path, monkeypatch: pytest.MonkeyPatch, call: str
):
    real, runs = getattr(os, call), 0
    for calls in range(20):
        left = iter(range(calls))

        def dies(*words: int, left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise KeyboardInterrupt
            real(*words)

        subprocess.run(["chown", "-R", "nobody", nobodys], check=True)
        with monkeypatch.context() as patch:
            patch.setattr(os, call, dies)
            try:
                give_back(nobodys)
            except KeyboardInterrupt:
                runs += 1
            else:
                break
        give_back(nobodys)
        assert (owners(nobodys), mode(nobodys)) == ({0}, 0o755), calls
        assert give_back(nobodys)["changed"] == []
    assert 0 < runs < 20


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
def test_what_is_put_in_before_a_directory_is_given_back_is_given_back_too(
    nobodys: Path, monkeypatch: pytest.MonkeyPatch
):
    real = os.fchown

    def late(descriptor: int, uid: int, gid: int) -> None:
        place = Path(f"/proc/self/fd/{descriptor}").readlink()
        if place.is_dir():
            (place / "late").write_text("x")
            os.chown(place / "late", 65534, 65534)
        real(descriptor, uid, gid)

    monkeypatch.setattr(os, "fchown", late)
    give_back(nobodys)
    assert (nobodys / "lib/deep/late").exists()
    assert owners(nobodys) == {0}


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
def test_a_file_that_cannot_be_given_back_is_named_after_the_rest_and_tried_again(
    nobodys: Path, monkeypatch: pytest.MonkeyPatch
):
    real, stuck = os.fchown, nobodys / "a"

    def immutable(descriptor: int, uid: int, gid: int) -> None:
        if os.path.samestat(os.fstat(descriptor), stuck.stat()):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        real(descriptor, uid, gid)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fchown", immutable)
        for _ in range(2):
            with pytest.raises(NodeError, match=f"{stuck}: cannot be given back to root: Opera"):
                give_back(nobodys)
    assert [path.name for path in nobodys.rglob("*") if os.lstat(path).st_uid] == ["a"]
    assert mode(nobodys) != 0o755
    assert mode(nobodys) & 0o755 == 0o755
    give_back(nobodys)
    assert (owners(nobodys), mode(nobodys)) == ({0}, 0o755)


def test_a_generated_key_is_never_readable_by_others_for_a_moment(tmp_path: Path):
    path = tmp_path / "llm.env"
    seen: set[int] = set()
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            for entry in os.scandir(tmp_path):
                try:
                    seen.add(stat.S_IMODE(entry.stat().st_mode))
                except FileNotFoundError:
                    continue

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(4):
        run("write", {"files": [{"path": str(path), "mode": "0600", "generate": [NAME]}]})
        path.write_text("")
    done.set()
    watcher.join()
    assert seen == {0o600}


def test_a_generated_key_is_never_shown_and_each_is_its_own(tmp_path: Path):
    keys = set()
    for name in ("a", "b"):
        path = tmp_path / name
        spec = {"files": [{"path": str(path), "mode": "0600", "generate": ["LLAMA_API_KEY"]}]}
        _, finished = run("write", spec)
        line = path.read_text()
        assert line.startswith("LLAMA_API_KEY=")
        key = line.strip().partition("=")[2]
        assert len(key) >= 40
        assert key not in finished.stdout + finished.stderr
        keys.add(key)
    assert len(keys) == 2


def generated(path: Path, text: str) -> str:
    """What the environment file holds after a key was asked for."""
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    answer, _ = run("write", {"files": [{"path": str(path), "generate": [NAME]}]})
    assert answer["ok"] is True, answer
    return path.read_bytes().decode("utf-8", "surrogateescape")


@pytest.mark.parametrize(
    "text",
    [
        "# ours\nLLAMA_API_KEY=chosen-by-hand\nHF_HOME=/x\n",
        "LLAMA_API_KEY=first-key,second-key\n",
        "LLAMA_API_KEY='chosen-by-hand'\r\nHF_HOME=/x\r\n",
        ' LLAMA_API_KEY = "chosen-by-hand" \n',
        "LLAMA_API_KEY=\nLLAMA_API_KEY=the-last-counts",
    ],
)
def test_an_operators_own_key_is_kept_with_every_other_line(tmp_path: Path, text: str):
    assert generated(tmp_path / "llm.env", text) == text


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("LLAMA_API_KEY=\nHF_HOME=/x\n", "HF_HOME=/x\n"),
        ("HF_HOME=/x\r\nLLAMA_API_KEY=''\r\n#", "HF_HOME=/x\r\n#"),
        ("HF_HOME=\udcff", "HF_HOME=\udcff"),
        ("", ""),
    ],
)
def test_an_empty_or_absent_key_is_generated(tmp_path: Path, text: str, rest: str):
    written = generated(tmp_path / "llm.env", text)
    assert re.fullmatch(r"LLAMA_API_KEY=[\w-]{40,}\n" + re.escape(rest), written)


@pytest.mark.parametrize("value", ["secret", "'two words here'", "long-enough,short", "geheim-ä-ö"])
def test_a_key_that_protects_nothing_is_refused_and_not_replaced(tmp_path: Path, value: str):
    path = tmp_path / "llm.env"
    path.write_text(f"LLAMA_API_KEY={value}\n")
    answer, finished = run("write", {"files": [{"path": str(path), "generate": [NAME]}]})
    assert answer["error"] == (
        f"LLAMA_API_KEY in {path} needs a key of 8 or more visible ASCII characters without "
        "blanks, or several of them with commas between"
    )
    assert value not in finished.stdout + finished.stderr
    assert path.read_text() == f"LLAMA_API_KEY={value}\n"


def test_what_is_no_regular_file_is_refused_and_left_alone(tmp_path: Path):
    target = tmp_path / "target"
    target.write_text("precious")
    link = tmp_path / "link"
    link.symlink_to(target)
    os.mkfifo(tmp_path / "fifo")
    for name in ("link", "fifo"):
        answer, finished = run("write", {"files": [{"path": str(tmp_path / name), "content": "x"}]})
        assert (answer["ok"], finished.returncode) == (False, 1)
        assert str(tmp_path / name) in answer["error"]
    assert target.read_text() == "precious"
    answer, _ = run("write", {"directories": [{"path": str(link)}]})
    assert answer["ok"] is False


@pytest.mark.parametrize(
    "row",
    [
        {"path": "relative", "content": "x"},
        {"path": "/tmp/../etc/x", "content": "x"},
        {"path": "/tmp/x", "content": "x", "mode": "rw"},
        {"path": "/tmp/x", "content": "x", "owner": "no-such-user"},
        {"path": "/tmp/x"},
        {"path": "/tmp/x", "content": "x", "generate": ["LLAMA_API_KEY"]},
        {"path": "/tmp/x", "generate": ["PASSWORD"]},
        {"path": "/nonexistent/dir/x", "content": "x"},
    ],
)
def test_a_row_that_makes_no_sense_is_a_sentence(row: dict[str, str]):
    answer, finished = run("write", {"files": [row]})
    assert answer["ok"] is False
    assert answer["error"]
    assert finished.stderr == ""


def test_a_leftover_of_a_killed_run_is_replaced(tmp_path: Path):
    (tmp_path / ".f.gpuwright-new").write_text("half")
    run("write", {"files": [{"path": str(tmp_path / "f"), "content": "whole"}]})
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


@given(st.text("K=\\\n\r\"' #aLLAMA_API_KEY", max_size=60) | st.text(max_size=120))
def test_with_a_key_put_in_any_file_has_that_key_and_its_other_variables(text: str):
    written = with_key(text, NAME, "12345678")
    before, after = variables(text), variables(written)
    assert after.pop(NAME) == "12345678"
    before.pop(NAME, None)
    assert after == before
    assert with_key(written, NAME, "12345678") == written


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("LLAMA_API_KEY=of-the-clients\n", "of-the-clients"),
        ("LLAMA_API_KEY=first-one,second-one\n", "first-one"),
        ("VLLM_API_KEY='of-the-clients'\n", "of-the-clients"),
    ],
)
def test_another_engine_takes_the_clients_key_over(tmp_path: Path, text: str, key: str):
    path = tmp_path / "llm.env"
    path.write_text(text)
    run("write", {"files": [{"path": str(path), "generate": ["SGLANG_API_KEY"]}]})
    assert path.read_text() == f"SGLANG_API_KEY={key}\n{text}"


@pytest.mark.parametrize(
    "text", ["OTHER_API_KEY=of-something-else\n", "LLAMA_API_KEY=-like-an-option\n"]
)
def test_what_is_no_key_of_its_clients_is_not_taken_over(tmp_path: Path, text: str):
    path = tmp_path / "llm.env"
    path.write_text(text)
    run("write", {"files": [{"path": str(path), "generate": ["SGLANG_API_KEY"]}]})
    first, rest = path.read_text().split("\n", 1)
    assert rest == text
    assert first.removeprefix("SGLANG_API_KEY=") not in text


def test_what_is_kept_is_what_was_there_before_the_first_that_has_proven_nothing(tmp_path: Path):
    path = tmp_path / "unit"
    spec = {"keep": [str(path)], "files": [{"path": str(path), "content": "second"}]}
    run("write", spec | {"files": [{"path": str(path), "content": "first"}]})
    assert not (tmp_path / "unit.previous").exists()
    run("write", spec)
    run("write", spec | {"files": [{"path": str(path), "content": "third"}]})
    assert (tmp_path / "unit.previous").read_text() == "first"
    assert path.read_text() == "third"
