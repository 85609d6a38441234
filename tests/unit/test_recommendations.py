"""Each claim of the published matrix is answered, and each answer is what is decided."""

import re

import pytest

from gpuwright.feature_rows import FeatureSupport, Grade
from gpuwright.features import support_of
from gpuwright.host import Host
from gpuwright.load import load_matrix
from gpuwright.plan import Plan
from gpuwright.recommendation_rows import (
    FILE,
    Check,
    Table,
    Verdict,
    load_recommendations,
)
from gpuwright.refusals import MatrixError, Refusal, WantError
from gpuwright.selection import decide
from gpuwright.sketch import read_sketch
from gpuwright.want import Want

MATRIX = load_matrix()
ROWS = load_recommendations()
CHECKS = [(row, index, check) for row in ROWS for index, check in enumerate(row.checks)]
CELLS = {
    "default-attention",
    "prefix-cache",
    "paged-cache",
    "flashattention-3",
    "dflash",
    "mtp",
    "turboquant",
    "experts",
    "structured",
    "ampere",
}
COLUMNS = {"vllm", "sglang", "tensorrt-llm", "llama.cpp", "note"}


def decided(check: Check, want: dict) -> Plan | Refusal:
    document, _ = read_sketch({"gpus": list(check.gpus), **check.node}, MATRIX)
    return decide(Host.from_document(document), Want.from_data(dict(want)), MATRIX)


def agrees(plan: Plan, check: Check) -> None:
    expect = check.expect
    for key in ("engine", "attention_backend", "kv_cache_dtype", "quantization"):
        words = getattr(expect, key)
        assert not words or getattr(plan, key) in words, key
    if expect.speculation:
        assert plan.speculation is not None
        assert plan.speculation.method in expect.speculation
    assert set(expect.warns) <= {warning.hazard for warning in plan.warnings}
    for key, value in expect.parameters.items():
        assert plan.parameters[key] == value, key


def figure(plan: Plan | Refusal, key: str) -> int:
    assert isinstance(plan, Plan), plan
    found = plan.figures[key] if key in plan.figures else getattr(plan, key)
    assert isinstance(found, int)
    return found


def ask(check: Check) -> None:
    if check.feature is not None:
        assert grade_of(check) is check.grade
        return
    if check.backend is not None:
        row = next(row for row in MATRIX.attention_backends if row.id == check.backend)
        rule = row.version(check.capability, 128)
        assert rule is not None
        assert rule.version == check.version
        return
    if check.expect.unknown is not None:
        with pytest.raises(WantError, match=re.escape(check.expect.unknown)):
            decided(check, check.want)
        return
    answer = decided(check, check.want)
    if check.expect.refused is not None:
        assert isinstance(answer, Refusal)
        assert any(check.expect.refused in reason for reason in answer.reasons), answer.reasons
        return
    assert isinstance(answer, Plan), answer.reasons
    agrees(answer, check)
    if check.beside:
        other = decided(check, check.beside)
        for key in check.equal:
            assert figure(answer, key) == figure(other, key), key
        for key in check.fewer:
            assert figure(answer, key) < figure(other, key), key


def grade_of(check: Check) -> Grade:
    """Of the newest release; of a model without peculiarities where none is named."""
    release = next(row for row in MATRIX.releases if row.engine == check.engine)
    model = next(row for row in MATRIX.models if row.id == (check.model or "qwen3.6-27b"))
    answer = support_of(MATRIX.feature(check.feature), release, model, "9.0")
    return answer.grade if isinstance(answer, FeatureSupport) else Grade.NONE


@pytest.mark.parametrize(
    ("row", "index", "check"), CHECKS, ids=[f"{row.id}-{index}" for row, index, _ in CHECKS]
)
def test_a_recommendation_is_what_is_decided(row, index, check):
    ask(check)


def test_every_table_of_the_page_is_answered():
    assert {row.table for row in ROWS} == {*Table}
    per = {table: [row for row in ROWS if row.table is table] for table in Table}
    assert len(per[Table.KERNELS]) == 8
    assert len(per[Table.KV_CACHE]) == 6
    assert len(per[Table.ROUTING]) == 5
    assert len(per[Table.TIPS]) == 3
    named = {row.id for row in per[Table.ENGINES]}
    assert named == {f"{cell}-{column}" for cell in CELLS for column in COLUMNS}


def test_what_is_not_kept_has_evidence_beside_the_page_itself():
    for row in ROWS:
        assert row.verdict is Verdict.KEPT or len(row.sources) > 1, row.id


def test_a_wrong_expectation_fails():
    check = next(check for row, _, check in CHECKS if row.id == "ampere-vllm")
    wrong = Check(gpus=check.gpus, want=check.want, expect=type(check.expect)(engine=("sglang",)))
    with pytest.raises(AssertionError):
        ask(wrong)


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("verdict: kept", "verdict: true", "is unknown; known: kept, narrowed, replaced"),
        ("{feature: paged-kv-cache, engine: vllm, grade: full}", "{feature: mtp}", "stands with"),
        ("id: kernel-mla", "id: kernel-triton", "stands twice"),
    ],
)
def test_refuses_rows_that_cannot_be_asked(tmp_path, before, after, fault):
    path = tmp_path / FILE.name
    text = FILE.read_text(encoding="utf-8")
    assert before in text
    path.write_text(text.replace(before, after, 1), encoding="utf-8")
    with pytest.raises(MatrixError, match=fault):
        load_recommendations(path)
