"""Make Python sources smaller for their way to a node: what is left is text as it was written.

Nothing is printed anew from a syntax tree: the control machine's Python may write what the older
one of a node cannot read.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator


def without_prose(source: str) -> str:
    """`source` without docstrings, comments that have lines of their own, and empty lines."""
    tree = ast.parse(source)
    lines = source.split("\n")
    instead: dict[int, str] = {}
    literal: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Constant, ast.JoinedStr)) and node.end_lineno != node.lineno:
            literal.update(range(node.lineno, (node.end_lineno or 0) + 1))
    for prose, alone in _prose(tree):
        last = prose.end_lineno or prose.lineno
        before = lines[prose.lineno - 1][: prose.col_offset]
        after = lines[last - 1].encode()[prose.end_col_offset :].decode().strip()
        if before.strip() or not (after == "" or after.startswith("#")):
            continue  # shares its line with code
        instead.update(dict.fromkeys(range(prose.lineno, last + 1), ""))
        if alone:
            instead[prose.lineno] = f"{before}pass"
    kept = []
    for number, line in enumerate(lines, 1):
        if number in instead:
            line = instead[number]
        elif number in literal:
            kept.append(line)
            continue
        if line.strip() and not line.lstrip().startswith("#"):
            kept.append(line)
    return "\n".join(kept) + "\n"


def _prose(tree: ast.AST) -> Iterator[tuple[ast.Expr, bool]]:
    """Statements that are only a text, and whether each is all that its block has."""
    for node in ast.walk(tree):
        for block in (getattr(node, name, None) for name in ("body", "orelse", "finalbody")):
            if not isinstance(block, list):
                continue
            texts = [
                one
                for one in block
                if isinstance(one, ast.Expr)
                and isinstance(one.value, ast.Constant)
                and isinstance(one.value.value, str)
            ]
            whole = len(texts) == len(block) and not isinstance(node, ast.Module)
            for place, one in enumerate(texts):
                yield one, whole and place == 0


def reduced(source: str, wanted: Collection[str], always: str) -> str:
    """Of a module's top level: what defines a name of `wanted`, and all that is named there.

    Names that the pattern `always` matches stay as well, and so does what defines no name (calls,
    conditions) and all imports. A name that is not defined is passed over.
    """
    tree = ast.parse(source)
    defined: dict[str, list[ast.stmt]] = {}
    kept: set[ast.stmt] = set()
    for statement in tree.body:
        names = _names(statement)
        for name in names:
            defined.setdefault(name, []).append(statement)
        if not names:
            kept.add(statement)
    due = {name for name in defined if name in wanted or re.match(always, name)}
    due.update(*(_named(statement) for statement in kept))
    seen: set[str] = set()
    while due:
        name = due.pop()
        seen.add(name)
        for statement in defined.get(name, ()):
            kept.add(statement)
            due |= _named(statement) - seen
    lines = source.split("\n")
    return "\n".join(
        line
        for statement in tree.body
        if statement in kept
        for line in lines[_first(statement) - 1 : statement.end_lineno]
    )


def _names(statement: ast.stmt) -> set[str]:
    """What a statement of the top level defines; nothing for one that does more than that."""
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return {statement.name}
    if isinstance(statement, ast.Assign):
        plain = [one.id for one in statement.targets if isinstance(one, ast.Name)]
        return set(plain) if len(plain) == len(statement.targets) else set()
    return set()


def _named(statement: ast.stmt) -> set[str]:
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}


def _first(statement: ast.stmt) -> int:
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)) and statement.decorator_list:
        return statement.decorator_list[0].lineno
    return statement.lineno
