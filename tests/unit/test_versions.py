import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwright.versions import at_least, check_range, parse_version, within


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("9.0", "10.0"),
        ("0.5.10", "0.5.10.post1"),
        ("0.5.9", "0.5.10"),
        ("1.4.0rc1", "1.4.0"),
        ("b9999", "b11434"),
        ("535", "580.95.05"),
    ],
)
def test_versions_compare_as_numbers(older, newer):
    assert parse_version(older) < parse_version(newer)
    assert at_least(newer, older)
    assert not at_least(older, newer)


def test_trailing_zeros_do_not_count():
    assert parse_version("13.0") == parse_version("13")


@pytest.mark.parametrize(
    ("version", "spec", "inside"),
    [
        ("8.6", ">=8.0,<8.9", True),
        ("8.9", ">=8.0,<8.9", False),
        ("12.0", ">=9.0", True),
        ("8.6", "", True),
        ("0.33.0", "==0.33", True),
        ("0.33.0", "!=0.33", False),
        ("3", ">2", True),
        ("2", "<=2", True),
    ],
)
def test_a_range_holds_when_every_bound_does(version, spec, inside):
    assert within(version, spec) is inside


@pytest.mark.parametrize("text", ["", "x", "1..2", "v1", "1.2-beta", "٣"])
def test_what_is_no_version_is_refused(text):
    with pytest.raises(ValueError, match="not a version"):
        parse_version(text)


@pytest.mark.parametrize("spec", ["8.0", ">=", "~=1.0", ">=8.0;<9"])
def test_what_is_no_range_is_refused(spec):
    with pytest.raises(ValueError, match="not a"):
        check_range(spec)


@given(st.lists(st.integers(0, 999), min_size=1, max_size=4))
def test_a_version_is_within_its_own_bounds(numbers):
    text = ".".join(str(number) for number in numbers)
    assert within(text, f">={text},<={text}")
    assert not within(text, f"!={text}")
