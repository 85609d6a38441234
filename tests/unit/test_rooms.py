"""Imports run one way, and only the command line starts processes: held by reading the code."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = {"gpuwright", "facts", "deploys", "inventory", "tools", "benchmarks", "tests"}
MAY_IMPORT = {
    "gpuwright": set(),
    "facts": {"gpuwright"},
    "deploys": {"gpuwright", "facts"},
    "inventory": {"gpuwright", "facts", "tests"},
}
STARTS_PROCESSES = {"gpuwright/cli.py", "gpuwright/connect.py"}
FORBIDDEN_IN_THE_CORE = {"pyinfra", "gevent", "paramiko", "requests", "urllib3", "socket"}


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""


def _files(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


@pytest.mark.parametrize("room", sorted(MAY_IMPORT))
def test_a_room_imports_only_rooms_below_it(room: str) -> None:
    files = _files(room)
    assert files
    allowed = MAY_IMPORT[room] | {room}
    for path in files:
        used = {name.split(".")[0] for name in _imports(path)} & ROOMS
        assert used <= allowed, f"{path.relative_to(ROOT)} imports {sorted(used - allowed)}"


def test_the_core_knows_neither_pyinfra_nor_the_network() -> None:
    for path in _files("gpuwright"):
        if "onnode" in path.parts:
            continue
        used = {name.split(".")[0] for name in _imports(path)}
        assert not used & FORBIDDEN_IN_THE_CORE, path


def test_only_the_command_line_starts_processes() -> None:
    for path in _files("gpuwright"):
        name = str(path.relative_to(ROOT))
        on_nodes = {"onnode", "questions"} & set(path.parts)
        if not on_nodes and name not in STARTS_PROCESSES:
            assert "subprocess" not in set(_imports(path)), name


def test_programs_for_nodes_use_the_standard_library_and_each_other_alone() -> None:
    import sys

    for path in _files("gpuwright/onnode"):
        for name in _imports(path):
            top = name.split(".")[0]
            known = name.startswith("gpuwright.onnode") or top in sys.stdlib_module_names
            assert known or top == "pynvml", f"{path.name} imports {name}"


def test_no_module_has_500_lines() -> None:
    for room in ("gpuwright", "facts", "deploys", "tests", "tools", "benchmarks"):
        for path in _files(room):
            assert len(path.read_text().splitlines()) < 500, path
