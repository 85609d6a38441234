"""The engine, asked again, answers as its record says: rows cannot be printed from a stale one."""

import random

import pytest

from gpuwright.records import with_answers
from tools.ask_engine import differing

CELLS = 20


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "release"), with_answers())
def test_random_cells_are_answered_as_recorded(engine, release, environments):
    seed = random.SystemRandom().randrange(2**32)
    wrong = differing(environments(engine, release), CELLS, seed)
    assert not wrong, f"seed {seed}:\n" + "\n".join(wrong)
