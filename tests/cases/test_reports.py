"""Reports of real rigs: what they call for is what we decide."""

import pytest

from tests.cases import evidence
from tests.cases.judge import answers
from tests.cases.verdicts import verdicts

AGREEMENT = 0.95
COVERED = 60

pytestmark = pytest.mark.skipif(not evidence.there(), reason=evidence.MISSING)

ASKED = [verdict for verdict in verdicts().values() if verdict.uncovered is None]
PLANNED, REFUSED = {"fit", "fit_with_changes"}, {"refuse", "no_fit"}


def test_every_report_is_a_question_or_says_why_it_is_none():
    assert list(verdicts()) == list(evidence.cases())
    assert {case.verdict for case in evidence.cases().values()} <= set(evidence.VERDICTS)


@pytest.mark.parametrize("verdict", ASKED, ids=lambda verdict: verdict.case)
def test_questions_ask_what_the_verdict_says(verdict):
    kind = evidence.cases()[verdict.case].verdict
    first, musts = verdict.asks[0], [must for ask in verdict.asks for must in ask.musts]
    plans = [must for must in musts if must.plan is not None]
    if kind == "fit":
        # As it was run; what else is asked may only want more of the plan.
        assert (first.open, dict(first.changes)) == ((), {})
        assert len(plans) == len(musts)
    elif kind == "fit_with_changes":
        assert any(must.plan or must.warns for must in musts)
    elif kind in REFUSED:
        assert not first.open
        assert set(first.changes) <= {"expert_offload"}
        assert all(must.refused for must in first.musts)
    else:
        # Another build of the engine is an engine to whoever reads "another engine" of an image.
        pins = {"engine", "build_tag"} if kind == "choose_other_engine" else {"checkpoint"}
        pinned = [ask for ask in verdict.asks if not pins & set(ask.open)]
        opened = [ask for ask in verdict.asks if pins & set(ask.open)]
        assert any(must.refused or must.warns for ask in pinned for must in ask.musts)
        assert any(
            must.plan and set(must.plan) & (pins | {"quantization"})
            for ask in opened
            for must in ask.musts
        )


@pytest.mark.parametrize("verdict", ASKED, ids=lambda verdict: verdict.case)
def test_what_we_decide_is_what_the_report_calls_for(verdict):
    missed = [answer.miss for answer in answers(verdict) if answer.miss is not None]
    if verdict.differs is None:
        assert missed == []
    else:
        assert missed, f"{verdict.case} agrees: its `differs` is to be struck out"


def test_reports_are_covered_and_we_agree_with_them():
    differing = [verdict for verdict in ASKED if verdict.differs is not None]
    agreement = 1 - len(differing) / len(ASKED)
    print(f"\n{len(ASKED)} of {len(verdicts())} reports covered, {agreement:.1%} agreed with")
    assert len(ASKED) >= COVERED
    assert agreement >= AGREEMENT
