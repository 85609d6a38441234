"""SGLang's own code, started with a key, tells it to no log: each place that could is known."""

from __future__ import annotations

import ast
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuwright.launch_files import sglang_files, told_by
from gpuwright.load import load_matrix
from gpuwright.records import with_answers
from tools import model_folder

KEY = "a-key-that-nobody-may-read"
RELEASES = [pair for pair in with_answers() if pair[0] == "sglang"]
# What holds all arguments, the key among them.
WHOLE = {"server_args", "get_global_server_args", "launch_command", "argv", "raw_args", "api_key"}
LEVELS = {"info", "warning", "error", "critical", "exception", "log", "warn", "print"}
# Its client, its other servers, and one that logs what a model said.
OTHERS = {"test", "lang", "multimodal_gen", "benchmark", "bench_serving.py"}
TOOL_CALLS = "srt/entrypoints/anthropic/serving.py"


def tells_all(node: ast.AST) -> bool:
    """Whether an expression tells an object that holds the key, and not one of its fields."""
    inside = {child: parent for parent in ast.walk(node) for child in ast.iter_child_nodes(parent)}
    for each in ast.walk(node):
        name = getattr(each, "attr", getattr(each, "id", None))
        above = inside.get(each)
        if isinstance(above, ast.Call) and above.func is each:
            above = inside.get(above)
        if name in WHOLE and not isinstance(above, ast.Attribute):
            return True
    return False


def loggers(package: Path) -> Iterator[str]:
    """Each module that says its arguments as a whole, or the key."""
    for path in sorted(package.rglob("*.py")):
        where = path.relative_to(package)
        if where.parts[0] in OTHERS or str(where) == TOOL_CALLS:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8-sig"))):
            if not isinstance(node, ast.Call):
                continue
            verb = getattr(node.func, "attr", getattr(node.func, "id", None))
            told = [*node.args, *(word.value for word in node.keywords)]
            if verb in LEVELS and any(tells_all(each) for each in told):
                yield ".".join(("sglang", *where.with_suffix("").parts))


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "release"), RELEASES)
def test_every_module_that_logs_its_arguments_is_kept_quiet(engine, release, environments):
    (packages,) = environments(engine, release).directory.glob("venv/lib/python*/site-packages")
    assert set(loggers(packages / "sglang")) == set(told_by(release))


@pytest.mark.slow
@pytest.mark.parametrize("quiet", [True, False])
@pytest.mark.parametrize(("engine", "release"), RELEASES)
def test_its_start_logs_the_key_only_without_our_configuration(
    engine, release, environments, quiet, tmp_path
):
    written = {"RUNTIME_DIRECTORY": str(tmp_path), "SGLANG_API_KEY": KEY}
    subprocess.run(sglang_files(release), env=os.environ | written, check=True)
    matrix = load_matrix()
    folder = model_folder.write(tmp_path, *matrix.checkpoint("llama-3.1-8b-instruct-bf16"))
    place = {"SGLANG_LOGGING_CONFIG_PATH": str(tmp_path / "logging.json")} if quiet else {}
    arguments = ["--model-path", str(folder), "--config", str(tmp_path / "arguments.yaml")]
    told = environments(engine, release).ask(
        {"start": {"arguments": arguments, "environment": place}}, capability="8.6"
    )
    assert "it goes on" in told["started"]
    assert (KEY in told["started"]) == (not quiet)
