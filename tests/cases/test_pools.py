"""Pools that engines printed, to the token."""

import pytest

from tests.cases.pools import misses
from tests.cases.verdicts import verdicts

PRINTED = [
    pytest.param(printed, id=f"{verdict.case}-{number}")
    for verdict in verdicts().values()
    if not isinstance(verdict.pool, str)
    for number, printed in enumerate(verdict.pool)
]


@pytest.mark.parametrize("printed", PRINTED)
def test_some_pool_inside_the_printed_rounding_gives_what_was_printed(printed):
    assert misses(printed) == []


@pytest.mark.parametrize("printed", PRINTED)
def test_a_pool_of_other_memory_gives_something_else(printed):
    """The comparison can fail: it holds the arithmetic, not the reading of the file."""
    other = dict(printed)
    if "gib" in other:
        other["gib"] *= 3 if other.get("too_short") else 1.02
    elif "block_tokens" in other:
        other["block_tokens"] += 16
    else:
        other["mib"] += 1
    assert misses(other)


def test_every_report_says_what_its_printed_pool_is():
    for verdict in verdicts().values():
        assert verdict.pool, verdict.case
