"""Locks: files and rows agree, hold one wheel a package and Python, and are published proven."""

import dataclasses
import hashlib
import sys
from datetime import date

import pytest
import yaml
from packaging.specifiers import SpecifierSet

from gpuwright.load import load_matrix
from gpuwright.lock_rows import LOCKS, CompanionRule, ConstraintRow, LockRow
from gpuwright.strict import read_row
from tools import lock
from tools.lock_resolve import (
    LockError,
    LockInputs,
    Wheel,
    _rank,
    _tags,
    download_bytes,
    lock_text,
    locked_versions,
    moved_lines,
)
from tools.lock_row import row_text

MATRIX = load_matrix()
LOCKED = [row for row in MATRIX.locks if row.sha256]
INPUTS = LockInputs(
    engine="vllm",
    release="0.33.0",
    build_tag="cu130",
    architecture="x86_64",
    package="vllm",
    glibc="2.31",
    pythons=("3.11", "3.12"),
    constraints=(),
)


def text_of(row: LockRow) -> str:
    return (LOCKS / row.filename).read_text(encoding="utf-8")


def test_every_file_has_a_row_with_its_hash():
    assert {row.filename for row in LOCKED} == {path.name for path in LOCKS.glob("*.txt")}
    for row in LOCKED:
        assert hashlib.sha256(text_of(row).encode()).hexdigest() == row.sha256


@pytest.mark.parametrize("row", LOCKED, ids=lambda row: row.id)
def test_a_lock_holds_hashes_and_no_address(row):
    text = text_of(row)
    assert "://" not in text
    pins = [line for line in text.splitlines() if line[0] not in " #"]
    assert len(pins) >= row.packages
    for line in text.replace("\\\n", "").splitlines():
        assert line.startswith("#") or ("==" in line and "--hash=sha256:" in line), line


@pytest.mark.parametrize("row", LOCKED, ids=lambda row: row.id)
def test_a_lock_holds_its_release_and_keeps_to_the_constraints(row):
    rows = lock.constraints_for(MATRIX.constraints, row.engine, row.release, row.build_tag)
    for python in row.python:
        versions = locked_versions(text_of(row), python)
        assert versions[row.package] == row.release
        for constraint in rows:
            if constraint.left_out:
                assert constraint.package not in versions
            else:
                assert versions[constraint.package] in SpecifierSet(constraint.specifier)


@pytest.mark.parametrize("row", LOCKED, ids=lambda row: row.id)
def test_every_python_of_a_lock_was_asked_on_every_card_of_its_build(row):
    tags = [
        tag
        for release in MATRIX.releases
        if (release.engine, release.release) == (row.engine, row.release)
        for tag in release.build_tags
        if tag.tag == row.build_tag
    ]
    for python in row.python:
        proof = row.proof(python)
        assert date.fromisoformat(proof.date)
        assert all(proof.answers.values())
        for tag in tags:
            assert set(tag.carried(row.architecture) or ("cpu",)) == set(proof.answers)


def test_a_lock_of_a_python_that_was_not_proven_is_no_row():
    proven = LOCKED[0]
    unproven = dataclasses.replace(proven, python=(*proven.python, "3.15"))
    assert any("3.15" in fault for fault in unproven.faults())
    assert list(proven.faults()) == []


def test_what_a_lock_says_is_read_back():
    old, new, vllm, six = (
        Wheel(name=name, version=version, sha256=letter * 64, bytes=size, local=False)
        for name, version, letter, size in (
            ("numpy", "2.3.5", "a", 5),
            ("numpy", "2.4.6", "b", 6),
            ("vllm", "0.33.0", "d", 9),
            ("six", "1.17.0", "c", 7),
        )
    )
    resolution = {
        "3.11": {"numpy": old, "vllm": vllm},
        "3.12": {"numpy": new, "vllm": vllm, "six": six},
    }
    text = lock_text(INPUTS, resolution, "2026-11-30")
    assert locked_versions(text, "3.11") == {"numpy": "2.3.5", "vllm": "0.33.0"}
    assert locked_versions(text, "3.12") == {"numpy": "2.4.6", "vllm": "0.33.0", "six": "1.17.0"}
    assert download_bytes(resolution) == 22
    assert 'six==1.17.0 ; python_version == "3.12"' in text
    assert "vllm==0.33.0 \\\n" in text


def test_a_proof_holds_on_while_its_python_installs_the_same_wheels():
    old, new, rebuilt, six = (
        Wheel(name=name, version=version, sha256=letter * 64, bytes=5, local=False)
        for name, version, letter in (
            ("numpy", "2.3.5", "a"),
            ("numpy", "2.4.6", "b"),
            ("numpy", "2.3.5", "c"),
            ("six", "1.17.0", "d"),
        )
    )
    text = lock_text(INPUTS, {"3.11": {"numpy": old}, "3.12": {"numpy": new}}, "2026-11-30")
    assert moved_lines(text, "3.11", {"numpy": old}) == []
    assert moved_lines(text, "3.12", {"numpy": old}) == ["numpy"]
    assert moved_lines(text, "3.11", {"numpy": rebuilt}) == ["numpy"]
    assert moved_lines(text, "3.11", {"numpy": old, "six": six}) == ["six"]
    assert moved_lines(text, "3.11", {}) == ["numpy"]


