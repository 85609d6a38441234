"""Text from outside as a part of a sentence: short, and with nothing that a terminal would obey."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable, Mapping

_MOST = 80
"""Characters that a sentence shows of one value."""
_MOST_OF_SENTENCE = 2000
_GAP = " ... "
_LEAST_PART = 3
"""Characters of a word that is looked for inside longer ones."""
_MOST_OF_LIST = 160
"""Characters of a list of legal words that stands beside the nearest of them."""
_MANY = 20
"""Words that are more than these are shown in part where a command lists them."""
_FEW = 4


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = self.maxlong = _MOST
        self.maxlevel = 3

    def repr_int(self, x: int, level: int) -> str:
        try:
            return super().repr_int(x, level)
        except ValueError:
            # Python writes no more than 4,300 digits.
            return f"a number of {x.bit_length():,} bits"


_SHORT = _Short()
_WORDS: dict[type, str] = {
    type(None): "null",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    list: "a list",
    tuple: "a list",
    dict: "a mapping",
}


def quoted(value: object) -> str:
    """Any value as its Python literal, cut in the middle where it is long or deep."""
    return printable(_SHORT.repr(value))


def kind(value: object) -> str:
    """What sort of value it is; for a type, what sort of value it asks for."""
    sort = value if isinstance(value, type) else type(value)
    return _WORDS.get(sort, f"a {sort.__name__}")


def clipped(text: object, most: int = _MOST) -> str:
    """Text without quotes, cut in the middle where it is long."""
    found = printable(str(text))
    if len(found) <= most:
        return found
    half = (most - len(_GAP)) // 2
    return f"{found[:half]}{_GAP}{found[-half:]}"


def printable(text: str) -> str:
    """`text` with what is no character to print as its escape."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def sentence(text: str) -> str:
    """A whole message: one line, printable, of a length that a person reads."""
    return clipped(text, _MOST_OF_SENTENCE)


def counted(number: int, noun: str) -> str:
    """A number with its noun, which most take an s for: `1 card`, `2 cards`, `0 cards`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def nearest(
    word: object,
    words: Iterable[str],
    spelled: Mapping[str, str] | None = None,
    *,
    command: str | None = None,
) -> str:
    """The end of a sentence on an unknown word: the nearest of `words`, and all where few.

    `spelled` are further spellings with the word of `words` that each stands for; `command` lists
    them all, so that of many a few will do.
    """
    words = list(dict.fromkeys(words))
    folded = {_folded(each): each for each in reversed(words)}
    folded |= {_folded(each): meant for each, meant in (spelled or {}).items()}
    said = _folded(str(word))
    near = difflib.get_close_matches(said, folded, n=1, cutoff=0.6)
    near = near or [each for each in folded if len(said) >= _LEAST_PART and said in each]
    near = near or difflib.get_close_matches(said, folded, n=1, cutoff=0.5)
    listed = ", ".join(words)
    if not near and command is not None and len(words) > _MANY:
        more = len(words) - _FEW
        return f"; known: {', '.join(words[:_FEW])} and {more:,} more, which `{command}` lists"
    if not near:
        return f"; known: {listed}"
    found = f"; nearest: {folded[near[0]]}"
    return found if len(listed) > _MOST_OF_LIST or len(words) == 1 else f"{found}; known: {listed}"


def _folded(word: str) -> str:
    return word.casefold().replace("-", "_").replace(" ", "_")
