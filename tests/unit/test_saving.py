"""Documents of a run as files: each whole, private, named after its host, and good to decide on."""

import json
import re
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploys.steps.saving import file_name, words_of
from gpuwright import cli
from gpuwright.findings import findings, unseen
from gpuwright.host import Host
from gpuwright.load import load_findings, load_matrix
from gpuwright.redact import redacted
from gpuwright.selection import decide
from gpuwright.want import Want
from tests.unit.test_findings import changed, healthy
from tests.unit.test_rehearsal import cpu_rig, fake, pyinfra, written
from tools import golden

FACTS = "deploys/facts.py"
GONE = ("gone", {"ssh_hostname": "127.0.0.1", "ssh_port": 9})


def rig(name: str, document: dict[str, Any], **data: Any) -> tuple[str, dict[str, Any]]:
    return fake(name, json.dumps(document), **data)


def into(folder: Path, *more: str) -> list[str]:
    return [word for each in (f"facts_cache={folder}", *more) for word in ("--data", each)]


def test_every_node_s_document_is_a_private_file_that_is_decided_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "cache"
    hosts = written(tmp_path, rig("box", golden.document("1x3090")), cpu_rig("cpu"))
    done = pyinfra("-y", hosts, FACTS, *into(cache))
    assert done.status == 0, done.text
    assert sorted(path.name for path in cache.iterdir()) == ["@fake%2Fbox.json", "@fake%2Fcpu.json"]
    path = cache / "@fake%2Fbox.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_text()) == golden.document("1x3090")
    assert f"saved {path}" in done.text
    assert cli.main(["explain", "--host", str(path), "--model", "qwen3.6-27b"]) == 0
    assert cli.main(["doctor", "--host", str(path)]) == 0
    capsys.readouterr()


