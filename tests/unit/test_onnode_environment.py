"""Making an environment, with the real uv: what it holds, what becomes of leftovers."""

import base64
import getpass
import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from gpuwright.layout import Layout
from gpuwright.onnode.contents import LIST, difference, misfits
from gpuwright.onnode.environment import main, standing
from gpuwright.onnode.outcome import NodeError
from gpuwright.onnode.owned import census
from gpuwright.onnode.proving import Prover
from gpuwright.onnode.stamps import HASHED_BYTES
from gpuwright.onnode.tree import Tree

MINOR = "{}.{}".format(*sys.version_info[:2])


def copied(uv: Path, to: Path) -> Path:
    """A program of the test's own: its mode is set when it is used."""
    shutil.copy(uv, to)
    return to


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def record_hash(content: bytes) -> str:
    """As a wheel's RECORD has it."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode()
    return f"sha256={digest.rstrip('=')}"


def small(tmp_path, uv) -> dict[str, Any]:
    """The spec of an environment with one package, with a module in a directory and one beside it,
    and a large library."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    wheel = wheels / "small-1.0-py3-none-any.whl"
    info = "small-1.0.dist-info"
    files = {
        "small.py": b"",
        "parts/__init__.py": b"",
        "parts/inner.py": b"one = 1\n",
        "big.so": bytes(HASHED_BYTES + 1),
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: small\nVersion: 1.0\n",
        f"{info}/entry_points.txt": b"[console_scripts]\nsmall = small:main\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(wheel, "w") as packed:
        for name, content in files.items():
            packed.writestr(name, content)
        rows = [
            f"{name},{record_hash(content)},{len(content)}\n" for name, content in files.items()
        ]
        packed.writestr(f"{info}/RECORD", "".join([*rows, f"{info}/RECORD,,\n"]))
    return {
        "key": "key",
        "engine_dir": str(tmp_path / "engines/small-1-key"),
        "lock": str(tmp_path / "lock"),
        "lock_id": "locks/test.txt",
        "requirements": {"small==1.0": [hashlib.sha256(wheel.read_bytes()).hexdigest()]},
        "python": {"executable": sys.executable},
        "uv": str(uv if uv.parent == tmp_path else copied(uv, tmp_path / "uv")),
        "cache_dir": str(tmp_path / "cache"),
        "index": {"offline": str(wheels)},
        "imports": ["small"],
        "user": getpass.getuser(),
        "need_bytes": 1,
        "retire": {"rooms": [], "leftovers": []},
    }


def is_for_all_to_write(path: Path) -> bool:
    return not path.is_symlink() and bool(path.stat().st_mode & stat.S_IWOTH)


def test_what_a_run_left_that_was_cut_off_is_no_environment(tmp_path):
    directory = tmp_path / "engines/vllm-1-key"
    directory.mkdir(parents=True)
    (directory / "pyvenv.cfg").write_text("home = /usr/bin\n")
    assert not standing({"engine_dir": str(directory), "key": "key"})


def test_an_environment_is_kept_until_a_file_that_its_stamp_vouches_for_is_gone(tmp_path, uv):
    spec = small(tmp_path, uv)
    assert main(spec, None)["engine"] == "installed"
    directory = Path(spec["engine_dir"])
    assert [path for path in tmp_path.rglob("*") if is_for_all_to_write(path)] == []
    assert main(spec, None)["engine"] == "kept"
    for name in ("site-packages/big.so", "small-1.0.dist-info/RECORD", "bin/python", "bin/small"):
        next(directory.rglob(name)).unlink()
        assert main(spec, None)["engine"] == "installed", name
        assert main(spec, None)["engine"] == "kept", name
    assert [path.name for path in directory.parent.iterdir()] == ["small-1-key"]


def altered(tmp_path, verify):
    """What the census of a node says of engines below a directory."""
    layout = asdict(Layout()) | {"engines": str(tmp_path / "engines")}
    return census(Tree("/"), {"layout": layout, "verify": verify})["altered"]


PLANTED = "lib/python{}/site-packages/{}"


def change_in_place(path: Path) -> None:
    """As an editor does that writes into the file itself; its size and time stay what they were."""
    times = path.stat()
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize(
    ("name", "quick"),
    [("small.pth", True), ("sitecustomize.py", True), ("parts/more.py", False)],
)
def test_a_file_that_no_package_brought_is_noticed(name, quick, tmp_path, uv):
    spec = small(tmp_path, uv)
    main(spec, None)
    planted = Path(spec["engine_dir"]) / PLANTED.format(MINOR, name)
    planted.write_text("import os\n")
    assert difference(spec["engine_dir"], True) == f"{planted} was not installed"
    noticed = f"{planted} was not installed"
    assert difference(spec["engine_dir"], False) == (noticed if quick else None)
    assert altered(tmp_path, "full") == {spec["engine_dir"]: noticed}
    assert altered(tmp_path, "quick") == ({spec["engine_dir"]: noticed} if quick else {})
    assert main(spec | {"verify": "full"}, None)["engine"] == "installed"
    assert not planted.exists()
    assert standing(spec | {"verify": "full"})


@pytest.mark.parametrize(
    ("name", "quick"),
    [("small-1.0.dist-info/RECORD", True), ("parts/inner.py", False), ("big.so", False)],
)
def test_a_file_that_was_written_into_is_noticed_and_comes_anew(name, quick, tmp_path, uv):
    spec = small(tmp_path, uv)
    main(spec, None)
    path = Path(spec["engine_dir"]) / PLANTED.format(MINOR, name)
    right = path.read_bytes()
    change_in_place(path)
    assert (difference(spec["engine_dir"], False) is None) == (not quick)
    assert str(path) in difference(spec["engine_dir"], True)
    # The file is a link to the one in uv's cache: that is wrong as well.
    assert main(spec | {"verify": "full"}, None)["engine"] == "installed"
    assert path.read_bytes() == right


@pytest.mark.parametrize(
    ("call", "before"), [("replace", 1), ("replace", 2), ("rename", 1), ("fsync", 3)]
)
def test_a_cut_about_the_stamp_leaves_an_environment_that_is_whole(call, before, tmp_path, uv):
    """The process ends as in a power cut: before the list, the stamp or the name is there."""
    spec = small(tmp_path, uv) | {"verify": "full"}
    main(spec, None)
    planted = Path(spec["engine_dir"]) / PLANTED.format(MINOR, "small.pth")
    planted.write_text("import os\n")
    pid = os.fork()
    if not pid:
        real, left = getattr(os, call), [before]

        def cut(*arguments):
            left[0] -= 1
            if not left[0]:
                os._exit(9)
            return real(*arguments)

        setattr(os, call, cut)
        main(spec, None)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    assert Path(spec["engine_dir"], "bin/python").exists()
    assert standing(spec) == (not planted.exists())
    main(spec, None)
    assert standing(spec)
    assert [path.name for path in (tmp_path / "engines").iterdir()] == ["small-1-key"]


def test_a_record_that_is_wrong_in_the_wheel_itself_hinders_nothing(tmp_path, uv, capfd):
    """Some wheels of CUDA engines are like that, and right by the lock's hash."""
    spec = small(tmp_path, uv)
    (wheel,) = (tmp_path / "wheels").iterdir()
    with zipfile.ZipFile(wheel) as packed:
        held = {name: packed.read(name) for name in packed.namelist()}
    with zipfile.ZipFile(wheel, "w") as packed:
        for name, content in (held | {"parts/inner.py": b"two = 2\n"}).items():
            packed.writestr(name, content)
    spec["requirements"] = {"small==1.0": [hashlib.sha256(wheel.read_bytes()).hexdigest()]}
    assert main(spec, None)["engine"] == "installed"
    assert "small not as packed: fetching anew" in capfd.readouterr().err
    assert main(spec | {"verify": "full"}, None)["engine"] == "kept"


def test_a_file_that_two_packages_bring_is_one_of_theirs(tmp_path):
    site = tmp_path / "lib/python3.11/site-packages"
    for package, content in (("one", b"1"), ("two", b"2")):
        info = site / f"{package}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "RECORD").write_text(f"build.py,{record_hash(content)},1\n")
    assert misfits(str(tmp_path), {PLANTED.format("3.11", "build.py"): sha256(b"2")}) == {}
    assert set(misfits(str(tmp_path), {})) == {"one", "two"}


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        (b"\n", set()),
        (b"alone\n", set()),
        (b"n\xff.py,,\n", set()),
        (b"a.py,sha256=zzzzz,1\n", {"one"}),
    ],
)
def test_a_record_that_is_badly_written_ends_nothing(line, wrong, tmp_path):
    info = tmp_path / "lib/python3.11/site-packages/one-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "RECORD").write_bytes(line)
    assert set(misfits(str(tmp_path), {PLANTED.format("3.11", "a.py"): sha256(b"")})) == wrong


