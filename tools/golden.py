"""Golden decisions and findings: every rig of tests/hosts with every want below, and what is wrong
with it, one YAML file each per rig; units of `tools/golden_units.py`; and what commands answer on
docs/cli.md.

`python -m tools.golden` writes them anew; the diff is what is reviewed. Tests compare.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gpuwright import cli
from gpuwright.doctor import diagnose, verdict
from gpuwright.explain import rivals
from gpuwright.host import Host
from gpuwright.load import load_findings, load_matrix
from gpuwright.plan import MemoryPlan, Plan, Rejection
from gpuwright.refusals import GIB, MatrixError, Refusal
from gpuwright.selection import decide
from gpuwright.sketch import read_sketch
from gpuwright.strict import read_yaml
from gpuwright.want import Want
from tools.golden_units import SERVICES, wanted_files

TESTS = Path(__file__).parent.parent / "tests"
HOSTS = TESTS / "hosts"
PLANS = TESTS / "plans"
FINDINGS = TESTS / "findings"
RIG_FILES = ("document.json", "sketch.yaml")
CLI_PAGE = TESTS.parent / "docs" / "cli.md"
KV_PAGE = TESTS.parent / "docs" / "kv.md"
_ANSWERED = re.compile(r"```console\n\$ (gpuwright [^\n]+)\n[^$].*?```\n", re.DOTALL)
UNSAID = (
    "a card is there:",
    "is newer and runs here",
    "memory arithmetic that is known to be right",
)
"""Parts of reasons that say the same on every rig: they are left out."""

WANTS: dict[str, dict[str, Any]] = {
    "auto": {},
    "llama-3.1-8b": {"model": "Llama-3.1-8B-Instruct"},
    "qwen3.6-27b": {"model": "Qwen3.6-27B"},
    "qwen3.6-35b-a3b": {"model": "Qwen3.6-35B-A3B"},
    "gemma-4-26b": {"model": "gemma-4-26B-A4B-it"},
    "glm-4.7-flash": {"model": "GLM-4.7-Flash"},
    "gpt-oss-120b": {"model": "gpt-oss-120b"},
    "smollm2": {"model": "smollm2"},
    "qwen3.6-27b-for-throughput": {"model": "qwen3.6-27b", "workload": "throughput"},
    "smollm2-on-cpu": {"model": "smollm2", "gpus": "none"},
}
OF_EVERY_RIG = tuple(WANTS)[:7]


def rigs() -> list[str]:
    return sorted(path.parent.name for path in HOSTS.glob("*/*") if path.name in RIG_FILES)


def document(rig: str) -> dict[str, Any]:
    """The node document of a rig, also of one that is sketched."""
    path = HOSTS / rig / "document.json"
    if path.exists():
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return data
    faults: list[str] = []
    sketch = read_yaml(HOSTS / rig / "sketch.yaml", rig, faults)
    assert not faults, faults
    return read_sketch(sketch, load_matrix())[0]


def decision(rig: str, want: str) -> Plan | Refusal:
    """What `rig` and the want called `want` decide."""
    return decide(Host.from_document(document(rig)), Want.from_data(WANTS[want]), load_matrix())


def golden(rig: str, want: str) -> str:
    """What the golden file of `rig` says of the want called `want`: YAML, its values in JSON."""
    lines = [f"{want}:"]
    for key, value in _summary(decision(rig, want)).items():
        if key == "why_not":
            lines.append(f"  {key}:")
            lines += [f"    {name}: {_json(text)}" for name, text in value.items()]
        else:
            lines.append(f"  {key}: {_json(value)}")
    return "\n".join(lines) + "\n"


def golden_file(rig: str) -> str:
    return "\n".join(golden(rig, want) for want in wants_of(rig))


def wants_of(rig: str) -> list[str]:
    """Names of the wants that a rig is asked: of a sketch only those of `OF_EVERY_RIG`."""
    return list(WANTS) if (HOSTS / rig / "document.json").exists() else list(OF_EVERY_RIG)


def path_of(rig: str) -> Path:
    return PLANS / f"{rig}.yaml"


def findings_path(rig: str) -> Path:
    return FINDINGS / f"{rig}.yaml"


def findings_file(rig: str) -> str:
    """What the doctor says of a rig: YAML, its sentences in JSON."""
    found = diagnose(document(rig), load_findings(), load_matrix())
    lines = [f"verdict: {verdict(found)}"]
    for each in found:
        lines += [f"{each.id}:", f"  severity: {each.severity}", "  says:"]
        lines += [f"    - {_json(sentence)}" for sentence in each.says]
        lines.append(f"  remedy: {_json(each.remedy)}")
    return "\n".join(lines) + "\n"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _summary(decision: Plan | Refusal) -> dict[str, Any]:
    """What is reviewed of a decision; empty values are left out."""
    if isinstance(decision, Refusal):
        found: dict[str, Any] = {
            "refusal": decision.summary,
            "reasons": [] if decision.why_not else decision.reasons,
            "remedies": decision.remedies,
            "why_not": _rivals(decision.why_not),
        }
        return {key: value for key, value in found.items() if value}
    speculation = decision.speculation
    found = {
        "plan": decision.model,
        "engine": f"{decision.engine} {decision.release} {decision.build_tag}",
        "checkpoint": f"{decision.checkpoint} ({decision.quantization})",
        "attention": f"{decision.attention_backend}, {decision.kv_cache_dtype} cache",
        "gpus": [gpu.index for gpu in decision.gpus],
        "tensor_parallel_size": decision.tensor_parallel_size if decision.gpus else None,
        "context": f"{decision.max_model_len:,} x {decision.max_num_seqs}",
        "speculative": speculation and f"{speculation.method} {speculation.tokens}",
        "memory": _memory(decision.memory),
        "features": decision.features,
        "parameters": decision.parameters,
        "warnings": [each.hazard or each.because for each in decision.warnings],
        "assumed": decision.assumed,
        "not_applicable": decision.not_applicable,
        "why_not": _rivals(decision.why_not),
    }
    return {key: value for key, value in found.items() if value not in (None, (), [], {})}


def _memory(memory: MemoryPlan) -> str:
    terms = ", ".join(f"{term.name} {term.bytes / GIB:.2f}" for term in memory.terms)
    needed, available = memory.needed_bytes / GIB, memory.available_bytes / GIB
    return f"{terms}; {needed:.2f} of {available:.2f} GiB of {memory.where}"


def _rivals(rejections: Iterable[Rejection]) -> dict[str, str]:
    """One line for each release and build whose reason tells something of the rig."""
    telling = [each for each in rejections if not any(part in each.reason for part in UNSAID)]
    return {
        name: f"{each.candidate.removeprefix(name).removeprefix(', ')}: {each.reason}".lstrip(": ")
        for name, each in rivals(telling).items()
    }


def cli_page(text: str) -> str:
    """The page with the answer of each command that stands alone in a block with its answer."""
    return _ANSWERED.sub(lambda block: f"```console\n$ {block[1]}\n{_answer(block[1])}```\n", text)


def _answer(line: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        cli.main(shlex.split(line)[1:])
    return out.getvalue()


def main() -> int:
    """Exit status: 0 written, 4 the matrix has faults, as the command line has it."""
    try:
        load_matrix()
    except MatrixError as error:
        print("\n".join(error.faults), file=sys.stderr)
        return 4
    wanted = {path_of(rig): golden_file(rig) for rig in rigs()} | wanted_files()
    for path in (CLI_PAGE, KV_PAGE):
        page = path.read_text(encoding="utf-8")
        if cli_page(page) != page:
            path.write_text(cli_page(page), encoding="utf-8")
            print(f"wrote {path.name}")
    wanted |= {findings_path(rig): findings_file(rig) for rig in rigs()}
    folders = (PLANS, SERVICES, FINDINGS)
    found = {path for folder in folders for path in folder.rglob("*") if path.is_file()}
    for path in sorted(found - set(wanted)):
        print(f"removed {path.relative_to(TESTS)}")
        path.unlink()
    for folder in folders:
        folder.mkdir(exist_ok=True)
    for path, text in wanted.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(TESTS)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