def test_an_unreached_and_a_silent_host_are_named_and_the_others_saved(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    hosts = written(tmp_path, cpu_rig("good"), fake("odd", "hello"), GONE)
    done = pyinfra("-y", hosts, FACTS, *into(cache))
    assert done.status != 0
    assert "Traceback" not in done.text
    assert [path.name for path in cache.iterdir()] == ["@fake%2Fgood.json"]
    assert "2 hosts of 3 without a saved document" in done.text
    assert "gone: not reached over SSH" in done.text
    assert "@fake/odd: the node gave no answer; it said: hello" in done.text


def test_a_want_that_is_wrong_does_not_keep_a_document_from_being_saved(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    done = pyinfra("-y", written(tmp_path, cpu_rig(gpuwright={"modle": 1})), FACTS, *into(cache))
    assert done.status == 0, done.text
    assert "looked at as if nothing were wanted: modle: unknown key" in done.text
    assert (cache / "@fake%2Fcpu.json").exists()


def test_a_directory_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("")
    done = pyinfra("-y", written(tmp_path, cpu_rig()), FACTS, *into(place / "cache"))
    assert done.status != 0
    assert "Traceback" not in done.text
    assert f"@fake/cpu: {place / 'cache'}: Not a directory" in done.text


def test_a_directory_may_lie_in_ones_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    done = pyinfra("-y", written(tmp_path, cpu_rig("cpu")), FACTS, *into(Path("~/cache")))
    assert done.status == 0, done.text
    assert (tmp_path / "home/cache/@fake%2Fcpu.json").exists()


def test_word_of_redact_is_checked(tmp_path: Path) -> None:
    done = pyinfra("-y", written(tmp_path, cpu_rig()), FACTS, *into(tmp_path / "c", "redact=ture"))
    assert done.status != 0
    assert "redact: 'ture', needed true or false" in done.text
    assert not (tmp_path / "c").exists()


def test_redacted_documents_are_saved_where_that_is_asked_for(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    document = changed({"gpus.devices[0].uuid": "GPU-deadbeef-1234-4321-8888-aabbccddeeff"})
    done = pyinfra(
        "-y", written(tmp_path, rig("box", document)), FACTS, *into(cache, "redact=true")
    )
    assert done.status == 0, done.text
    assert "deadbeef" not in (cache / "@fake%2Fbox.json").read_text()


@pytest.mark.parametrize(
    "host",
    ["../../etc/passwd", "a/b", "..", ".hidden", "x" * 400, "a\x00b", "-rf", "tür", "a b%2F"],
)
def test_a_host_s_name_is_a_safe_file_name(host: str) -> None:
    name = file_name(host)
    assert re.fullmatch(r"[\w@%~-][\w@%.~-]*", name, re.ASCII)
    assert len(name) < 255


def test_two_hosts_never_share_a_file() -> None:
    names = ["a/b", "a%2Fb", "a_b", "A/b", ".a", "%2Ea", "x" * 200 + "a", "x" * 200 + "b"]
    assert len({file_name(name) for name in names}) == len(names)


# Redaction

PRIVATE = {
    "gpus.devices[0].uuid": "GPU-deadbeef-1234-4321-8888-aabbccddeeff",
    "gpus.detail": "card GPU-DEADBEEF-1234-4321-8888-AABBCCDDEEFF of tower.lan at 192.168.7.9",
    "notes": [
        "disks: /home/alice/models: Permission denied",
        "who: alice@tower.lan from fe80::1234:5678, 00:1b:21:3c:4d:5e",
        "board: serial number: 1320220012345",
        "tower: cannot be resolved; 00-1B-21-3C-4D-5F; https://bob:hunter22@git.corp.example/x",
        "/export/home/alice/x: no such file",
    ],
    "os.identity": "feedfacefeedface",
    "ports[0].address": "192.168.7.9",
    "settings.proxies": [{"name": "http_proxy", "value": "http://proxy.corp.example:3128"}],
    "settings.apt_mirrors": ["deb.debian.org", "mirror.corp.example"],
    "settings.pip_index": "mirror.corp.example",
    "ours.engines[0].path": "/home/alice/secret-project/engine",
    "ours.files": {
        "/home/alice/secret-project": {
            "type": "dir",
            "mode": "0755",
            "owner": "alice",
            "group": "staff",
        },
        "/etc/gpuwright/services/llm.env": {
            "type": "file",
            "mode": "0600",
            "owner": "root",
            "group": "root",
            "sha256": "ab" * 32,
            "variables": ["LLAMA_API_KEY"],
        },
        "/var/lib/gpuwright": {"type": "dir", "mode": "0755", "owner": "root", "group": "root"},
    },
}
SECRETS = (
    "deadbeef", "alice", "tower", "192.168", "1234:5678", "1320220012345", "1b:21", "feedface",
    "corp.example", "secret-project", "staff", "1b-21", "bob", "hunter22", "ab" * 32,
)  # fmt: skip


def test_nothing_that_names_a_machine_or_its_people_is_left() -> None:
    names = words_of("@ssh/alice@tower.lan")
    left = json.dumps(redacted(changed(PRIVATE), names=names)).lower()
    assert [word for word in SECRETS if word in left] == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tower.lan", ["tower.lan", "tower"]),
        ("@ssh/alice@tower.lan", ["@ssh/alice@tower.lan", "alice", "tower.lan", "tower"]),
        ("192.168.7.9", ["192.168.7.9"]),
        ("fe80::1", ["fe80::1"]),
        ("@local", ["@local"]),
    ],
)
def test_a_machine_is_known_by_the_parts_of_its_name(name: str, words: list[str]) -> None:
    assert words_of(name) == words


def test_what_is_replaced_is_replaced_alike() -> None:
    found = redacted(changed(PRIVATE), names=("tower.lan",))
    assert found["gpus"]["devices"][0]["uuid"].split("-", 1)[1] in found["gpus"]["detail"]
    (place,) = (path for path in found["ours"]["files"] if path.startswith("/home/"))
    assert found["ours"]["engines"][0]["path"].startswith(f"{place}/")
    assert found["ports"][0]["address"] in found["gpus"]["detail"]
    assert found["settings"]["pip_index"] == found["settings"]["apt_mirrors"][1]
    uuids = [device["uuid"] for device in found["gpus"]["devices"]]
    assert len(set(uuids)) == len(uuids)


def test_what_names_nobody_stays() -> None:
    document = changed({"os.kernel": "5.15.167.4-microsoft-standard-WSL2"})
    found = redacted(document)
    for key in ("os", "gpus"):
        found[key].pop("identity", None)
        document[key].pop("identity", None)
    for device in (*found["gpus"]["devices"], *document["gpus"]["devices"]):
        device["uuid"] = None
    assert found == document


ODD = st.sampled_from(
    [10**4000, -1, float("inf"), float("nan"), "\x1b[2J", "{.index}", "9" * 5000, "\u0663.\u0663"]
)
JSON = st.recursive(
    ODD | st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def spoilt(value: Any, way: list[int], by: Any) -> Any:
    """`value` with what lies at `way` in it (of each mapping or list, which one) put to `by`."""
    if not way or not isinstance(value, (dict, list)) or not value:
        return by
    key = sorted(value)[way[0] % len(value)] if isinstance(value, dict) else way[0] % len(value)
    found = dict(value) if isinstance(value, dict) else list(value)
    found[key] = spoilt(value[key], way[1:], by)
    return found


@given(way=st.lists(st.integers(0, 50), min_size=1, max_size=5), by=JSON)
@settings(max_examples=100, deadline=None)
def test_any_value_anywhere_is_told_of_and_redacted(way: list[int], by: Any) -> None:
    document = spoilt(healthy(), way, by)
    for each in (document, redacted(document, names=("box",))):
        for found in findings(each, load_findings()):
            assert all(sentence.isprintable() for sentence in (*found.says, found.remedy))
        unseen(each, load_findings())


@pytest.mark.parametrize("rig", golden.rigs())
def test_a_redacted_rig_is_decided_on_alike(rig: str) -> None:
    document = golden.document(rig)
    found = redacted(document, names=("box", "root"))
    before, after = (Host.from_document(each) for each in (document, found))
    assert [gpu.name for gpu in after.gpus] == [gpu.name for gpu in before.gpus]
    assert (after.os_id, after.driver_version, after.disks) == (
        before.os_id,
        before.driver_version,
        before.disks,
    )


def test_a_redacted_node_is_decided_on_alike() -> None:
    want = Want.from_data({"model": "qwen3.6-27b"})
    plans = [
        decide(Host.from_document(each), want, load_matrix())
        for each in (healthy(), redacted(healthy()))
    ]
    assert [plan.release for plan in plans] == [plans[0].release] * 2  # type: ignore[union-attr]
    assert plans[0].memory == plans[1].memory  # type: ignore[union-attr]
