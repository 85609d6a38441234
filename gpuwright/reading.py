"""Files that people hand over: text of a size that people write, or one sentence on why not."""

from __future__ import annotations

from pathlib import Path

MOST_BYTES = 16 * 2**20
"""Larger files are none of a node, a want or model rows."""


def read_file(path: Path) -> str:
    """The text at `path`; ValueError, without the path, where there is none to be had."""
    try:
        if path.exists() and not path.is_file():
            raise ValueError("is not a regular file")
        if path.exists() and path.stat().st_size > MOST_BYTES:
            raise ValueError(f"has more than {MOST_BYTES:,} bytes")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(error.strerror) from error
    except UnicodeDecodeError as error:
        raise ValueError(f"is not text: {error.reason} at byte {error.start}") from error
