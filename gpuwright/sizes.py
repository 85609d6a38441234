"""Published sizes as intervals of bytes: what a printed figure leaves open, nothing more."""

from __future__ import annotations

import re
from decimal import Decimal
from functools import lru_cache
from math import ceil, floor

_UNITS = {
    "B": (1, 1),
    "MB": (10**6, 10**6),
    "GB": (10**9, 10**9),
    "MiB": (2**20, 2**20),
    "GiB": (2**30, 2**30),
    "GB or GiB": (10**9, 2**30),
}
_SIZE = re.compile(r"(?P<low>\d+(?:\.\d+)?)(?:-(?P<high>\d+(?:\.\d+)?))? (?P<unit>.+)", re.ASCII)


@lru_cache(maxsize=1024)
def size_interval(text: str) -> tuple[int, int]:
    """Fewest and most bytes that print as `text`: "29.0 GB", "64.38-65.97 GiB", "17.5 GB or GiB".

    The last printed digit is rounded, so half of it is open to both sides; where the unit is
    unclear the larger one bounds from above. A figure in B is exact. Raises ValueError.
    """
    match = _SIZE.fullmatch(text)
    if match is None or match["unit"] not in _UNITS:
        raise ValueError(f"{text!r} is not a size such as '29.0 GB' ({', '.join(_UNITS)})")
    smaller, larger = _UNITS[match["unit"]]
    least, _ = _rounded(match["low"], exact=smaller == 1)
    _, most = _rounded(match["high"] or match["low"], exact=smaller == 1)
    low, high = floor(least * smaller), ceil(most * larger)
    if not 0 < low <= high:
        raise ValueError(f"{text!r} is no size: needs more than nothing, and the smaller one first")
    return low, high


def _rounded(digits: str, *, exact: bool) -> tuple[Decimal, Decimal]:
    value = Decimal(digits)
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int)
    half = Decimal(0) if exact else Decimal(5).scaleb(exponent - 1)
    return value - half, value + half


def size_words(low: int, high: int) -> str:
    """An interval for people, in GB with as many digits as tell its ends apart."""
    for digits in (2, 3, 4):
        first, last = (f"{each / 10**9:.{digits}f}" for each in (low, high))
        if low == high or first != last:
            break
    return f"{first} GB" if first == last else f"{first}-{last} GB"
