"""The words that pages are made of: tables, links to sources, ranges, sizes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

from gpuwright.rows import Claim

_THREAD = re.compile(r"https://github\.com/[^/]+/([^/]+)/(?:issues|pull|discussions)/(\d+)")
_FILE = re.compile(r"https://github\.com/[^/]+/([^/]+)/(?:blob|tree|raw)/[^/]+/?(.*)")
_PACKAGE = re.compile(r"pkg:pypi/([^@]+)@(.+)")
_REPOSITORY = re.compile(r"https://github\.com/[^/]+/([^/#?]+)")
NONE = "-"
"""A cell that has nothing to say."""


def page(title: str, says: str, *parts: str) -> str:
    """A page of `parts`, which blank lines part."""
    head = (
        f"# {title}",
        says,
        "Rendered from the matrix by `python -m tools.render_docs`: change rows, not this page.",
    )
    return "\n\n".join(part.strip("\n") for part in (*head, *parts) if part.strip()) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [_line(head), "|" + "---|" * len(head)]
    lines += [_line(row) for row in rows]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") or NONE for cell in cells) + " |"


def code(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def sources(claims: Iterable[Claim]) -> str:
    """What each claim was read in, each once."""
    return ", ".join(source(url) for url in dict.fromkeys(claim.url for claim in claims))


def source(url: str) -> str:
    """A link to a page; a package has none, so it is named."""
    return f"`{link_text(url)}`" if _PACKAGE.match(url) else f"[{link_text(url)}]({url})"


def link_text(url: str) -> str:
    """How a source is called where it is linked: "vllm#123", "vllm cuda.py", "developer.x.com"."""
    if match := _THREAD.match(url):
        return f"{match[1]}#{match[2]}"
    if match := _FILE.match(url):
        name = match[2].rstrip("/").split("#")[0].rsplit("/", 1)[-1]
        return f"{match[1]} {name}".strip()
    if match := _REPOSITORY.match(url):
        return match[1]
    if match := _PACKAGE.match(url):
        return f"{match[1]}=={match[2]}"
    return (urlsplit(url).hostname or url).removeprefix("www.")


def span(spec: str) -> str:
    """A range in words: ">=8.0,<9.0" -> "8.0 up to below 9.0"."""
    found = dict[str, str]()
    for part in spec.split(","):
        operator = re.match(r"[<>=!]+", part.strip())
        if operator is None:
            return spec
        if operator[0] in found:
            return spec.replace(",", " and ")
        found[operator[0]] = part.strip()[operator.end() :]
    match found:
        case {"==": only}:
            return only
        case {">=": low, "<": high, **rest} if not rest:
            return f"{low} to below {high}"
        case {">=": low, "<=": high, **rest} if not rest:
            return f"{low} to {high}"
        case {">=": low, **rest} if not rest:
            return f"from {low}"
        case {"<": high, **rest} if not rest:
            return f"below {high}"
        case {"<=": high, **rest} if not rest:
            return f"up to {high}"
        case {">": low, **rest} if not rest:
            return f"above {low}"
    return spec.replace(",", " and ")


def tokens(count: int) -> str:
    """A context in K where it is whole: 262144 -> 256K."""
    return f"{count // 1024}K" if count % 1024 == 0 else f"{count:,}"


def gib(mib: int) -> str:
    return f"{mib / 1024:g}" if mib % 512 == 0 else f"{mib / 1024:.1f}"
