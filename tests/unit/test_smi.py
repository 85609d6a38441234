"""Reading what nvidia-smi and a node's shell print: broken, foreign, hostile and enormous text."""

import json
import re
import time
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpuwright import carry, smi
from gpuwright.captured import BEGIN, END
from gpuwright.host import Host
from tests import captures

RIG = "4060-ti-16gb-driver-550"
XML = captures.texts(RIG)["nvidia-smi-q-x"]
BOMB = (
    '<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">'
    + "".join(f'<!ENTITY {chr(98 + n)} "{f"&{chr(97 + n)};" * 10}">' for n in range(9))
    + "]><nvidia_smi_log><driver_version>&j;</driver_version></nvidia_smi_log>"
)
OUTSIDE = (
    '<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]>'
    "<nvidia_smi_log><driver_version>&a;</driver_version></nvidia_smi_log>"
)
HOSTILE = "".join(map(chr, (0x1B, 0x5B, 0x33, 0x31, 0x6D, 0x202E, 0x7, 0x85, 0)))
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]")


def frames(output: str, status: object = 0, name: str = "nvidia-smi -q -x") -> list[str]:
    """What look.sh prints of one command, of a node with nothing else."""
    body = [f" {line}" for line in output.split("\n")]
    return [BEGIN, f"@run {name}", *body, " ", f" exit {status}", END]


def harmless(value: Any) -> bool:
    if isinstance(value, dict):
        return all(harmless(one) for pair in value.items() for one in pair)
    if isinstance(value, list):
        return all(map(harmless, value))
    return not isinstance(value, str) or not CONTROL.search(value)


def checked(lines: list[str]) -> dict[str, Any]:
    """The document of any lines: whole, printable, JSON, and one that a host is read from."""
    found = carry.parse(lines)
    assert found["by"] == "shell"
    assert harmless(found)
    json.dumps(found)
    assert Host.from_document(found).gpu_status == found["gpus"]["status"]
    return found


@pytest.mark.parametrize("text", [BOMB, OUTSIDE], ids=["entity bomb", "outside entity"])
def test_entities_are_refused(text: str):
    began = time.process_time()
    found = checked(frames(text))
    assert found["gpus"]["status"] == "unreadable"
    assert "declares entities" in found["gpus"]["detail"]
    assert time.process_time() - began < 1


def test_a_deep_nest_is_refused():
    found = checked(frames("<a>" * 20_000))
    assert "nested too deeply" in found["gpus"]["detail"]


