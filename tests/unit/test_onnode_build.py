"""Builds with the real cmake, ninja and compiler: a directory that is complete, or none."""

import getpass
import hashlib
import io
import json
import os
import signal
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwright import carry
from gpuwright.onnode.archives import unpack
from gpuwright.onnode.compiling import c_compiler, first_error, source_directory, steps
from gpuwright.onnode.outcome import NodeError
from gpuwright.onnode.workshop import Workshop
from tests.unit.onnode_rig import in_namespace, program_environment, put, run

CMAKE = """cmake_minimum_required(VERSION 3.18)
project(tiny C CXX)
add_executable(tiny-server tiny.cpp)
set_target_properties(tiny-server PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
"""
SOURCE = '#include <cstdio>\nint main() { puts("version 11434 (b11434)"); return %s; }\n'
GOOD = {"tiny-1/llama/CMakeLists.txt": CMAKE, "tiny-1/llama/tiny.cpp": SOURCE % "0"}


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")


def archive(path: Path, files: Mapping[str, str]) -> str:
    """A source archive; its sha256."""
    with tarfile.open(path, "w:gz") as opened:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            opened.addfile(info, io.BytesIO(text.encode()))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def spec(tmp_path: Path, files: Mapping[str, str] = GOOD, **more: Any) -> dict[str, Any]:
    (tmp_path / "engines").mkdir(exist_ok=True)
    return {
        "key": "k1",
        "engine_dir": str(tmp_path / "engines" / "tiny-1-k1"),
        "archive": str(tmp_path / "tiny.tar.gz"),
        "sha256": archive(tmp_path / "tiny.tar.gz", files),
        "source_subdir": "",
        "lock": str(tmp_path / "run" / "lock"),
        "work_dir": str(tmp_path / "work"),
        "ccache_dir": str(tmp_path / "ccache"),
        "cmake_args": ["-DCMAKE_BUILD_TYPE=Release"],
        "target": "tiny-server",
        "jobs": 2,
        "env": {},
        "user": getpass.getuser(),
        "proof_args": ["--version"],
        "proof_expect": "11434",
        "need_bytes": 1 << 20,
        "engine_bytes": 1 << 20,
        "retire": {"rooms": [], "leftovers": []},
        **more,
    }


def leftovers(tmp_path: Path) -> list[str]:
    """What is below engines and work, the finished engine left out."""
    found = [*(tmp_path / "engines").iterdir(), *(tmp_path / "work").glob("*")]
    return [path.name for path in found if path.name != "tiny-1-k1"]


def test_builds_proves_stamps_and_cleans_up(tmp_path: Path):
    wanted = spec(tmp_path)
    answer, finished = run("build", wanted)
    assert answer["engine"] == "built"
    assert set(answer["seconds"]) == {"unpack", "configure", "compile", "proof", "all"}
    engine = Path(wanted["engine_dir"])
    binary = engine / "bin" / "tiny-server"
    assert subprocess.run([binary], capture_output=True, text=True).stdout.startswith("version")
    assert binary.stat().st_mode & 0o777 == 0o755
    stamp = json.loads((engine / "gpuwright.json").read_text())
    assert (stamp["key"], stamp["archive_sha256"]) == ("k1", wanted["sha256"])
    assert stamp["compiler_version"]
    entry = stamp["files"]["bin/tiny-server"]
    assert entry["sha256"] == hashlib.sha256(binary.read_bytes()).hexdigest()
    assert (entry["mtime_ns"], entry["inode"]) == (
        binary.stat().st_mtime_ns,
        binary.stat().st_ino,
    )
    assert leftovers(tmp_path) == []
    assert "configuring" in finished.stderr


def test_an_engine_that_stands_is_kept_and_a_changed_one_is_built_again(tmp_path: Path):
    wanted = spec(tmp_path)
    run("build", wanted)
    assert run("build", wanted)[0]["engine"] == "kept"
    binary = Path(wanted["engine_dir"]) / "bin" / "tiny-server"
    binary.touch()
    assert run("build", wanted)[0]["engine"] == "verified"
    assert run("build", wanted)[0]["engine"] == "kept"
    binary.write_bytes(binary.read_bytes()[:-1])
    assert run("build", wanted)[0]["engine"] == "built"
    assert leftovers(tmp_path) == []


