"""A release's row as a skeleton: what was measured of it, and for the rest its neighbour's row."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from gpuwright.engine_rows import ReleaseRow
from gpuwright.load import MATRIX
from gpuwright.lock_rows import LockRow
from gpuwright.versions import parse_version
from tools.lock_resolve import LockError

_TAKEN_OVER = (
    *("auto_order", "kv_cache_dtypes", "auto_kv_cache_dtypes", "memory_model", "formats"),
    "environment",
)
_PLAIN = re.compile(r"[a-z_][a-z0-9_]*", re.ASCII)


def skeleton(
    base: ReleaseRow, lock: LockRow, toolkit: str, capabilities: tuple[str, ...], date: str
) -> str:
    """The row's text: `base`'s, with what was measured of this release in place of its own."""
    row = row_data(base)
    tag = next(tag for tag in row["build_tags"] if "cuda" in tag)
    # Of another architecture's build nothing was measured.
    tag.pop("capabilities_on", None)
    tag |= {"tag": lock.build_tag, "cuda": toolkit, "capabilities": list(capabilities)}
    row |= {
        "id": f"{lock.engine}-{lock.release}",
        "release": lock.release,
        "architectures": [lock.architecture],
        "glibc": lock.glibc,
        "python": sorted({*lock.python, *_pythons(lock.not_for)}, key=parse_version),
        "build_tags": [tag],
        "sources": [
            {
                "url": f"pkg:pypi/{lock.package}@{lock.release}",
                "says": "what its wheels resolve to, and what cards their binaries hold code for",
                "covers": ["glibc", "python", "architectures", "build_tags"],
                "read": date,
                "kind": "measured",
            },
            {
                "url": f"pkg:pypi/{lock.package}@{lock.release}",
                "says": f"taken over from {base.id}, and held to its own record by a test",
                "covers": [key for key in _TAKEN_OVER if key in row],
                "read": date,
                "kind": "derived",
            },
        ],
    }
    row.pop("unknown", None)
    return row_text(row)


def _pythons(words: Iterable[str]) -> list[str]:
    """Those that are minor versions: a lock may not be for an architecture either."""
    return [word for word in words if word.startswith("3.")]


def row_text(row: dict[str, Any]) -> str:
    """As rows stand in a file: keys and entries on lines of their own, values beside them."""
    lines: list[str] = []
    for key, value in row.items():
        lead = "  " if lines else "- "
        if isinstance(value, list) and value and isinstance(value[0], dict):
            lines.append(f"{lead}{key}:")
            lines += [f"    - {flow(entry)}" for entry in value]
        else:
            lines.append(f"{lead}{key}: {flow(value)}")
    return "".join(f"{line}\n" for line in lines)


def flow(value: Any) -> str:
    """One line of YAML; words stand plain, all else is quoted."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {flow(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(flow(each) for each in value) + "]"
    plain = isinstance(value, str) and _PLAIN.fullmatch(value) and value not in ("on", "off", "yes")
    return str(value) if plain else json.dumps(value, ensure_ascii=False)


def insert_row(path: Path, base: ReleaseRow, release: str, text: str) -> None:
    """Put the row beside that of `base`, in a file whose newest release is the first."""
    parts = re.split(r"(?m)^(?=- id: )", path.read_text(encoding="utf-8"))
    places = [n for n, part in enumerate(parts) if part.startswith(f"- id: {base.id}\n")]
    if len(places) != 1:
        raise LockError(f"{path.name}: needs one row {base.id}, found {len(places)}")
    older = parse_version(release) < parse_version(base.release)
    parts.insert(places[0] + older, text)
    path.write_text("".join(parts), encoding="utf-8")


def row_data(base: ReleaseRow) -> dict[str, Any]:
    """The row as it stands in its file, aliases resolved."""
    path = MATRIX / "engines" / f"{base.engine}.yaml"
    for row in yaml.safe_load(path.read_text(encoding="utf-8")):
        if row["id"] == base.id:
            found: dict[str, Any] = row
            return found
    raise LockError(f"{path.name}: no row {base.id}")
