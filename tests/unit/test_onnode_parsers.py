"""Texts of other people's making: the right ones are read, the wrong ones harm nobody."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwright.onnode.answering import models
from gpuwright.onnode.disks import _mounted
from gpuwright.onnode.dpkg import versions
from gpuwright.onnode.envfile import api_key, secrets, variables
from gpuwright.onnode.listeners import reached, sockets, stranger, unit_of
from gpuwright.onnode.machine import os_release
from gpuwright.onnode.outcome import clean
from gpuwright.onnode.owned import accounts
from gpuwright.onnode.service import environment, properties, state
from gpuwright.onnode.sources import index_links

STATUS = b"""Package: cmake
Status: install ok installed
Architecture: amd64
Version: 3.25.1-1

Package: held
Status: hold ok installed
Version: 1:2.0

Package: gone
Status: deinstall ok config-files
Version: 1.0

Package: half
Status: install reinstreq half-installed
Version: 1.0

Package: libc6
Status: deinstall ok config-files
Architecture: i386
Version: 2.35

Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9
Description: not a
 Package: sneaky
 Status: install ok installed
"""
TCP = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0  0 1601 1 0
   1: 0100007F:1F91 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  0  0 1602 1 0
   2: 00000000000000000000000001000000:0016 00000000000000000000000000000000:0 0A 0 0 0 0 0 77 1
"""


def test_a_package_is_installed_when_its_state_is_whatever_was_wished():
    names = ["cmake", "held", "gone", "half", "libc6", "sneaky", "absent", "cma"]
    assert versions(STATUS, names) == {
        "cmake": "3.25.1-1",
        "held": "1:2.0",
        "gone": None,
        "half": None,
        "libc6": "2.36-9",
        "sneaky": None,
        "absent": None,
        "cma": None,
    }


def test_listening_sockets_are_read_with_their_addresses():
    assert sockets(TCP) == [("127.0.0.1", 8080, "1601"), ("::1", 22, "77")]


def row(address: str, unit: str | None = "a.service", pid: int | None = 7) -> dict[str, object]:
    return {"port": 80, "address": address, "pid": pid, "process": "x", "unit": unit}


@pytest.mark.parametrize(
    ("asked", "listening", "reaching"),
    [
        ("127.0.0.1", ["127.0.0.1", "10.0.0.1", "0.0.0.0"], ["127.0.0.1"]),
        ("127.0.0.1", ["10.0.0.1", "0.0.0.0"], ["0.0.0.0"]),
        ("127.0.0.1", ["::"], ["::"]),
        ("127.0.0.1", ["::ffff:127.0.0.1"], ["::ffff:127.0.0.1"]),
        ("127.0.0.1", ["10.0.0.1", "::1"], []),
        ("::1", ["0.0.0.0", "::"], ["::"]),
        ("0:0::1", ["::1"], ["::1"]),
        ("fe80::1%eth0", ["fe80::1"], ["fe80::1"]),
    ],
)
def test_a_connection_reaches_the_listener_that_the_kernel_chooses(
    asked: str, listening: list[str], reaching: list[str]
):
    found = reached([row(address) for address in listening], asked, 80)
    assert [one["address"] for one in found] == reaching
    assert reached([row(address) for address in listening], asked, 81) == []


def test_whoever_is_not_the_unit_is_a_stranger_and_so_is_who_cannot_be_told():
    def who(*rows: dict[str, object]) -> str | None:
        return stranger(list(rows), "127.0.0.1", 80, "a.service")

    assert who() is None
    assert who(row("127.0.0.1")) is None
    assert who(row("0.0.0.0", "b.service")) == (
        "port 80 is held by x (pid 7, b.service), not by a.service"
    )
    assert who(row("127.0.0.1", None)) == "port 80 is held by x (pid 7), not by a.service"
    untold = "who listens on 127.0.0.1:80 cannot be told"
    assert who(row("127.0.0.1"), row("127.0.0.1", None, None)) == untold
    assert stranger(None, "127.0.0.1", 80, "a.service") == untold
    assert stranger(None, "::1", 80, "a.service") == "who listens on [::1]:80 cannot be told"


def test_a_process_belongs_to_the_innermost_service():
    nested = "0::/user.slice/user-0.slice/user@0.service/app.slice/llm.service/sub"
    assert unit_of(nested) == "llm.service"
    assert unit_of("9:name=systemd:/system.slice/nginx.service\n0::/\n") == "nginx.service"
    assert unit_of("4:memory:/system.slice/other.service") is None


def test_os_release_is_read_with_and_without_quotes():
    text = 'ID=debian\nVERSION_ID="12"\nPRETTY_NAME=\'Debian "12"\'\n# note\nbroken line\n'
    found = os_release(text)
    assert found == {"ID": "debian", "VERSION_ID": "12", "PRETTY_NAME": 'Debian "12"'}


def test_only_the_one_variable_of_an_environment_is_taken():
    data = b"SECRET=x\0GPUWRIGHT_PLAN=abc\x1b[31m\0OTHER=y"
    assert environment(data) == {"GPUWRIGHT_PLAN": "abc?[31m"}


