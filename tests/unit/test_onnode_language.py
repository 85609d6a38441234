"""What runs on a node may use the standard library of Python 3.8, and nothing else."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ONNODE = Path(__file__).parents[2] / "gpuwright" / "onnode"
MODULES = sorted(ONNODE.glob("*.py"))
# Names that came into the standard library, or its types, after Python 3.8.
NEWER = frozenset(
    {"removeprefix", "removesuffix", "pairwise", "batched", "file_digest", "bit_count"}
    | {"is_relative_to", "hardlink_to", "readlink_to", "ExceptionGroup", "aclosing", "UTC"}
)


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_parses_as_python_3_8(module: Path):
    assert ast.parse(module.read_text(), feature_version=(3, 8))


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_imports_only_the_standard_library_pynvml_and_its_own_package(module: Path):
    allowed = (sys.stdlib_module_names | {"pynvml"}) - {"tomllib", "zoneinfo", "graphlib"}
    for node in ast.walk(ast.parse(module.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            own = name.startswith("gpuwright.onnode.")
            assert own or name.split(".")[0] in allowed, f"{module.name} imports {name}"


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_uses_nothing_newer_than_python_3_8(module: Path):
    tree = ast.parse(module.read_text())
    lazy = any(
        isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body
    )
    assert lazy or module.stem == "__init__", "annotations such as dict[str, int] must stay text"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            assert node.attr not in NEWER, f"{module.name}:{node.lineno} {node.attr}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "zip":
            assert not node.keywords, f"{module.name}:{node.lineno} zip(strict=) is Python 3.10's"
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Subscript):
            base = node.value.value
            generic = isinstance(base, ast.Name) and re.match(
                r"(?:dict|list|tuple|set|type|Callable)\Z", base.id
            )
            assert not generic, f"{module.name}:{node.lineno} a generic alias is Python 3.9's"


def test_the_shell_program_is_posix_shell():
    for shell in ("dash", "busybox sh"):
        if shutil.which(shell.split()[0]):
            subprocess.run([*shell.split(), "-n", str(ONNODE / "look.sh")], check=True)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not here")
def test_the_shell_program_has_nothing_that_shellcheck_minds():
    checked = subprocess.run(
        ["shellcheck", "-s", "sh", str(ONNODE / "look.sh")], capture_output=True, text=True
    )
    assert checked.stdout == ""
