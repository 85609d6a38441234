"""Golden decisions: every rig of tests/hosts with every want below, one JSON file each.

`python -m tools.golden` writes them anew; the diff is what is reviewed. The test compares.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from gpuwright.explain_command import decision_as_data
from gpuwright.host import Host
from gpuwright.load import load_matrix
from gpuwright.selection import decide
from gpuwright.want import Want

TESTS = Path(__file__).parent.parent / "tests"
HOSTS = TESTS / "hosts"
PLANS = TESTS / "plans"

WANTS: dict[str, dict[str, Any]] = {
    "auto": {},
    "smollm2": {"model": "smollm2"},
    "qwen3.6-27b": {"model": "Qwen3.6-27B"},
    "qwen3.6-35b-a3b": {"model": "Qwen3.6-35B-A3B"},
    "gemma-4-26b": {"model": "gemma-4-26B-A4B-it"},
    "qwen3.6-27b-for-throughput": {"model": "qwen3.6-27b", "workload": "throughput"},
    "smollm2-on-cpu": {"model": "smollm2", "gpus": "none"},
}


def rigs() -> list[str]:
    return sorted(path.parent.name for path in HOSTS.glob("*/document.json"))


def document(rig: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((HOSTS / rig / "document.json").read_text(encoding="utf-8"))
    return data


def golden(rig: str, want: str) -> str:
    """The text of the golden file of `rig` and the want called `want`."""
    decision = decide(Host.from_document(document(rig)), Want.from_data(WANTS[want]), load_matrix())
    return json.dumps(decision_as_data(decision), indent=1) + "\n"


def path_of(rig: str, want: str) -> Path:
    return PLANS / rig / f"{want}.json"


def main() -> int:
    wanted = {path_of(rig, want): golden(rig, want) for rig in rigs() for want in WANTS}
    for path in sorted(set(PLANS.rglob("*.json")) - set(wanted)):
        print(f"removed {path.relative_to(TESTS)}")
        path.unlink()
    for path, text in wanted.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(TESTS)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