def test_the_list_is_one_that_sha256sum_checks(tmp_path, uv):
    spec = small(tmp_path, uv)
    main(spec, None)
    check = ["sha256sum", "--check", "--strict", "--quiet", LIST]
    assert subprocess.run(check, cwd=spec["engine_dir"], check=False).returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_nothing_is_proven_as_root_for_want_of_the_services_user(tmp_path, monkeypatch):
    marked = tmp_path / "ran"
    python = tmp_path / "engine/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\ntouch {marked}\n")
    python.chmod(0o755)
    needed = "an engine is proven with the rights of user gone-user, needed setpriv: "
    for path, found in ((os.environ["PATH"], "setpriv: .*gone-user"), ("/gone", "no setpriv")):
        monkeypatch.setenv("PATH", path)
        with pytest.raises(NodeError, match=f"^{needed}{found}"):
            Prover(str(tmp_path / "engine"), str(tmp_path / "scratch"), "gone-user", 9).ask(
                "", 0, {}
            )
    assert not marked.exists()


def with_toolkit(spec, tmp_path) -> dict[str, Any]:
    """The spec with links to what its package holds, and to a driver's library in its place."""
    library = tmp_path / "driver/libcuda.so.1"
    library.parent.mkdir(exist_ok=True)
    library.write_bytes(b"")
    packages = f"lib/python{MINOR}/site-packages"
    kit = {
        "links": {"cuda/bin": packages, "cuda/lib64/libbig.so": f"{packages}/big.so"},
        "driver": {"cuda/lib64/libcuda.so": ["/nowhere/libcuda.so.1", str(library)]},
    }
    return spec | {"toolkit": kit}