def test_a_changed_engine_is_built_again_although_its_stamp_says_nothing_of_it(tmp_path: Path):
    wanted = spec(tmp_path)
    run("build", wanted)
    binary = Path(wanted["engine_dir"]) / "bin" / "tiny-server"
    found = binary.stat()
    with binary.open("r+b") as file:
        file.write(b"!")
    os.utime(binary, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert run("build", wanted)[0]["engine"] == "built"
    assert subprocess.run([binary], capture_output=True).returncode == 0


@pytest.mark.parametrize(
    "stamp",
    [
        "junk",
        "[]",
        '{"key": "k1"}',
        '{"key": "k1", "files": ["bin/tiny-server"]}',
        '{"key": "k1", "files": {"bin/tiny-server": 7}}',
        '{"key": "k1", "files": {"README": {}}}',
        None,
    ],
)
def test_an_engine_whose_stamp_is_none_is_built_again(tmp_path: Path, stamp: str | None):
    engine = tmp_path / "engines" / "tiny-1-k1"
    put(engine, {"bin/tiny-server": "x", "README": "x"})
    put(engine, {"gpuwright.json/x": ""} if stamp is None else {"gpuwright.json": stamp})
    assert run("build", spec(tmp_path))[0]["engine"] == "built"
    assert leftovers(tmp_path) == []


def test_links_in_the_place_of_leftovers_are_removed_and_not_followed(tmp_path: Path):
    precious = put(tmp_path / "elsewhere", {"bin/precious": "x"})
    put(tmp_path, {"engines/x": "", "work/x": ""})
    for link in ("engines/tiny-1-k1.partial", "engines/tiny-1-k1", "work/tiny-1-k1"):
        (tmp_path / link).symlink_to(precious)
    assert run("build", spec(tmp_path))[0]["engine"] == "built"
    assert [path.name for path in precious.rglob("*")] == ["bin", "precious"]
    assert not (tmp_path / "engines" / "tiny-1-k1").is_symlink()


@pytest.mark.parametrize("part", ["unpack", "compile", "install"])
def test_a_disk_that_fills_up_is_named_and_left_as_it_was(
    small_disk: Path, tmp_path: Path, part: str
):
    big = "x" * 6_000_000
    files = dict(GOOD)
    if part == "unpack":
        files["tiny-1/big"] = big
    elif part == "compile":
        files["tiny-1/llama/tiny.cpp"] += "char big[8000000] = {1};\n"
    (tmp_path / "work").mkdir()
    places = {
        "work_dir": str(small_disk / "work"),
        "engine_dir": str(small_disk / "engines" / "tiny-1-k1"),
    }
    if part == "install":
        # The compiler has room; the engine's own filesystem is full.
        files["tiny-1/llama/tiny.cpp"] += "char big[8000000] = {1};\n"
        places["work_dir"] = str(tmp_path / "work")
    line = carry.command("build", spec(tmp_path, files, ccache_dir=None, **places))
    done = in_namespace(
        f"mount -t tmpfs -o size=5m none {small_disk}; mkdir {small_disk}/engines\n"
        f"{line}\ncd {small_disk}; find . -type f; ls engines"
    )
    answer = json.loads(done.stdout)
    assert f"no space is left on the filesystem {small_disk}" in answer["error"]
    assert list((tmp_path / "work").iterdir()) == []


def test_leftovers_of_a_killed_build_are_cleared(tmp_path: Path):
    put(tmp_path, {"work/tiny-1-k1/build/x": "x", "engines/tiny-1-k1.partial/bin/x": "x"})
    assert run("build", spec(tmp_path))[0]["engine"] == "built"
    assert leftovers(tmp_path) == []


def test_a_compiler_error_is_the_sentence_and_its_last_lines_follow(tmp_path: Path):
    files = {**GOOD, "tiny-1/llama/tiny.cpp": "int main() { return missing_thing; }\n"}
    answer, finished = run("build", spec(tmp_path, files))
    assert finished.returncode == 1
    assert "the compiler fails" in answer["error"]
    assert "missing_thing" in answer["error"]
    assert 0 < len(answer["output"]) <= 20
    assert leftovers(tmp_path) == []
    assert not (tmp_path / "engines" / "tiny-1-k1").exists()


def test_a_cmake_error_is_the_sentence(tmp_path: Path):
    files = {**GOOD, "tiny-1/llama/CMakeLists.txt": 'message(FATAL_ERROR "CUDA Toolkit not found")'}
    answer, _ = run("build", spec(tmp_path, files))
    assert "cmake does not configure" in answer["error"]
    assert "CUDA Toolkit not found" in answer["error"]


@pytest.mark.parametrize(
    ("source", "word"),
    [
        (SOURCE % "3", "does not run: exit status 3"),
        ("#include <csignal>\nint main() { raise(SIGILL); }\n", "killed by SIGILL"),
        ('#include <cstdio>\nint main() { puts("build 0"); }\n', "does not say '11434'"),
    ],
)
def test_a_binary_that_does_not_prove_itself_is_not_published(
    tmp_path: Path, source: str, word: str
):
    files = {**GOOD, "tiny-1/llama/tiny.cpp": source}
    assert word in run("build", spec(tmp_path, files))[0]["error"]
    assert leftovers(tmp_path) == []
    assert not (tmp_path / "engines" / "tiny-1-k1").exists()


@as_root
def test_a_binary_is_proven_with_the_rights_and_groups_of_the_service(tmp_path: Path):
    """And so are the cards that it lists: root opens a device file that the service may not."""
    with tempfile.TemporaryDirectory() as place:  # for others to enter, unlike `tmp_path`
        Path(place).chmod(0o755)
        shop = Workshop(spec(tmp_path, user="daemon", devices_args=["--list"], devices=1), 0)
        shop.partial = place
        told = "#!/bin/sh\nid -un\nid -nG\necho 11434\ntest -r %s && echo '  CUDA0: card'\n:\n"
        card = tmp_path / "card"
        card.touch()
        put(Path(place), {"bin/tiny-server": told % card})
        (Path(place) / "bin/tiny-server").chmod(0o755)
        shop.spec["proof_expect"] = "daemon\ndaemon\n11434"
        with pytest.raises(NodeError, match="sees 0 cards of 1"):
            shop.prove()


ASKING = {
    "tiny-1/llama/CMakeLists.txt": CMAKE.replace(
        "add_executable", "include(cmake/number.cmake)\nadd_executable", 1
    ),
    "tiny-1/llama/tiny.cpp": '#include <cstdio>\nint main() { printf("%d", NUMBER); }\n',
}
NUMBER = ["set(NUMBER 11434)", "add_compile_definitions(NUMBER=${NUMBER})"]


def test_files_that_the_archive_lacks_are_laid_into_the_source(tmp_path: Path):
    lacking = spec(tmp_path, ASKING)
    assert "could not find requested file" in run("build", lacking)[0]["error"]
    added = lacking | {"additions": {"cmake/number.cmake": NUMBER}}
    assert run("build", added)[0]["engine"] == "built"


@pytest.mark.parametrize(
    ("name", "said"),
    [("../number.cmake", "leads out of it"), ("tiny.cpp", "has one of its own")],
)
def test_nothing_is_laid_beside_the_source_or_over_a_file_of_it(tmp_path: Path, name, said):
    answer, _ = run("build", spec(tmp_path, additions={name: NUMBER}))
    assert said in answer["error"]
    assert leftovers(tmp_path) == []


def test_flags_of_whoever_logged_in_do_not_reach_the_compiler(tmp_path: Path):
    environment = {"CXXFLAGS": "-DX=1 -Werror=no-such", "CXX": "/bin/false"}
    assert run("build", spec(tmp_path), environment=environment)[0]["engine"] == "built"


def test_another_archive_than_the_rows_is_refused(tmp_path: Path):
    answer, _ = run("build", spec(tmp_path) | {"sha256": "0" * 64})
    assert "needed 0000000000000000" in answer["error"]
    assert "is not there" in run("build", spec(tmp_path) | {"archive": "/nope"})[0]["error"]


def test_too_little_room_is_said_before_anything_is_unpacked(tmp_path: Path):
    answer, _ = run("build", spec(tmp_path, need_bytes=1 << 60))
    assert "needs 1073741824.0 GiB" in answer["error"]


def test_engine_and_toolkit_need_room_beside_the_build(tmp_path: Path):
    toolkit = {"directory": str(tmp_path / "toolkit"), "need_bytes": 1 << 60}
    toolkit |= {"key": "k", "links": {}, "lock": str(tmp_path / "run" / "toolkit.lock")}
    more = {"need_bytes": 1 << 60, "engine_bytes": 1 << 60, "toolkit": toolkit}
    answer, _ = run("build", spec(tmp_path, **more))
    assert "needs 3221225472.0 GiB" in answer["error"]


def test_a_missing_tool_is_named(tmp_path: Path):
    wanted = spec(tmp_path, compiler="/nonexistent/g++-99")
    assert "g++-99 cannot be started: No such file" in run("build", wanted)[0]["error"]


def test_two_runs_build_once(tmp_path: Path):
    line = carry.command("build", spec(tmp_path))
    both = [
        subprocess.Popen(
            ["sh", "-c", line],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=program_environment(),
        )
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=60) for process in both]
    assert sorted(json.loads(out)["engine"] for out, _ in outputs) == ["built", "kept"]
    assert any("another run is building tiny-1-k1: waiting" in err for _, err in outputs)


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_after_a_kill_the_next_run_waits_for_the_orphans_and_builds(
    tmp_path: Path, sent: signal.Signals
):
    # A compiler that takes its time, so that there is a moment to kill the build in.
    slow, compiling = tmp_path / "slow-c++", tmp_path / "compiling"
    slow.write_text(
        f'#!/bin/sh\ncase "$*" in *tiny.cpp) touch {compiling}; sleep 3;; esac\nexec g++ "$@"\n'
    )
    slow.chmod(0o755)
    wanted = spec(tmp_path, env={"CXX": str(slow)}, ccache_dir=None)
    line = carry.command("build", wanted)
    process = subprocess.Popen(
        ["sh", "-c", "exec " + line.split("; ")[1][len("then ") :]],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=program_environment(),
    )
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and not compiling.exists():
        time.sleep(0.02)
    os.kill(process.pid, sent)
    out, _ = process.communicate(timeout=10)
    if sent == signal.SIGTERM:
        assert "stopped by signal" in json.loads(out)["error"]
        assert leftovers(tmp_path) == []
    assert not (tmp_path / "engines" / "tiny-1-k1").exists()
    assert run("build", wanted)[0]["engine"] == "built"
    assert leftovers(tmp_path) == []


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


