"""What is taken from a source on its way to a node changes nothing of what it does."""

import ast
import importlib.util
import sys
import types
from pathlib import Path

import pytest

from gpuwright import carry
from gpuwright.shrink import reduced, without_prose

ONNODE = sorted((Path(carry.__file__).parent / "onnode").glob("*.py"))
STANDARD = [
    Path(spec.origin)
    for name in ("argparse", "textwrap", "ctypes", "json.decoder", "inspect", "this")
    if (spec := importlib.util.find_spec(name)) and spec.origin
]


class _Silent(ast.NodeTransformer):
    """Takes texts that are statements out of a tree."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                kept = [one for one in block if not _text(one)]
                if block and not kept and not isinstance(node, ast.Module):
                    kept = [ast.Pass()]
                setattr(node, name, kept)
        return node


def _text(node: object) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def meaning(source: str) -> str:
    return ast.dump(_Silent().visit(ast.parse(source)))


@pytest.mark.parametrize(
    "path", [*ONNODE, *STANDARD], ids=lambda path: path.parent.name + path.stem
)
def test_a_source_without_prose_means_the_same(path: Path):
    source = path.read_text(encoding="utf-8")
    short = without_prose(source)
    assert meaning(short) == meaning(source)
    assert len(short) < len(source)


def test_only_prose_that_has_lines_of_its_own_is_taken():
    source = '''
def f():
    """Doc
    # no comment
    """

class C:
    "only this"
    # and this

x = """a

# kept

"""  # a comment that stays
y = 1; "not on a line of its own"
'''
    assert without_prose(source) == (
        "def f():\n    pass\nclass C:\n    pass\n"
        'x = """a\n\n# kept\n\n"""  # a comment that stays\n'
        'y = 1; "not on a line of its own"\n'
    )


MODULE = """
import sys
A = 1
B = A + 1
ERROR_ONE = 7
def used(n):
    return helper(n) + B
def helper(n):
    return n
def helper(n):
    return n + 1
@decorated
def unused(): pass
def decorated(f): return f
class Alone: pass
if sys:
    later = used(1)
[0][0]
"""


def test_a_reduced_module_keeps_what_is_named_and_what_that_names():
    module = types.ModuleType("m")
    exec(compile(reduced(MODULE, {"used", "absent"}, "ERROR_"), "m", "exec"), module.__dict__)
    assert module.used(1) == 4
    assert (module.ERROR_ONE, module.later) == (7, 4)
    for name in ("unused", "decorated", "Alone", "absent"):
        assert not hasattr(module, name)


def test_the_reduced_pynvml_has_all_that_the_programs_call_and_every_error():
    import pynvml

    module = types.ModuleType("reduced_pynvml")
    source = carry.pynvml("probe")
    assert source is not None
    sys.modules["reduced_pynvml"] = module
    try:
        exec(compile(source, "pynvml", "exec"), module.__dict__)
    finally:
        del sys.modules["reduced_pynvml"]
    called = {
        name
        for _, text in carry.modules("probe")
        for name in carry._NVML_NAME.findall(text)
        if hasattr(pynvml, name)
    }
    assert "nvmlDeviceGetMemoryInfo" in called
    for name in called | {name for name in vars(pynvml) if name.startswith("NVMLError")}:
        assert hasattr(module, name), name
    assert str(module.NVMLError(15)) == "GPU is lost"
    assert isinstance(module.NVMLError(15), module.NVMLError_GpuIsLost)
    assert not hasattr(module, "nvmlDeviceSetPowerManagementLimit")
