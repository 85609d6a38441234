"""Environment files as systemd reads them, and the keys in them that protect a server."""

from __future__ import annotations

import re
from collections.abc import Iterator

_BLANKS = " \t"
_LINE_ENDS = "\n\r"
_ESCAPED = '"\\`$'
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

KEY_RULE = (
    "needs a key of 8 or more visible ASCII characters without blanks, "
    "or several of them with commas between"
)


def _assignments(text: str) -> Iterator[tuple[str, str, int, int]]:
    """(name, value, start, end) of each assignment, as `EnvironmentFile=` takes it."""
    place = 0
    while place < len(text):
        start = place
        end = _line_end(text, place)
        line = text[place:end]
        name, sign, _ = line.partition("=")
        if line.lstrip(_BLANKS)[:1] in ("#", ";") or not sign:
            place = end + 1
            continue
        value, place = _value(text, start + len(name) + 1)
        if _NAME.match(name.strip(_BLANKS)):
            yield name.strip(_BLANKS), value, start, place
        place += 1


def _line_end(text: str, place: int) -> int:
    while place < len(text) and text[place] not in _LINE_ENDS:
        place += 1
    return place


def _value(text: str, place: int) -> tuple[str, int]:
    """The value that begins at `place`, and where its line ends.

    Quoted parts come first, then what is bare, of which blanks at the end do not count.
    """
    found: list[str] = []
    while place < len(text) and text[place] in _BLANKS + "'\"":
        if text[place] in _BLANKS:
            place += 1
        else:
            part, place = _quoted(text, place)
            found.append(part)
    counted = len(found)
    while place < len(text) and text[place] not in _LINE_ENDS:
        escaped = text[place] == "\\" and place + 1 < len(text)
        place += escaped
        if not (escaped and text[place] in _LINE_ENDS):
            found.append(text[place])
        if escaped or text[place] not in _BLANKS:
            counted = len(found)
        place += 1
    return "".join(found[:counted]), place


def _quoted(text: str, place: int) -> tuple[str, int]:
    """What stands between the quotes that begin at `place`, and where it goes on after them.

    A quote that is never closed lasts to the end. In double quotes a backslash is for the
    characters of `_ESCAPED` and for line ends, which it takes away.
    """
    if text[place] == "'":
        end = text.find("'", place + 1)
        end = end if end >= 0 else len(text)
        return text[place + 1 : end], end + 1
    end, kept = place + 1, []
    while end < len(text) and text[end] != '"':
        if text[end] == "\\" and end + 1 < len(text):
            end += 1
            follower = text[end]
            if follower not in _ESCAPED + "\n":
                kept.append("\\")
            kept.append("" if follower == "\n" else follower)
        else:
            kept.append(text[end])
        end += 1
    return "".join(kept), end + 1


def variables(text: str) -> dict[str, str]:
    """What the assignments of an environment file say; of several of one name the last counts."""
    return {name: value for name, value, _, _ in _assignments(text)}


def with_key(text: str, name: str, key: str) -> str:
    """`text` with `NAME=KEY` as the only assignment of that name; everything else is kept.

    It comes first: a quote that is never closed would swallow it at the end.
    """
    kept, place = [f"{name}={key}\n"], 0
    for found, _, start, end in _assignments(text):
        if found == name:
            kept.append(text[place:start])
            place = end + (2 if text[end : end + 2] == "\r\n" else 1)
    return "".join([*kept, text[place:]])


def is_key(name: str) -> bool:
    return name.endswith("API_KEY")


def valid_key(value: str) -> bool:
    """True if a server may be protected by this key, or by these: see `KEY_RULE`."""
    return all(re.match(r"[\x21-\x7e]{8,}\Z", key) for key in value.split(","))


ENGINES_OWN = ("LLAMA_API_KEY", "SGLANG_API_KEY", "VLLM_API_KEY")


def api_key(text: str) -> str | None:
    """The key to ask a server with: the value of the first variable whose name ends in API_KEY.

    llama.cpp takes several keys with commas between: the first of them will do.
    """
    found = variables(text)
    # An operator's further keys may stand before the engine's own.
    for name in sorted(found, key=lambda name: name not in ENGINES_OWN):
        content = found[name]
        if is_key(name):
            return (content.split(",")[0] if name.startswith("LLAMA_") else content) or None
    return None


def secrets(text: str) -> list[str]:
    """Every key in an environment file, the longest first: what must never be shown."""
    found = {
        word
        for name, value in variables(text).items()
        if is_key(name)
        for word in (value, *value.split(","))
    }
    return sorted(found - {""}, key=len, reverse=True)
