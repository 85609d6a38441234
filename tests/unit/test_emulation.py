"""A lock for another architecture is proven in a root of it, or is not made at all."""

import platform
import shutil
from pathlib import Path

import pytest

from gpuwright.lock_rows import LOCKS
from gpuwright.records import load_record
from tools import emulation, lock
from tools.emulation import HERE, Machine
from tools.lock_proof import asked_of
from tools.lock_resolve import LockError

OTHER = "aarch64" if platform.machine() == "x86_64" else "x86_64"


@pytest.fixture
def root(tmp_path):
    """A root that was unpacked on a machine whose own programs its links would lead to."""
    path = tmp_path / "root"
    for folder in ("usr/bin", "usr/sbin", "usr/lib", "etc"):
        (path / folder).mkdir(parents=True)
    linked = {"cc", "c++", "gcc", "which"}
    for name in (*set(emulation.PROGRAMS) - linked, "gcc-12", "which.debianutils"):
        (path / "usr/bin" / name).write_text("its own", encoding="utf-8")
    (path / "usr/lib/os-release").write_text('PRETTY_NAME="Another"', encoding="utf-8")
    (path / "etc/os-release").symlink_to("../usr/lib/os-release")
    (path / "usr/bin/gcc").symlink_to("gcc-12")
    (path / "usr/bin/which").symlink_to("/etc/alternatives/which")
    (path / "usr/bin/c++").symlink_to("/bin/sh")
    return path


@pytest.fixture
def registered(tmp_path, monkeypatch):
    """Registers what runs programs for OTHER; its lines."""

    def register(state="enabled", program=None):
        interpreter = tmp_path / "emulator"
        says = f"echo 'qemu-{OTHER} version 7.2.22 (Debian 1:7.2)'"
        interpreter.write_text(f"#!/bin/sh\n{program or says}\n", encoding="utf-8")
        interpreter.chmod(0o755)
        row = tmp_path / f"qemu-{OTHER}"
        row.write_text(f"{state}\ninterpreter {interpreter}\nflags: F\n", encoding="utf-8")
        monkeypatch.setattr(emulation, "BINFMT", tmp_path)

    return register


def test_a_programs_links_are_followed_inside_the_root_alone(root):
    machine = Machine(root=root)
    assert machine.program("gcc") == root / "usr/bin/gcc-12"
    (root / "usr/bin/ldconfig").rename(root / "usr/sbin/ldconfig")
    assert machine.program("ldconfig") == root / "usr/sbin/ldconfig"
    (root / "usr/bin/cat").unlink()
    (root / "usr/bin/cat").symlink_to("/bin/cat")
    assert machine.program("cat") is None


def test_a_name_that_a_packages_script_links_is_the_roots_program(root):
    machine = Machine(root=root)
    assert machine.program("cc") == root / "usr/bin/gcc-12"
    assert machine.program("c++") == root / "usr/bin/g++"
    assert machine.program("which") == root / "usr/bin/which.debianutils"


def test_without_a_root_programs_are_this_machines():
    assert HERE.program("sh") == Path(shutil.which("sh")).resolve()
    assert (HERE.program("no-such-program"), HERE.variables()) == (None, {})
    HERE.check(platform.machine())


def test_another_architecture_without_a_root_is_refused():
    with pytest.raises(LockError, match=f"{OTHER}: needed to prove .* found {platform.machine()}"):
        HERE.check(OTHER)


def test_a_root_whose_programs_nothing_runs_is_refused(root, registered, monkeypatch, tmp_path):
    monkeypatch.setattr(emulation, "BINFMT", tmp_path)
    with pytest.raises(LockError, match=f"qemu-{OTHER}: needed enabled, .* found none"):
        Machine(root=root).check(OTHER)
    registered("disabled")
    with pytest.raises(LockError, match="found disabled"):
        Machine(root=root).check(OTHER)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("usr/bin/gcc", "cc, gcc"),
        ("usr/bin/ld", "ld"),
        ("usr/bin/as", "as"),
        ("usr/bin/lscpu", "lscpu"),
        ("etc/os-release", "etc/os-release"),
        ("usr/lib/os-release", "etc/os-release, usr/lib/os-release"),
    ],
)
def test_what_a_root_lacks_is_not_taken_from_this_machine(root, registered, path, name):
    registered()
    Machine(root=root).check(OTHER)
    (root / path).unlink()
    with pytest.raises(LockError, match=f"needed its own {name} there, found none"):
        Machine(root=root).check(OTHER)


def test_a_roots_os_release_is_no_link_to_this_machines(root, registered):
    registered()
    (root / "etc/os-release").unlink()
    (root / "etc/os-release").symlink_to("/usr/lib/os-release")
    with pytest.raises(LockError, match="needed its own etc/os-release there"):
        Machine(root=root).check(OTHER)


def test_what_emulates_is_told_with_its_version(root, registered):
    registered()
    assert Machine(root=root).emulator(OTHER) == f"qemu-{OTHER} 7.2.22"


@pytest.mark.parametrize(
    ("program", "found"),
    [
        ("echo no such option >&2; exit 1", "exit status 1: no such option"),
        ("echo emulator", "emulator"),
        ("true", "exit status 0"),
    ],
)
def test_an_emulator_that_does_not_tell_its_version_is_named(
    root, registered, tmp_path, program, found
):
    registered(program=program)
    with pytest.raises(LockError, match=f"^{tmp_path}/emulator: needed .* found '{found}'$"):
        Machine(root=root).check(OTHER)


def test_an_emulator_that_is_gone_is_named(root, registered, tmp_path):
    registered()
    (tmp_path / "emulator").unlink()
    with pytest.raises(LockError, match=f"^{tmp_path}/emulator: needed .* found 'No such file"):
        Machine(root=root).check(OTHER)


def test_a_root_must_have_each_python_that_is_proven(root):
    with pytest.raises(LockError, match=f"Python 3.11: needed in {root} to prove a lock"):
        lock.check_pythons(["3.11"], Machine(root=root))


def test_a_lock_for_another_architecture_is_said_to_need_a_root(capsys):
    before = {path: path.stat().st_mtime_ns for path in LOCKS.iterdir()}
    assert lock.main(["vllm", "0.33.0", "--architecture", OTHER, "--find-links", "/none"]) == 1
    assert "--emulate ROOT" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in LOCKS.iterdir()} == before


def test_a_card_that_a_record_has_is_asked_all_of_it_and_another_one_thing():
    table = load_record("vllm", "0.33.0").table()
    cells = asked_of(["8.0", "11.0"], table)
    assert [cell.capability for cell in cells].count("11.0") == 1
    assert {cell for cell in cells if cell.capability == "8.0"} == {
        cell for cell in table if (cell.capability, cell.toolchain) == ("8.0", "nvcc")
    }
    assert len(asked_of(["8.0"], ())) == 1