def test_a_toolkit_of_links_stands_in_the_environment_and_is_vouched_for(tmp_path, uv):
    spec = with_toolkit(small(tmp_path, uv), tmp_path)
    assert main(spec, None)["engine"] == "installed"
    toolkit = Path(spec["engine_dir"]) / "cuda"
    assert (toolkit / "bin/small.py").is_file()
    assert not (toolkit / "bin").readlink().is_absolute()
    assert (toolkit / "lib64/libbig.so").stat().st_size > HASHED_BYTES
    assert (toolkit / "lib64/libcuda.so").readlink() == tmp_path / "driver/libcuda.so.1"
    assert main(spec, None)["engine"] == "kept"
    for name in ("bin", "lib64/libcuda.so"):
        (toolkit / name).unlink()
        assert main(spec, None)["engine"] == "installed", name
    (toolkit / "lib64/libbig.so").unlink()
    (toolkit / "lib64/libbig.so").symlink_to("/usr/lib/another")
    assert main(spec, None)["engine"] == "installed"
    (tmp_path / "driver/libcuda.so.1").unlink()
    with pytest.raises(NodeError, match=r"the driver's library libcuda\.so\.1 is not on this node"):
        main(spec, None)


def test_a_compiler_that_was_written_to_is_installed_anew(tmp_path, uv):
    spec = with_toolkit(small(tmp_path, uv), tmp_path)
    link = next(iter(spec["toolkit"]["links"].values()))
    spec["toolkit"]["links"]["cuda/bin"] = f"{link}/tools/bin"
    wheel = next((tmp_path / "wheels").iterdir())
    info = zipfile.ZipInfo("tools/bin/nvcc")
    info.external_attr = 0o755 << 16
    with zipfile.ZipFile(wheel, "a") as packed:
        packed.writestr(info, bytes(HASHED_BYTES + 1))
    spec["requirements"]["small==1.0"] = [hashlib.sha256(wheel.read_bytes()).hexdigest()]
    main(spec, None)
    assert main(spec, None)["engine"] == "kept"
    nvcc = Path(spec["engine_dir"]).resolve() / "cuda/bin/nvcc"
    change_in_place(nvcc)
    os.utime(nvcc)
    assert (
        difference(spec["engine_dir"], False)
        == f"{nvcc.resolve()} is not the file that was installed"
    )


