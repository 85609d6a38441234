"""One build for equal nodes: who makes it, and that what is taken over is what was made."""

import hashlib
import json
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from deploys.operations.llama_cpp import old_builds
from gpuwright import carry
from gpuwright.sharing import Need, Part, parts
from tests.unit.onnode_rig import program_environment, put, run
from tests.unit.test_onnode_build import spec


def needs(*rows):
    return [Need(host=host, engine_dir=engine, stands=stands) for host, engine, stands in rows]


def test_of_equal_nodes_the_first_by_name_compiles_and_the_others_take():
    found = parts(needs(("b", "x", False), ("a", "x", False), ("c", "x", False)), ())
    assert found == {"a": (Part.GIVES, True), "b": (Part.TAKES, False), "c": (Part.TAKES, False)}


def test_a_node_that_has_the_build_hands_it_on_and_nobody_compiles():
    found = parts(needs(("a", "x", False), ("b", "x", True)), ())
    assert found == {"a": (Part.TAKES, False), "b": (Part.GIVES, False)}


def test_the_control_machine_keeps_what_a_run_wants_and_the_newest_of_each_engine(tmp_path):
    def packed(name, age):
        path = tmp_path / f"{name}.tar"
        path.touch()
        os.utime(path, ns=(10**18 - age, 10**18 - age))
        return path

    llama = [packed(f"llama.cpp-b1143{number}-a", number) for number in range(5)]
    packed("ik_llama.cpp-0.1.5-a", 9)
    gone = tmp_path / "llama.cpp-b11430-gone.tar"  # as another run removes it meanwhile
    found = old_builds([gone, *tmp_path.glob("*.tar")], [llama[4]], 2)
    assert found == [llama[2], llama[3]]


def test_what_the_control_machine_holds_is_taken_from_there():
    assert parts(needs(("a", "x", False)), ("x",)) == {"a": (Part.TAKES, False)}


def test_nodes_of_different_builds_share_nothing():
    found = parts(needs(("a", "x", False), ("b", "y", False), ("c", "z", True)), ())
    assert found == {"a": (Part.MAKES, True), "b": (Part.MAKES, True), "c": (Part.NONE, False)}


@pytest.fixture
def packed(tmp_path):
    """A build that one node has made and packed, and the spec of a node that wants the same."""
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    made = spec(tmp_path / "one")
    assert run("build", made)[0]["engine"] == "built"
    answer, _ = run("share", made | {"packed": str(tmp_path / "engine.tar")})
    wanted = spec(tmp_path / "other") | {
        "packed": {"path": str(tmp_path / "engine.tar"), "sha256": answer["sha256"]},
        "archive": "/nonexistent",
        "compiler": "/nonexistent/c++",
    }
    return made, wanted


def test_what_is_taken_over_is_the_same_and_nothing_is_compiled(packed):
    made, wanted = packed
    answer, _ = run("build", wanted)
    assert answer["engine"] == "received"
    mine, theirs = (Path(each["engine_dir"]) / "bin/tiny-server" for each in (wanted, made))
    assert mine.read_bytes() == theirs.read_bytes()
    assert mine.stat().st_mode == theirs.stat().st_mode
    assert not Path(wanted["packed"]["path"]).exists()
    # Its stamp is of the files as they lie here.
    assert run("build", wanted)[0]["engine"] == "kept"


def test_a_packed_build_that_was_changed_on_its_way_is_refused(packed):
    _, wanted = packed
    with Path(wanted["packed"]["path"]).open("ab") as file:
        file.write(b"!")
    answer, _ = run("build", wanted)
    assert "sha256 is" in answer["error"]
    assert not Path(wanted["engine_dir"]).exists()


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"gpuwright.json": lambda text: text.replace('"k1"', '"k2"')}, "another build than k1"),
        ({"bin/tiny-server": lambda _: "another program"}, "is not what its stamp says"),
    ],
)
def test_another_build_under_the_right_name_is_refused(packed, tmp_path, change, fault):
    made, wanted = packed
    directory = Path(made["engine_dir"])
    for name, edit in change.items():
        path = directory / name
        text = path.read_text() if name.endswith("json") else ""
        put(directory, {name: edit(text)})
    path = Path(wanted["packed"]["path"])
    with tarfile.open(path, "w") as archive:
        archive.add(directory, arcname=".")
    wanted["packed"]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    answer, _ = run("build", wanted)
    assert fault in answer["error"]
    assert not Path(wanted["engine_dir"]).exists()


def test_nothing_is_packed_of_a_build_that_does_not_stand(tmp_path):
    made = spec(tmp_path)
    run("build", made)
    stamp = Path(made["engine_dir"]) / "gpuwright.json"
    stamp.write_text(json.dumps(json.loads(stamp.read_text()) | {"key": "k2"}))
    answer, _ = run("share", made | {"packed": str(tmp_path / "engine.tar")})
    assert "does not hold the build" in answer["error"]
    assert not (tmp_path / "engine.tar").exists()


def test_a_disk_that_does_not_take_it_is_left_as_it_was(packed):
    made, wanted = packed
    path = Path(wanted["packed"]["path"])
    # 4 KiB for each file, as where a disk is full.
    script = f"trap '' XFSZ; ulimit -f 8; {carry.command('share', made | {'packed': str(path)})}"
    done = subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, env=program_environment()
    )
    assert carry.parse(done.stdout.splitlines())["ok"] is False, done.stderr
    assert str(path) in done.stdout
    assert not path.exists()