def test_the_longest_mount_point_wins_and_of_equals_the_last():
    table = (
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "23 22 0:5 / /var/lib\\040x rw shared:1 - xfs /dev/sdb rw\n"
        "24 22 0:6 / /var/lib\\040x rw - zfs tank rw\n"
    )
    assert _mounted("/var/lib x/models", table)["type"] == "zfs"
    assert _mounted("/var/lib xy", table)["mount"] == "/"


def test_an_api_key_is_found_by_the_ending_of_its_name():
    assert api_key("# c\nHF_HOME=/x\nLLAMA_API_KEY='abc'\n") == "abc"
    assert api_key("LLAMA_API_KEY=\n") is None
    assert api_key("NOT_A_KEY_AT_ALL=1") is None


def test_the_first_of_llama_cpps_keys_is_asked_with_and_none_is_shown():
    assert api_key("LLAMA_API_KEY=first-key,second-key") == "first-key"
    assert api_key("VLLM_API_KEY=one,key") == "one,key"
    text = "LLAMA_API_KEY=first-key,second-key\nHF_HOME=/x\n"
    assert secrets(text) == ["first-key,second-key", "second-key", "first-key"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("K=abc", "abc"),
        ("K=abc\r\nL=1\r\n", "abc"),
        (" K = abc  \n", "abc"),
        ("K='a b'  ", "a b"),
        ('K="a b"', "a b"),
        ("K='it''s'x", "itsx"),
        ("K=\"a\"'b' c", "abc"),
        ("K=a'b'", "a'b'"),
        ('K="a\\"b\\c"', 'a"b\\c'),
        ("K='a\\b'", "a\\b"),
        ("K=a\\ b\\ \nL=1", "a b "),
        ("K=a\\\nb\nL=1", "ab"),
        ('K="a\\\nb"', "ab"),
        ('K="a\nL=2\n"\nL=1', "a\nL=2\n"),
        ("K=abc # no comment", "abc # no comment"),
        ("#K=x\n;K=y\nK=abc", "abc"),
        ("K=old\nK=", ""),
        ('K="never closed\nL=2', "never closed\nL=2"),
        ("K=", ""),
    ],
)
def test_an_environment_file_is_read_as_systemd_reads_it(text: str, value: str):
    found = variables(text)
    assert found["K"] == value
    assert found.get("L") in (None, "1")


def test_what_is_no_assignment_is_passed_over():
    assert variables("export K=1\n1K=2\nK-X=3\nK\n=4\nÄ=5\nL=6") == {"L": "6"}


def test_models_are_the_ids_of_the_list():
    assert models(b'{"data": [{"id": "a"}, {"id": "b\\u0007"}]}') == ["a", "b?"]
    assert models(b'{"data": 7}') is None


def test_a_unit_names_the_files_that_it_is_made_of():
    shown = properties(
        "FragmentPath=/etc/systemd/system/a.service\n"
        "DropInPaths=/run/systemd/system/a.service.d/x.conf /etc/a\\x20b.conf\n"
    )
    found = state("a.service", shown)
    assert found["fragment"] == "/etc/systemd/system/a.service"
    assert found["drop_ins"] == ["/run/systemd/system/a.service.d/x.conf", "/etc/a b.conf"]
    silent = state("a.service", properties("FragmentPath=\nDropInPaths=\n"))
    assert (silent["fragment"], silent["drop_ins"]) == (None, [])
    assert state("a.service", {})["drop_ins"] is None


def test_hostile_characters_do_not_reach_a_terminal():
    assert clean("a\x1b[2Jb\u202ec\x00\x9bd\ud800é") == "a?[2Jb?c??d?é"


@given(st.binary(max_size=400), st.lists(st.text(max_size=12), max_size=3))
def test_any_dpkg_status_gives_a_version_or_none(data: bytes, names: list[str]):
    found = versions(data, names)
    assert all(value is None or isinstance(value, str) for value in found.values())


@given(st.lists(st.sampled_from(STATUS.split(b"\n")), max_size=40))
def test_shuffled_dpkg_lines_never_install_what_was_removed(lines: list[bytes]):
    found = versions(b"\n".join(lines), ["absent"])
    assert found == {"absent": None}


@given(st.text(alphabet="0123456789ABCDEFabcdef: \n-x", max_size=300))
def test_any_socket_table_gives_a_list(text: str):
    for address, port, _ in sockets("head\n" + text):
        assert address
        assert 0 <= port <= 65535


@given(st.text(max_size=300))
def test_any_text_file_is_survived(text: str):
    data = text.encode("utf-8", "surrogatepass")
    os_release(text)
    unit_of(text)
    accounts(text)
    variables(text)
    environment(data)
    models(data)
    _mounted("/x", text)
    state("u", properties(text))
    state("u", {"DropInPaths": text, "FragmentPath": text})
    secrets(text)
    assert "\n" not in clean(text)


@given(st.recursive(st.none() | st.integers() | st.text(max_size=5), st.lists, max_leaves=6))
def test_any_json_as_an_index_page_is_links_or_a_refusal(value: object):
    try:
        found = index_links(json.dumps({"files": value}).encode(), is_json=True)
    except Exception as refusal:
        assert type(refusal).__name__ == "SourceError"
    else:
        assert found == {}


@given(st.text(max_size=200))
def test_any_html_as_an_index_page_is_links(text: str):
    assert isinstance(index_links(text.encode("utf-8", "replace"), is_json=False), dict)