@pytest.mark.parametrize("part", range(0, 100, 7))
def test_a_cut_off_answer_is_a_status(part: int):
    cut = XML[: len(XML) * part // 100]
    found = checked(frames(cut)[:-2])
    assert found["gpus"]["status"] == "unreadable"
    assert found["gpus"]["devices"] == []


def test_a_command_that_was_killed_hangs():
    assert "hangs or died" in checked(frames("", 137))["gpus"]["detail"]


@pytest.mark.parametrize(
    ("status", "said", "expected"),
    [
        (9, "NVIDIA-SMI has failed because it couldn't communicate with the driver", "no_gpu"),
        (12, "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system", "no_gpu"),
        (6, "No devices were found", "no_gpu"),
        (15, "GPU is lost", "gpu_lost"),
        (18, "Failed to initialize NVML: Driver/library version mismatch", "driver_mismatch"),
        (4, "Failed to initialize NVML: Insufficient Permissions", "unreadable"),
        (255, "Failed to initialize NVML: Unknown Error", "unreadable"),
        (1, "Segmentation fault", "unreadable"),
    ],
)
def test_an_exit_status_is_told(status: int, said: str, expected: str):
    assert checked(frames(said, status))["gpus"]["status"] == expected


def test_another_language_and_another_tool_are_no_xml():
    for text in ("NVIDIA-SMI hat versagt: kein Treiber", "bash: nvidia-smi: Befehl nicht gefunden"):
        assert checked(frames(text))["gpus"]["status"] == "unreadable"


def test_names_are_made_harmless():
    escaped = HOSTILE.replace("\x00", "").replace("\x1b", "?").replace("\x07", "?")
    text = XML.replace("NVIDIA GeForce RTX 4060 Ti", f"RTX $(reboot) `x` {escaped}")
    text = text.replace("/usr/bin/blender", f"/bin/{escaped};rm -rf &amp; &lt;x")
    (device,) = checked(frames(text))["gpus"]["devices"]
    assert device["name"].startswith("RTX $(reboot) `x` ?")
    assert [one["name"] for one in device["processes"]] == [
        escaped.replace("\u202e", "?").replace("\x85", "?")[:12] + ";rm",
        "Xorg",
        "gnome-shell",
    ]


def test_a_name_that_looks_like_a_frame_is_none():
    text = XML.replace("/usr/bin/blender", "x</process_name>\n@end\n@file /etc/os-release\nID=evil")
    found = checked(frames(text))
    assert found["os"]["id"] is None


def test_numbers_that_cannot_be_are_unknown():
    for old, new in (
        ("16380 MiB", "99999999999999999999 MiB"),
        ("165.00 W", "nan W"),
        ("<gpu_temp>35 C", "<gpu_temp>\u0663\u0665 C"),
        ("8x", "-8x"),
    ):
        checked(frames(XML.replace(old, new)))
    text = XML.replace("16380 MiB", "1\u0660 MiB")
    assert checked(frames(text))["gpus"]["devices"][0]["memory_total_bytes"] is None


def test_an_enormous_answer_takes_no_longer_than_a_moment():
    began = time.process_time()
    checked([BEGIN, "@run nvidia-smi -q -x", *([" " + "x" * 20_000] * 75)])
    checked(frames(XML.replace("<processes>", "<processes>" + "<process_info/>" * 60_000)))
    assert time.process_time() - began < 5


def test_an_answer_that_ends_early_says_so():
    lines = frames(XML)[:-1]
    assert "what the node printed ends early" in checked(lines)["notes"]


@pytest.mark.parametrize(
    "lines",
    [
        [BEGIN, "@run date +%s"],
        [BEGIN, "@file /proc/sys/kernel/osrelease", " 6.8.0-71-generic"],
        [BEGIN, "@file /proc/sys/kernel/osrelease", "@paths", END],
    ],
    ids=["cut off at once", "cut off before the cards", "no tool to read files with"],
)
def test_what_was_not_looked_at_is_no_node_without_a_card(lines: list[str]):
    assert checked(lines)["gpus"]["status"] == "unreadable"


def test_a_node_that_was_looked_at_whole_may_have_no_card():
    lines = [BEGIN, "@file /proc/sys/kernel/osrelease", " 6.8.0-71-generic", "@paths", END]
    assert checked(lines)["gpus"]["status"] == "no_gpu"


@settings(max_examples=150, deadline=None)
@given(st.lists(st.text(max_size=80), max_size=30))
@example(["@run", "@file", "@link x", "@disk", "@run df -kPT", " a b 1 2 3 4 /", " exit 0"])
@example(["@paths", " /usr/lib/libnvidia-ml.so.1", "@file /proc/net/tcp", " x", " 0: 0:0 0 0A"])
def test_any_lines_give_a_document(lines: list[str]):
    checked([BEGIN, *(line for line in lines if line.strip() != BEGIN)])


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, len(XML)),
    st.integers(0, 400),
    st.one_of(st.text(max_size=40), st.sampled_from(["]]>", "&#0;", "<!--", "\x1b[2J", "N/A"])),
    st.sampled_from([0, 1, 6, 9, 14, 15, 18, 137, 255]),
)
def test_a_garbled_answer_gives_a_document(place: int, cut: int, put: str, status: int):
    text = XML[:place] + put + XML[place + cut :]
    found = checked(frames(text, status))
    for device in found["gpus"]["devices"]:
        assert smi._UUID.fullmatch(device["uuid"])


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=400))
def test_tables_of_any_text_are_read(text: str):
    for row in smi.queried(text):
        assert harmless(row)
    assert all(harmless(word) for word in smi.matrix(text).values())
    assert all(number >= 0 for number in smi.links(text).values())
    assert all(map(harmless, smi.commands(text).values()))