def test_a_toolkit_that_its_wheels_do_not_bring_is_refused_with_the_lock(tmp_path, uv):
    spec = with_toolkit(small(tmp_path, uv), tmp_path)
    spec["toolkit"]["links"]["cuda/nvvm"] = "lib/nvvm"
    with pytest.raises(NodeError) as failed:
        main(spec, None)
    assert failed.value.error.startswith("locks/test.txt: its wheels bring no lib/nvvm")
    assert list(Path(spec["engine_dir"]).parent.iterdir()) == []


def test_a_ca_bundle_without_certificates_is_refused_as_uv_would_trust_others(tmp_path, uv):
    bundle = tmp_path / "ca.pem"
    bundle.write_text("no PEM\n")
    spec = small(tmp_path, copied(uv, tmp_path / "uv"))
    spec["index"] = {**spec["index"], "ca_bundle": str(bundle)}
    with pytest.raises(NodeError) as failed:
        main(spec, None)
    assert failed.value.error.startswith(f"ca_bundle {bundle} holds no certificate, and ")
    assert not Path(spec["engine_dir"]).parent.exists()


def test_a_stamp_of_another_shape_vouches_for_nothing(tmp_path, uv):
    spec = small(tmp_path, copied(uv, tmp_path / "uv"))
    main(spec, None)
    stamp = Path(spec["engine_dir"]) / "gpuwright.json"
    value = json.loads(stamp.read_text())
    for entry in value["files"].values():
        entry.pop("sha256")
    for text in (json.dumps(value | {"schema": 99}), json.dumps(value | {"files": [1]}), "[]"):
        stamp.write_text(text)
        assert main(spec, None)["engine"] == "installed"
        assert main(spec, None)["engine"] == "kept"


def test_a_uv_that_is_killed_is_one_sentence_and_leaves_nothing(tmp_path, uv):
    killed = tmp_path / "killed"
    killed.write_text(f'#!/bin/sh\n[ "$1" = pip ] && kill -9 $$\nexec {uv} "$@"\n')
    spec = small(tmp_path, killed)
    with pytest.raises(NodeError) as failed:
        main(spec, None)
    assert failed.value.error.startswith("locks/test.txt cannot be installed from ")
    assert "SIGKILL" in failed.value.error
    assert "`python_index`" in failed.value.hint
    assert list(Path(spec["engine_dir"]).parent.iterdir()) == []
    assert main(spec | {"uv": str(copied(uv, tmp_path / "uv"))}, None)["engine"] == "installed"


def test_too_little_room_is_refused_before_anything_is_made(tmp_path, uv):
    spec = {
        "key": "key",
        "engine_dir": str(tmp_path / "engines/vllm-1-key"),
        "lock": str(tmp_path / "lock"),
        "lock_id": "locks/test.txt",
        "uv": str(tmp_path / "uv"),
        "cache_dir": str(tmp_path / "cache"),
        "index": {},
        "requirements": {},
        "need_bytes": 1 << 60,
    }
    (tmp_path / "uv").write_bytes(uv.read_bytes()[:4])
    with pytest.raises(NodeError) as failed:
        main(spec, None)
    assert "needs 1073741824.0 GiB" in failed.value.error
    assert not (tmp_path / "engines").exists()
