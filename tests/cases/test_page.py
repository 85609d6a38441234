"""docs/evidence.md says what the reports say and what is decided."""

import pytest

from tests.cases import evidence
from tools.evidence import PAGE, render

pytestmark = pytest.mark.skipif(not evidence.there(), reason=evidence.MISSING)


def test_page_of_the_evidence_is_what_is_decided():
    assert PAGE.read_text(encoding="utf-8") == render(), "python -m tools.evidence writes it"
