"""What a shared object holds code for is read from the headers of its fat binaries."""

import struct
import subprocess
import zipfile

import pytest

from tools.sm_scan import lines, scan, scan_wheel, targets_of

PTX, CODE = 1, 2


def entry(kind, number, content=b"\x7f" * 40):
    header = struct.pack("<HHIQIIHHI", kind, 0x101, 64, len(content), 0, 0, 0, 0, number)
    return header.ljust(64, b"\0") + content


def container(*entries):
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


@pytest.fixture
def library(tmp_path):
    def build(name, section, content):
        (tmp_path / "empty.c").write_text("int nothing;\n")
        (tmp_path / "section").write_bytes(content)
        path = tmp_path / "lib" / name
        path.parent.mkdir(exist_ok=True)
        subprocess.run(
            ["gcc", "-shared", "-o", str(tmp_path / "plain.so"), str(tmp_path / "empty.c")],
            check=True,
        )
        added = f"{section}={tmp_path / 'section'}"
        subprocess.run(
            ["objcopy", "--add-section", added, str(tmp_path / "plain.so"), str(path)], check=True
        )
        return path

    return build


def test_code_and_ptx_are_counted_by_card(library):
    first = container(entry(CODE, 80), entry(CODE, 86), entry(PTX, 80))
    second = container(entry(CODE, 120, b"\0" * 16))
    path = library("a.so", ".nv_fatbin", first + b"\0" * 24 + second)
    targets = targets_of(path)
    assert targets.code == {"8.0": 1, "8.6": 1, "12.0": 1}
    assert targets.ptx == {"8.0": 1}
    assert scan(path.parent) == {"a.so": targets}


def test_a_wheel_is_read_without_being_installed(library, tmp_path):
    path = library("a.so.1", ".nv_fatbin", container(entry(CODE, 80), entry(PTX, 120)))
    wheel = tmp_path / "engine-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(path, "engine/a.so.1")
        archive.writestr("engine/plain.py", "")
    assert scan_wheel(wheel) == {"engine/a.so.1": targets_of(path)}
    assert lines(scan_wheel(wheel)) == ["  engine/a.so.1: 8.0:1; PTX 12.0:1"]


def test_relocatable_code_counts_too(library):
    assert targets_of(library("a.so", "__nv_relfatbin", container(entry(CODE, 90)))).code == {
        "9.0": 1
    }


def test_another_section_and_another_file_hold_nothing(library, tmp_path):
    path = library("a.so", ".other", container(entry(CODE, 90)))
    (path.parent / "text.so").write_text("INPUT(libother.so)\n")
    (path.parent / "empty.so").write_bytes(b"")
    assert scan(path.parent) == {}


def test_a_header_that_is_cut_short_ends_the_reading(library):
    cut = container(entry(CODE, 90))[:50]
    assert targets_of(library("a.so", ".nv_fatbin", cut)).code in ({}, {"9.0": 1})
