"""What a plan says of itself."""

from dataclasses import replace

import pytest

from tests.unit.plans import PLAN


@pytest.mark.parametrize(
    ("bind", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.0.0.2", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.5", False),
        ("fd00::5", False),
    ],
)
def test_a_service_on_the_machines_own_addresses_is_reached_by_nobody_else(bind, loopback):
    assert replace(PLAN, bind=bind).loopback is loopback
