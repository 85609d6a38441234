"""What served before a change, kept beside until the new one has proven itself, or put back."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

from gpuwright.onnode.children import spawn
from gpuwright.onnode.storage import replace_file, sync_directory

_BESIDE = ".previous"
_PATIENCE_SECONDS = 120


def keep(path: str) -> None:
    """Keep a file as it is. One that is kept already stays: what replaced it has proven nothing."""
    beside = path + _BESIDE
    if os.path.lexists(beside):
        return
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        replace_file(beside, file.read())


def forget(paths: list[str]) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path + _BESIDE)


def put_back(paths: list[str], unit: str) -> dict[str, Any] | None:
    """Put kept files in their places and start what they say; None where nothing was kept.

    `paths` are the unit's file and the record of its plan, which is the answer.
    """
    if not paths or not all(os.path.isfile(path + _BESIDE) for path in paths):
        return None
    for path in paths:
        os.replace(path + _BESIDE, path)
        sync_directory(os.path.dirname(path))
    for words in (["daemon-reload"], ["reset-failed", unit], ["restart", unit]):
        child = spawn(["systemctl", *words], _PATIENCE_SECONDS)
        if child:
            child.output()
    try:
        with open(paths[-1], encoding="utf-8") as file:
            record = json.load(file)
    except ValueError:
        record = None
    return record if isinstance(record, dict) else {}
