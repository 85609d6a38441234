"""Rigs that do not exist, answering from the documents in tests/hosts: try a deploy without a node.

    pyinfra inventory/rehearsal.py deploys/explain.py --dry

Anything but the questions before a run is an error: nothing pretends to have been installed.
"""

import json
import re
from pathlib import Path

_RIGS = Path(__file__).resolve().parents[1] / "tests" / "hosts"
_WANTS = {
    "1x3090": {"model": "Qwen3.6-27B"},
    "2x3090-nvlink": {"model": "Qwen3.6-35B-A3B", "workload": "agents"},
    "4090": {"model": "gemma-4-26B-A4B-it"},
    "5090": {"model": "Qwen3.6-27B", "workload": "throughput"},
    "cpu-debian12": {"model": "auto"},
}


def _answers(rig: str) -> dict[object, object]:
    document = json.loads((_RIGS / rig / "document.json").read_text())
    return {
        "gpuwright: probe": json.dumps(document),
        # Whether downloads could be had is not asked of anybody.
        "gpuwright: fetch": json.dumps({"ok": True}),
        re.compile(""): {"success": False, "stderr": f"{rig} does not exist: this is a rehearsal"},
    }


hosts = [
    (f"@fake/{rig}", {"gpuwright": want, "fake_responses": _answers(rig), "fake_delay": 0})
    for rig, want in _WANTS.items()
]
