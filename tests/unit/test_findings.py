"""What is wrong with a box is told, with its remedy; a box with nothing wrong is told nothing."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest

from gpuwright import cli
from gpuwright.doctor import diagnose, verdict
from gpuwright.finding_rows import Severity
from gpuwright.findings import findings, unseen
from gpuwright.host import Host
from gpuwright.load import load_findings, load_matrix
from gpuwright.node_rules import node_reasons
from gpuwright.onnode.condition import FAILING_XIDS
from gpuwright.refusals import MatrixError
from gpuwright.strict import read_yaml
from gpuwright.want import Want
from tests.unit.test_docs import DOCS, quoted, tables
from tools import golden

CASES = Path(__file__).parents[1] / "cases"
ROWS = {row.id: row for row in load_findings()}
FAULTS: list[str] = []
CHANGES: dict[str, dict[str, Any]] = read_yaml(CASES / "findings.yaml", "findings", FAULTS)
KNOWN = {quoted(row[0]) for row in tables(DOCS / "node-document.md", "key")}


def healthy() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((CASES / "healthy.json").read_text())
    return document


def put(document: Any, path: str, value: Any) -> None:
    """Set what is at `gpus.devices[0].xids` or `disks[/a/path].noexec`; it must be there."""
    *way, last = re.findall(r"\[([^\]]+)\]|([^.\[\]]+)", path)
    for index, key in way:
        document = document[int(index) if index.isdigit() else index or key]
    assert last[1] in document, path
    document[last[1]] = value


def changed(changes: dict[str, Any]) -> dict[str, Any]:
    document = healthy()
    for path, value in changes.items():
        put(document, path, copy.deepcopy(value))
    return document


def ids(document: dict[str, Any]) -> list[str]:
    return [each.id for each in findings(document, tuple(ROWS.values()))]


def test_nothing_is_found_on_a_healthy_node_of_which_everything_is_known() -> None:
    assert ids(healthy()) == []
    assert unseen(healthy(), ROWS.values()) == ()


def test_every_finding_has_its_case_and_no_other() -> None:
    assert FAULTS == []
    assert set(CHANGES) == set(ROWS)


@pytest.mark.parametrize("name", CHANGES)
def test_a_finding_is_told_for_its_case_with_every_value_known(name: str) -> None:
    (found,) = [
        each for each in findings(changed(CHANGES[name]), tuple(ROWS.values())) if each.id == name
    ]
    assert found.severity is ROWS[name].severity
    assert found.says
    assert not re.search(r"[{}]|unknown", "".join((*found.says, found.remedy)))


@pytest.mark.parametrize("name", CHANGES)
def test_a_finding_needs_each_change_of_its_case(name: str) -> None:
    for path in CHANGES[name]:
        rest = {one: value for one, value in CHANGES[name].items() if one != path}
        assert name not in ids(changed(rest)), path


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_not_known_is_no_finding(name: str) -> None:
    # Not even one of what is there: nobody may be told of a fault that nobody saw.
    document = golden.document("1x3090")
    dark = {
        key: None if key not in ("schema", "gpus", "ours") else document[key] for key in document
    }
    assert name not in ids(dark)


@pytest.mark.parametrize("name", ROWS)
def test_every_path_of_a_finding_is_on_the_page_of_the_document(name: str) -> None:
    for path in ROWS[name].paths():
        path = path.replace("disks[].key", "disks.*.mount").replace("disks[]", "disks.*")
        path = re.sub(r"^packages\.[\w-]+$", "packages.*", path)
        known = any(
            each == path or re.match(rf"{re.escape(path)}(\.|\[\]|$)", each) for each in KNOWN
        )
        assert known, path


def test_a_card_s_finding_does_not_hide_another_card_s() -> None:
    document = changed(
        {"gpus.devices[0].xids": [64], "gpus.devices[1].ecc.uncorrected": 3}
        | {"gpus.devices[0].ecc.uncorrected": 9}
    )
    told = {each.id: each.says for each in findings(document, tuple(ROWS.values()))}
    assert set(told) == {"xid-64-repair-failed", "uncorrected-memory-errors"}
    (sentence,) = told["uncorrected-memory-errors"]
    assert sentence.startswith("GPU 1 ")


def test_cards_with_one_fault_share_a_sentence_and_a_command() -> None:
    document = changed(
        {f"gpus.devices[{n}].mig.{key}": True for n in (0, 1) for key in ("enabled", "pending")}
    )
    (found,) = findings(document, tuple(ROWS.values()))
    assert len(found.says) == 1
    assert found.says[0].startswith("GPU 0, 1 ")
    assert "nvidia-smi -i 0,1 " in found.remedy


def test_worst_comes_first() -> None:
    document = changed(
        {"settings.pip_index": "a.example", "glibc": "2.17", "ours.service.active": "failed"}
    )
    found = findings(document, tuple(ROWS.values()))
    assert [each.severity for each in found] == list(Severity)


def test_a_distribution_that_is_not_listed_blocks() -> None:
    document = changed({"os.id": "slackware"})
    found = diagnose(document, tuple(ROWS.values()), load_matrix())
    assert [each.id for each in found] == ["distribution-is-not-listed"]
    assert verdict(found) == "blocked"


def test_hostile_text_reaches_no_terminal() -> None:
    evil = "x\x1b]0;pwned\x07\n{driver}" + "y" * 5000
    document = changed({"ports[1].unit": evil, "ports[1].process": evil, "notes": [evil]})
    for each in findings(document, tuple(ROWS.values())):
        for sentence in (*each.says, each.remedy):
            assert sentence.isprintable()
            assert len(sentence) < 2000


@pytest.mark.parametrize("rig", golden.rigs())
def test_findings_of_a_rig_are_the_golden_ones(rig: str) -> None:
    path = golden.findings_path(rig)
    assert path.read_text() == golden.findings_file(rig)


@pytest.mark.parametrize("rig", golden.rigs())
def test_what_the_decision_holds_against_a_node_blocks(rig: str) -> None:
    document = golden.document(rig)
    host = Host.from_document(document)
    reasons = [each.sentence() for each in node_reasons(host, Want(), load_matrix())]
    found = diagnose(document, tuple(ROWS.values()), load_matrix())
    if reasons:
        assert verdict(found) == "blocked", reasons
    elif not any(gpu.failing or gpu.mig for gpu in host.gpus):
        blocking = {each.id for each in found if each.severity is Severity.BLOCKS}
        # What no plan is asked: whether it could be applied, and whether CUDA 12 runs.
        assert blocking <= {"no-python", "python-does-not-run", "driver-older-than-cuda-12"}


@pytest.mark.parametrize("number", sorted(FAILING_XIDS))
def test_an_error_that_fails_a_card_blocks(number: int) -> None:
    document = changed({"gpus.devices[0].xids": [number]})
    found = findings(document, tuple(ROWS.values()))
    assert any(each.severity is Severity.BLOCKS and "Xid" in each.says[0] for each in found)


# Rows that are wrong


def faults(tmp_path: Path, **row: Any) -> str:
    from gpuwright.load import load_findings as load

    whole: dict[str, Any] = {
        "id": "a",
        "severity": "warns",
        "when": [{"path": "uid", "above": 0}],
        "says": "a",
        "remedy": "b",
        "sources": [
            {"url": "https://a.example", "says": "a", "covers": ["says"], "read": "2026-11-30"}
        ],
    }
    (tmp_path / "findings").mkdir()
    (tmp_path / "findings" / "a.yaml").write_text(json.dumps([whole | row]))
    with pytest.raises(MatrixError) as caught:
        load(tmp_path)
    return str(caught.value)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"when": []}, ".when: names no condition"),
        ({"when": [{"path": "uid"}]}, "needs one comparison, found none"),
        ({"when": [{"path": "uid", "above": 0, "below": 9}]}, "found below, above"),
        ({"when": [{"path": ".uid", "above": 0}]}, "`each` names no list"),
        ({"each": "ports"}, ".each: no condition looks at an entry"),
        ({"when": [{"path": "uid", "abov": 0}]}, "nearest: above"),
        ({"when": [{"path": "glibc", "older": "x"}]}, "'x' is not a version"),
        ({"when": [{"path": "uid", "equals": 0, "percent": 5}]}, ".percent: stands beside"),
        ({"says": "{uid|loud}"}, "loud is none of gib, list"),
        ({"instead_of": ["b"]}, ".instead_of: b is no finding"),
        ({"sources": []}, ".sources: empty"),
        ({"severity": "bad"}, "severity: 'bad' is unknown"),
    ],
)
def test_a_row_that_is_wrong_is_told_with_its_path(
    tmp_path: Path, row: dict[str, Any], said: str
) -> None:
    assert said in faults(tmp_path, **row)


# The command


def doctor(path: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = cli.main(["doctor", "--host", str(path), *words])
    out, err = capsys.readouterr()
    return status, out, err


@pytest.mark.parametrize(
    ("changes", "status", "said"),
    [
        ({}, 0, "nothing that keeps this node from serving was found"),
        ({"clock.synchronized": False}, 0, "warns   the clock follows no time server"),
        ({"gpus.status": "driver_mismatch"}, 3, "blocks  the driver's loaded module"),
    ],
)
def test_doctor_s_status_is_that_of_the_worst_finding(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    status: int,
    said: str,
) -> None:
    path = tmp_path / "box.json"
    path.write_text(json.dumps(changed(changes)))
    found, out, _ = doctor(path, capsys)
    assert found == status
    assert said in out
    found, out, _ = doctor(path, capsys, "--json")
    data = json.loads(out)
    assert found == status
    assert data["verdict"] == ("blocked" if status else "warnings" if changes else "healthy")
    assert all(each["remedy"] and each["sources"] for each in data["findings"])


def test_doctor_names_what_a_document_does_not_tell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "box.json"
    path.write_text(json.dumps(changed({"iommu": {"mode": None, "groups": None}})))
    assert "not known: iommu" in doctor(path, capsys)[1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ('{"gpus": ["RTX 3090"]}', "schema: missing; needs the document of a node, not a sketch"),
        ('{"schema": 9}', "schema: needs 2, found 9"),
        ("[]", "document: needs a mapping"),
    ],
)
def test_doctor_refuses_what_is_no_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    path = tmp_path / "box.json"
    path.write_text(text)
    status, _, err = doctor(path, capsys)
    assert status == 2
    assert said in err