@pytest.mark.parametrize(
    "bad",
    [
        member("/etc/evil"),
        member("../evil"),
        member("a/../../evil"),
        member("link", tarfile.SYMTYPE, "/etc"),
        member("a/link", tarfile.SYMTYPE, "../../etc"),
        member("hard", tarfile.LNKTYPE, "/etc/passwd"),
        member("device", tarfile.CHRTYPE),
        member("fifo", tarfile.FIFOTYPE),
    ],
    ids=lambda info: f"{info.name}->{info.linkname}",
)
def test_an_archive_that_leads_out_is_refused(tmp_path: Path, bad: tarfile.TarInfo):
    with tarfile.open(tmp_path / "bad.tar", "w") as opened:
        opened.addfile(member("fine"))
        opened.addfile(bad)
    (tmp_path / "in").mkdir()
    with pytest.raises(NodeError, match="refused"):
        unpack(str(tmp_path / "bad.tar"), str(tmp_path / "in"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.tar", "in"]


def test_nothing_is_written_through_a_link_of_the_archive(tmp_path: Path):
    with tarfile.open(tmp_path / "x.tar", "w") as opened:
        opened.addfile(member("real/"[:-1], tarfile.DIRTYPE))
        opened.addfile(member("link", tarfile.SYMTYPE, "real"))
        opened.addfile(member("link/file"))
    (tmp_path / "in").mkdir()
    with pytest.raises(NodeError, match="cannot be unpacked"):
        unpack(str(tmp_path / "x.tar"), str(tmp_path / "in"))
    assert list((tmp_path / "in" / "real").iterdir()) == []


def test_a_file_that_is_no_archive_is_a_sentence(tmp_path: Path):
    (tmp_path / "x.tar").write_bytes(b"not a tar")
    with pytest.raises(NodeError, match="cannot be unpacked"):
        unpack(str(tmp_path / "x.tar"), str(tmp_path / "in"))


def test_finds_the_cmakelists_nearest_to_the_top(tmp_path: Path):
    put(tmp_path, {"top/a/deep/CMakeLists.txt": "", "top/b/CMakeLists.txt": ""})
    assert source_directory(str(tmp_path), "") == str(tmp_path / "top" / "b")
    assert source_directory(str(tmp_path), "a/deep") == str(tmp_path / "top" / "a" / "deep")
    for subdir in ("none", "../.."):
        with pytest.raises(NodeError):
            source_directory(str(tmp_path), subdir)


def test_the_c_compiler_belongs_to_the_cxx_compiler():
    assert c_compiler("g++-12") == "gcc-12"
    assert c_compiler("/opt/x/clang++-17") == "/opt/x/clang-17"
    assert c_compiler("c++") == "cc"


@given(st.lists(st.text(max_size=60), max_size=8))
def test_any_compiler_output_is_survived(lines: list[str]):
    found = first_error(lines)
    assert found is None or "\n" not in found
    assert all(steps(line) is None or line.startswith("[") for line in lines)
