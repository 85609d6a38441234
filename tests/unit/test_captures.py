"""Rigs as they were captured: what their shell prints gives the document that lies beside it."""

import json
import shutil
from pathlib import Path

import pytest

from gpuwright import carry
from gpuwright.host import Host
from tests import captures

RIGS = captures.captured()
SHELLS = [("dash",), ("bash",), ("busybox", "sh")]


@pytest.mark.parametrize("rig", RIGS)
def test_a_document_is_what_its_capture_gives(rig: str, tmp_path: Path):
    """`python -m tests.captures` writes them anew."""
    kept = json.loads((captures.HOSTS / rig / "document.json").read_text(encoding="utf-8"))
    assert captures.document(rig, tmp_path / "node") == kept


@pytest.mark.parametrize("rig", RIGS)
def test_a_captured_rig_says_where_it_is_from_and_what_was_filled_in(rig: str):
    about = captures.about(rig)
    assert set(about) <= captures.ABOUT_KEYS
    assert about["what"].endswith(".")
    if about["source"] == "cited":
        assert about["url"].startswith("https://")
        assert about["printed"]
        assert about["read"]
    else:
        assert about["source"] == "invented"
        assert "url" not in about


def test_at_least_fifteen_rigs_are_cited_and_at_most_half_are_invented():
    cited = [rig for rig in RIGS if captures.about(rig)["source"] == "cited"]
    assert len({captures.about(rig)["url"] for rig in cited}) >= 15
    assert 2 * len(cited) >= len(RIGS) >= 40


@pytest.mark.parametrize("rig", RIGS)
def test_serial_numbers_and_uuids_are_zeroed(rig: str):
    for text in captures.texts(rig).values():
        for found in captures.UUID.findall(text):
            assert found.startswith("00000000-0000-0000-0000-"), found
        for serial in captures.SERIAL.findall(text):
            assert not serial.strip("0"), serial


@pytest.mark.parametrize("rig", RIGS)
def test_a_host_is_read_from_every_document(rig: str):
    kept = json.loads((captures.HOSTS / rig / "document.json").read_text(encoding="utf-8"))
    assert Host.from_document(kept).gpu_status == kept["gpus"]["status"]


@pytest.mark.parametrize("shell", SHELLS, ids=lambda words: words[0])
def test_every_shell_prints_the_same(shell: tuple[str, ...], tmp_path: Path):
    if shutil.which(shell[0]) is None:
        pytest.skip(f"{shell[0]} is not here")
    rig = "2x3090-nvlink-in-lxc-405"
    node = captures.build(tmp_path / "node", captures.texts(rig))
    found = carry.parse(captures.printed(node, shell))
    kept = json.loads((captures.HOSTS / rig / "document.json").read_text(encoding="utf-8"))
    # busybox has commands of its own, before those that are on PATH: date, df, dmesg, id.
    for device in found["gpus"]["devices"]:
        device["xids"] = None
    asked_of_commands = ("time", "uid", "disks", "filesystems", "clock")
    assert {k: v for k, v in found.items() if k not in asked_of_commands} == {
        k: v for k, v in kept.items() if k not in (*asked_of_commands, "about")
    }
