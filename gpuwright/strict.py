"""A strict reader from YAML to dataclasses: every fault is reported, each with its path.

Field annotations are the schema: `str`, `int`, `bool`, enums, `X | None`, `tuple[X, ...]`,
`dict[str, X]` and dataclasses. A field with a default is optional. An explicit null needs its
reason beside it, in `unknown: {key: reason}` or, for a download, in `unpinned`.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from gpuwright.quoting import clipped, kind, nearest, quoted
from gpuwright.reading import read_file

_BASE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_BASE):  # type: ignore[misc]
    """PyYAML's safe loader that notes duplicate keys instead of keeping the last one."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.duplicates: list[str] = []

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            # The key of a sequence or a mapping is no key here: PyYAML says so itself.
            if not isinstance(key_node.value, str):
                continue
            if key_node.value in seen:
                line = key_node.start_mark.line + 1
                self.duplicates.append(f"line {line}: key {quoted(key_node.value)} stands twice")
            seen.add(key_node.value)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return mapping


_SCALAR_ERRORS = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""What PyYAML's constructors let through: `2026-13-45`, `!!int ""`, `!!bool x`, 5,000 digits."""
_MOST_VALUES = 1_000_000


def read_yaml(path: Path, label: str, faults: list[str], *, foreign: bool = False) -> Any:
    """The data in the file at `path`; syntax faults and duplicate keys go to `faults`.

    `foreign` data is an operator's: aliases that unfold to a mountain are a fault, too.
    """
    try:
        text = read_file(path)
    except ValueError as error:
        faults.append(f"{label}: {error}")
        return None
    return read_yaml_text(text, label, faults, foreign=foreign)


def read_yaml_text(text: str, label: str, faults: list[str], *, foreign: bool = True) -> Any:
    """As `read_yaml`, of a text."""
    try:
        loader = _Loader(text)
        data = loader.get_single_data()
        if foreign and _unfolded(data, {}) > _MOST_VALUES:
            raise ValueError(f"aliases unfold to more than {_MOST_VALUES:,} values")
    except (yaml.YAMLError, *_SCALAR_ERRORS) as error:
        faults.append(f"{label}: {_why_no_yaml(error)}")
        return None
    faults.extend(f"{label} {duplicate}" for duplicate in loader.duplicates)
    return data


def _why_no_yaml(error: Exception) -> str:
    """What PyYAML complains of in one line, with the place where it says one."""
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        return place + clipped(error.problem or error.context or "is no YAML")
    if isinstance(error, yaml.reader.ReaderError):
        return f"position {error.position}: has a character that YAML does not allow"
    if isinstance(error, RecursionError):
        return "is nested too deep"
    why = f": {clipped(error)}" if type(error) is ValueError else ""
    return f"holds a value that is not what its form or tag says{why}"


def _unfolded(value: Any, sizes: dict[int, float]) -> float:
    """How many values `value` holds where each alias stands for all that it names; a value that
    holds itself has no end."""
    if not isinstance(value, list | tuple | dict):
        return 1
    if id(value) not in sizes:
        sizes[id(value)] = float("inf")
        parts = value.values() if isinstance(value, dict) else value
        sizes[id(value)] = 1 + sum(_unfolded(part, sizes) for part in parts)
    return sizes[id(value)]


@lru_cache(maxsize=128)
def _schema(row: type) -> tuple[dict[str, Any], frozenset[str]]:
    """The annotation of each field of `row`, and the names of those without a default."""
    hints = typing.get_type_hints(row)
    fields = dataclasses.fields(row)
    required = frozenset(
        field.name
        for field in fields
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    )
    return {field.name: hints[field.name] for field in fields}, required


def read_row(row: type, data: Any, path: str, faults: list[str]) -> Any:
    """An instance of the dataclass `row` from `data`, or None when anything in it is wrong."""
    if not isinstance(data, dict):
        faults.append(f"{path}: needs a mapping, found {kind(data)}")
        return None
    before = len(faults)
    hints, required = _schema(row)
    for key in data:
        if key not in hints:
            faults.append(f"{path}.{clipped(key)}: unknown key{nearest(key, hints)}")
    faults.extend(f"{path}.{key}: missing" for key in hints if key in required and key not in data)
    values = {}
    for key, hint in hints.items():
        if key not in data:
            continue
        if data[key] is None and not _null_has_reason(hints, data, key):
            faults.append(f"{path}.{key}: null without a reason")
            continue
        values[key] = _read(hint, data[key], f"{path}.{key}", faults)
    if len(faults) > before:
        return None
    instance = row(**values)
    check = getattr(instance, "faults", None)
    if check is not None:
        faults.extend(f"{path}{fault}" for fault in check())
    return instance


@lru_cache(maxsize=256)
def _parts(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    return typing.get_origin(hint), typing.get_args(hint)


def _null_has_reason(hints: dict[str, Any], data: dict[str, Any], key: str) -> bool:
    if "unpinned" in hints and data.get("unpinned"):
        return True
    reasons = data.get("unknown") if "unknown" in hints else None
    return isinstance(reasons, dict) and bool(reasons.get(key))


def _read(hint: Any, value: Any, path: str, faults: list[str]) -> Any:
    if type(value) is hint:
        if hint is str and not value.isprintable():
            faults.append(f"{path}: {quoted(value)} has characters that do not print")
        return value
    origin, arguments = _parts(hint)
    if origin in (types.UnionType, typing.Union):
        choices = [choice for choice in arguments if choice is not types.NoneType]
        if value is None and len(choices) < len(arguments):
            return None
        if len(choices) == 1:
            return _read(choices[0], value, path, faults)
        if type(value) in choices:
            return value
        faults.append(f"{path}: needs {' or '.join(map(kind, choices))}, found {_shown(value)}")
        return None
    if origin is tuple:
        if not isinstance(value, list):
            faults.append(f"{path}: needs a list, found {_shown(value)}")
            return None
        return tuple(
            _read(arguments[0], item, f"{path}[{index}]", faults)
            for index, item in enumerate(value)
        )
    if origin is dict:
        if not isinstance(value, dict):
            faults.append(f"{path}: needs a mapping, found {_shown(value)}")
            return None
        return {
            _read(str, key, f"{path}.{clipped(key)}", faults): _read(
                arguments[1], item, f"{path}.{clipped(key)}", faults
            )
            for key, item in value.items()
        }
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return read_row(hint, value, path, faults)
    return _read_scalar(hint, value, path, faults)


def _read_scalar(hint: type, value: Any, path: str, faults: list[str]) -> Any:
    if issubclass(hint, StrEnum):
        words = [member.value for member in hint]
        if value in words:
            return hint(value)
        faults.append(f"{path}: {quoted(value)} is unknown{nearest(value, words)}")
        return None
    if hint is str and value is not None and not isinstance(value, (list, dict)):
        faults.append(f"{path}: {quoted(value)} must be quoted, YAML reads it as {kind(value)}")
    else:
        faults.append(f"{path}: needs {kind(hint)}, found {_shown(value)}")
    return None


def _shown(value: Any) -> str:
    """What stands there: the sort of a value that has parts, any other as it is."""
    return kind(value) if value is None or isinstance(value, (list, dict)) else quoted(value)
