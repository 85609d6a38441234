"""Locks are made and installed from a folder of wheels, by uv itself and without a network."""

import base64
import dataclasses
import hashlib
import sys
import zipfile

import pytest

from gpuwright.lock_rows import ConstraintRow
from tools.engine_environment import install
from tools.lock_proof import _check_versions
from tools.lock_resolve import LockError, LockInputs, lock_text, locked_versions, lowest, resolve
from tools.package_index import PackageIndex, UvError

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
INPUTS = LockInputs(
    engine="vllm",
    release="1.0",
    build_tag="cpu",
    architecture="x86_64",
    package="engine",
    glibc="2.28",
    pythons=(HERE,),
    constraints=(),
)


def row(package, specifier="", *, left_out=False):
    return ConstraintRow(
        engine="vllm",
        releases="",
        package=package,
        because="tested",
        sources=(),
        specifier=specifier,
        left_out=left_out,
    )


def wheel(folder, name, version, *, needs=(), tags="py3-none-any", body="", files=None) -> None:
    info = f"{name}-{version}.dist-info"
    files = {
        **({f"{name}.py": f"VERSION = {version!r}\n{body}"} if files is None else files),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        + "".join(f"Requires-Dist: {each}\n" for each in needs),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tags}\n",
    }
    record = "".join(
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip('=')},{len(text)}\n"
        for path, text in files.items()
    )
    with zipfile.ZipFile(folder / f"{name}-{version}-{tags}.whl", "w") as archive:
        for path, text in {**files, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            archive.writestr(path, text)


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "wheels"
    path.mkdir()
    wheel(path, "engine", "1.0", needs=["library>=1", "extra"])
    for version in ("1.0", "1.1"):
        wheel(path, "library", version)
    wheel(path, "extra", "3")
    return path


@pytest.fixture
def index(folder):
    return PackageIndex(offline=True, find_links=(str(folder),))


def resolved(inputs, index, tmp_path, base=None):
    return resolve(inputs, index, tmp_path, base or {})


def test_the_newest_is_taken_unless_a_lock_or_a_constraint_says_otherwise(index, tmp_path):
    def library(inputs, base=None):
        return resolved(inputs, index, tmp_path, base)[HERE]["library"].version

    pinned = dataclasses.replace(INPUTS, constraints=(row("library", "==1.0"),))
    assert library(INPUTS) == "1.1"
    assert library(INPUTS, {HERE: {"library": "1.0"}}) == "1.0"
    assert library(pinned) == "1.0"


def test_what_is_left_out_is_not_locked(index, tmp_path):
    inputs = dataclasses.replace(INPUTS, constraints=(row("extra", left_out=True),))
    assert set(resolved(inputs, index, tmp_path)[HERE]) == {"engine", "library"}
    assert set(resolved(INPUTS, index, tmp_path)[HERE]) == {"engine", "library", "extra"}


def test_a_package_with_a_source_alone_is_refused(folder, index, tmp_path):
    (folder / "extra-3-py3-none-any.whl").unlink()
    (folder / "extra-3.tar.gz").write_bytes(b"")
    with pytest.raises(LockError, match="extra"):
        resolved(INPUTS, index, tmp_path)


def test_the_lock_is_for_the_oldest_c_library_that_has_wheels_for_all(folder, index, tmp_path):
    (folder / "extra-3-py3-none-any.whl").unlink()
    wheel(folder, "extra", "3", tags="py3-none-manylinux_2_34_x86_64")
    with pytest.raises(LockError):
        resolved(INPUTS, index, tmp_path)
    inputs, resolution = lowest(INPUTS, index, tmp_path, {})
    assert inputs.glibc == "2.34"
    assert resolution[HERE]["extra"].version == "3"


def test_each_python_has_its_own_wheel_of_one_version(folder, index, tmp_path):
    (folder / "extra-3-py3-none-any.whl").unlink()
    for minor in ("11", "12"):
        wheel(folder, "extra", "3", tags=f"cp3{minor}-cp3{minor}-manylinux_2_28_x86_64")
    inputs = dataclasses.replace(INPUTS, pythons=("3.11", "3.12"))
    resolution = resolved(inputs, index, tmp_path)
    old, new = (resolution[python]["extra"] for python in inputs.pythons)
    assert old.version == new.version
    assert old.sha256 != new.sha256
    text = lock_text(inputs, resolution, "2026-11-30")
    assert text.count("extra==3 \\\n") == 1
    assert old.sha256 in text
    assert new.sha256 in text


def test_what_is_installed_is_the_lock_and_stays(index, tmp_path):
    lock, home = tmp_path / "lock.txt", tmp_path / "engines" / "one"
    text = lock_text(INPUTS, resolved(INPUTS, index, tmp_path), "2026-11-30")
    lock.write_text(text)

    def installation():
        return install("vllm", "1.0", None, home, lock, python=HERE, index=index)

    first = installation()
    assert first.seconds > 0
    expected = locked_versions(text, HERE)
    assert first.installed() == expected == {"engine": "1.0", "library": "1.1", "extra": "3"}
    _check_versions(first, expected)
    with pytest.raises(LockError, match=r"library: 1\.0 locked, 1\.1 installed"):
        _check_versions(first, expected | {"library": "1.0"})
    assert installation().seconds == 0
    pinned = resolved(INPUTS, index, tmp_path, {HERE: {"library": "1.0"}})
    lock.write_text(lock_text(INPUTS, pinned, "2026-11-30"))
    assert installation().installed()["library"] == "1.0"


def test_a_wheel_that_was_tampered_with_is_not_installed(folder, index, tmp_path):
    lock = tmp_path / "lock.txt"
    lock.write_text(lock_text(INPUTS, resolved(INPUTS, index, tmp_path), "2026-11-30"))
    wheel(folder, "library", "1.1", body="STOLEN = True\n")
    with pytest.raises(UvError, match="library"):
        install("vllm", "1.0", None, tmp_path / "e" / "one", lock, python=HERE, index=index)
    assert not (tmp_path / "e" / "one" / "installed").exists()


def test_a_wheel_that_an_index_no_longer_has_is_named(folder, index, tmp_path):
    lock = tmp_path / "lock.txt"
    lock.write_text(lock_text(INPUTS, resolved(INPUTS, index, tmp_path), "2026-11-30"))
    (folder / "library-1.1-py3-none-any.whl").unlink()
    with pytest.raises(UvError, match=r"library==1\.1"):
        install("vllm", "1.0", None, tmp_path / "e" / "one", lock, python=HERE, index=index)
