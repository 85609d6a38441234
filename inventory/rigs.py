"""Entries of an inventory for nodes that do not exist: a document or a sketch answers for them."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuwright.load import load_matrix
from gpuwright.question import node_document
from gpuwright.want import Want

RIGS = Path(__file__).resolve().parents[1] / "tests" / "hosts"


def fake_rig(
    rig: str | Path, want: Mapping[str, Any], name: str | None = None
) -> tuple[str, dict[str, Any]]:
    """An entry that explains what `want` becomes on `rig`: a folder of tests/hosts, or a file with
    a node's document or a sketch (docs/cli.md). Raises HostError for what is wrong with the file.

    Anything but the questions before a run is an error: nothing pretends to have been installed.
    """
    name = name or Path(rig).stem
    document = node_document(_file_of(rig), load_matrix(), Want().layout)
    answers: dict[object, object] = {
        "gpuwright: probe": json.dumps(document),
        # Whether downloads could be had is not asked of anybody.
        "gpuwright: fetch": json.dumps({"ok": True}),
        re.compile(""): {"success": False, "stderr": f"{name} does not exist: this is a rehearsal"},
    }
    return f"@fake/{name}", {"gpuwright": dict(want), "fake_responses": answers, "fake_delay": 0}


def _file_of(rig: str | Path) -> Path:
    folder = RIGS / rig
    if not folder.is_dir():
        return Path(rig)
    document = folder / "document.json"
    return document if document.is_file() else folder / "sketch.yaml"