def test_a_python_that_is_not_here_is_said_before_anything_is_resolved(capsys):
    for words in (["--python", "3.99"], ["--add-python", "3.99"]):
        assert lock.main(["vllm", "0.33.0", *words]) == 1
        said = capsys.readouterr().err
        assert said == "lock: Python 3.99: needed on PATH to prove a lock, found none\n"


def test_a_python_is_added_to_a_lock_that_is_there(capsys):
    assert lock.main(["tensorrt-llm", "1.2.1", "--glibc", "2.28", "--add-python", "3.12"]) == 1
    assert "nothing is locked that a Python could be added to" in capsys.readouterr().err


def test_the_wheel_nearest_to_the_oldest_node_is_taken():
    order = {tag: number for number, tag in enumerate(_tags(INPUTS, "3.11"))}
    names = [
        "a-1-py3-none-any.whl",
        "a-1-cp311-cp311-manylinux_2_34_x86_64.whl",
        "a-1-cp311-cp311-manylinux_2_28_x86_64.whl",
        "a-1-2-cp311-cp311-manylinux_2_28_x86_64.whl",
        "a-1-cp312-cp312-manylinux_2_28_x86_64.whl",
        "a-1-cp311-cp311-manylinux_2_28_aarch64.whl",
        "a-1-cp38-abi3-manylinux2014_x86_64.whl",
    ]
    ranks = {name: _rank(f"https://index.example/{name}", order) for name in names}
    fitting = sorted((rank, name) for name, rank in ranks.items() if rank is not None)
    assert [name for _, name in fitting] == [names[3], names[2], names[6], names[0]]


def test_a_constraint_has_a_version_or_leaves_the_package_out():
    rows = [row for row in MATRIX.constraints if row.left_out]
    assert rows
    for change in ({"left_out": False}, {"specifier": "==1"}):
        assert list(dataclasses.replace(rows[0], **change).faults())


@pytest.mark.parametrize("row", LOCKED, ids=lambda row: row.id)
def test_what_a_lock_holds_goes_together(row):
    for python in row.python:
        versions = locked_versions(text_of(row), python)
        assert [said for rule in MATRIX.companions if (said := rule.broken_by(versions))] == []


@pytest.mark.parametrize("rule", MATRIX.companions, ids=lambda rule: rule.packages[0])
def test_what_does_not_go_together_is_no_lock(rule):
    good, bad = rule.floor or "4.5.6", {"same_minor": "4.6.0", "at_least": "4.5.1"}
    versions = dict.fromkeys(rule.packages, good)
    if rule.rule is not CompanionRule.NEVER:
        assert rule.broken_by(versions) is None
        versions[rule.packages[-1]] = bad.get(rule.rule, "4.5.7")
    said = rule.broken_by(versions)
    assert f"{rule.packages[-1]}=={versions[rule.packages[-1]]}" in said
    assert rule.because in said
    wheels = {
        name: Wheel(name=name, version=version, sha256="a" * 64, bytes=1, local=False)
        for name, version in versions.items()
    }
    with pytest.raises(LockError, match=r"vllm-0\.33\.0-cu130-x86_64, Python 3\.11: .*companions"):
        lock.check_companions(INPUTS, {"3.11": wheels}, [rule])


def test_one_of_several_companions_alone_is_any_version():
    for rule in MATRIX.companions:
        alone = rule.broken_by({rule.packages[0]: "0.1"})
        assert (alone is None) == (rule.rule is not CompanionRule.NEVER)


def test_every_companion_is_of_a_package_that_a_lock_holds_or_must_not_hold():
    held = {
        name
        for row in LOCKED
        for python in row.python
        for name in locked_versions(text_of(row), python)
    }
    for rule in MATRIX.companions:
        assert bool(set(rule.packages) & held) == (rule.rule is not CompanionRule.NEVER)


def test_an_engine_of_a_vendors_index_is_not_locked_without_that_index(capsys):
    assert lock.main(["tensorrt-llm", "1.2.1", "--glibc", "2.28"]) == 1
    assert "needed --index URL, found none" in capsys.readouterr().err


def test_an_index_that_does_not_answer_is_named(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    nowhere = "http://127.0.0.1:9/simple"
    words = ["--default-index", nowhere, "--index", nowhere, "--scratch", str(tmp_path / "lock")]
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    asked = ["tensorrt-llm", "1.2.1", "--glibc", "2.40", "--python", here, *words]
    assert lock.main(asked) == 1
    said = capsys.readouterr().err
    assert f"tensorrt-llm-1.2.1-cu130-x86_64, Python {here}" in said
    assert nowhere in said


def test_the_tool_writes_rows_that_are_read_as_they_were():
    for row in LOCKED:
        faults: list[str] = []
        (data,) = yaml.safe_load(row_text(row))
        again = read_row(LockRow, data, "row", faults)
        assert not faults
        fields = [field.name for field in dataclasses.fields(LockRow) if field.name != "sources"]
        assert all(getattr(again, name) == getattr(row, name) for name in fields)


def test_every_constraint_is_of_a_release_that_has_a_lock():
    for row in MATRIX.constraints:
        assert isinstance(row, ConstraintRow)
        assert any(
            row in lock.constraints_for([row], each.engine, each.release, each.build_tag)
            for each in MATRIX.locks
        ), row
