"""Carry a program to a node as one shell command, and read what it answered.

The whole command must stay below 128 KiB: a shell, sudo and sshd pass it on as one argument, and
Linux takes no longer one.
"""

import ast
import base64
import functools
import importlib.util
import json
import re
import shlex
import zlib
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpuwright import capture
from gpuwright.captured import BEGIN
from gpuwright.layout import Layout
from gpuwright.shrink import reduced, without_prose

PROGRAMS = ("probe", "fetch", "build", "share", "environment", "rehearse", "gate", "write")
OLDEST_PYTHON = (3, 8)
NEEDED = "python3 >= 3.8 needed on the node"
LONGEST_COMMAND = 128 * 1024 - 4096
"""Bytes; 4 KiB are left for what pyinfra, sudo and their quoting put around it."""

_PACKAGE = "gpuwright.onnode"
_ASK_NVML = ("probe", "gate")
_NVML_NAME = re.compile(r"\b(?:nvml[A-Z]|NVML_)\w+")
"""A function or constant of pynvml: programs write it in full, so that their text tells it."""

# On one line, without a single quote, `!`, backslash or newline: no shell and no quoting around it
# changes it. It must parse in Python 2 and in every Python 3 to say that it is too old.
_BOOTSTRAP = (
    "import sys;"
    "v=sys.version_info;"
    f"old=v<{OLDEST_PYTHON};"
    'old and sys.stdout.write("{%sok%s:false,%serror%s:%s'
    + NEEDED
    + ', found %d.%d%s,%shint%s:%s%s}"%((chr(34),)*5+(v[0],v[1])+(chr(34),)*5)+chr(10));'
    "old and sys.exit(2);"
    "import base64,json,zlib;"
    "o=lambda t:zlib.decompress(base64.b64decode(t)).decode();"
    "a=sys.argv;"
    "b=json.loads(o(a[1]));"
    "m=lambda n:sys.modules.setdefault(n,type(sys)(n));"
    "[exec(compile(s,n,chr(101)+chr(120)+chr(101)+chr(99)),m(n).__dict__) for n,s in b];"
    'sys.exit(m("gpuwright.onnode.outcome").conclude('
    "m(b[-1][0]).main,o(a[2]),a[3] if len(a)>3 else None))"
)


def _packed(text: str) -> str:
    # Level 6: level 9 takes three times as long for pynvml and saves one part in fifty.
    return base64.b64encode(zlib.compress(text.encode(), 6)).decode()


@functools.cache
def modules(program: str) -> tuple[tuple[str, str], ...]:
    """(full name, source) of each module that `program` needs, itself last.

    Order is that of the imports: each module stands after those it names.
    """
    folder = Path(__file__).parent / "onnode"
    found: dict[str, str] = {}

    def visit(name: str) -> None:
        if f"{_PACKAGE}.{name}" in found:
            return
        source = (folder / f"{name}.py").read_text(encoding="utf-8")
        for statement in ast.parse(source).body:
            if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith(
                f"{_PACKAGE}."
            ):
                visit((statement.module or "").removeprefix(f"{_PACKAGE}."))
        found.setdefault(f"{_PACKAGE}.{name}", source)

    visit("outcome")
    visit(program)
    return tuple(found.items())


@functools.cache
def _program(program: str) -> str:
    return _packed(json.dumps([(name, without_prose(text)) for name, text in modules(program)]))


@functools.cache
def pynvml(program: str) -> str | None:
    """What `program` names of the control machine's own pynvml; None where it has none.

    Its error codes stay whole: it makes an exception of each.
    """
    found = importlib.util.find_spec("pynvml")
    if found is None or found.origin is None or not found.origin.endswith(".py"):
        return None
    wanted = {name for _, text in modules(program) for name in _NVML_NAME.findall(text)}
    source = Path(found.origin).read_text(encoding="utf-8")
    return without_prose(reduced(source, wanted, r"NVML_(ERROR|SUCCESS)"))


@functools.cache
def _packed_pynvml(program: str) -> str | None:
    source = pynvml(program)
    return None if source is None else _packed(source)


@functools.cache
def shell_program() -> str:
    """onnode/look.sh on one line."""
    text = (Path(__file__).parent / "onnode" / "look.sh").read_text(encoding="utf-8")
    lines = [line.strip() for line in text.splitlines()]
    kept = [line for line in lines if line and not line.startswith("#")]
    goes_on = re.compile(r".*(?:\b(?:then|do|else)|[{&])\Z")
    return "".join(line + (" " if goes_on.match(line) else "; ") for line in kept).rstrip("; ")


def _looking(spec: dict[str, Any]) -> str:
    """The shell program in a shell of its own, with its arguments."""
    words = [str(spec.get("root") or ""), *(spec.get("disks") or [])]
    return f"(set -- {shlex.join(words)}; {shell_program()})"


def command(program: str, spec: dict[str, Any]) -> str:
    """One shell command that runs `program` with `spec` on a node that has Python.

    Safe for any POSIX shell, and under further quoting and sudo. Secrets do not belong into
    `spec`: they go to the program's standard input. A node without python3, or with one that is
    too old, is looked at by its shell; to any other program it answers as one that failed, with an
    error that starts with `NEEDED`. A probe without a layout looks where `Layout` says.
    ValueError: no such program, or the command would be too long.
    """
    if program not in PROGRAMS:
        raise ValueError(f"program {program!r}: known are {', '.join(PROGRAMS)}")
    if program == "probe":
        spec = {"layout": asdict(Layout()), **spec}
    words = ["python3", "-I", "-S", "-c", _BOOTSTRAP, _program(program), _packed(json.dumps(spec))]
    nvml = _packed_pynvml(program) if program in _ASK_NVML else None
    if nvml is not None:
        words.append(nvml)
    if program == "probe":
        otherwise = "(exit 127)"
        # 0 and 1 are the program's own; any other status is a python3 that cannot run it.
        after = f"; status=$?; if [ $status -gt 1 ]; then {_looking(spec)}; else exit $status; fi"
    else:
        missing = json.dumps({"ok": False, "error": NEEDED, "hint": "install python3"})
        otherwise, after = f"echo {shlex.quote(missing)}", ""
    line = (
        f"if command -v python3 >/dev/null 2>&1; then {shlex.join(words)}; "
        f"else {otherwise}; fi{after}"
    )
    if len(shlex.quote(line)) > LONGEST_COMMAND:
        raise ValueError(f"{program}: the command has {len(line)} bytes: split the specification")
    return line


def parse(lines: Iterable[str]) -> dict[str, Any]:
    """The answer among a command's stdout lines: the last that is a JSON object, or what a shell
    saw of the node.

    Banners and other lines before it are passed over. A node document has no key `ok`; without
    any answer the result is that of a program that failed, with the last line heard.
    """
    heard = ""
    lines = list(lines)
    for place in range(len(lines) - 1, -1, -1):
        text = lines[place].strip()
        if text == BEGIN:
            return capture.document(lines[place:])
        if text.startswith("{") and text.endswith("}"):
            try:
                value = json.loads(text)
            except (ValueError, RecursionError):
                value = None
            if isinstance(value, dict):
                return value
        heard = heard or text[:300]
    said = f"; it said: {heard}" if heard else ""
    return {"ok": False, "error": f"the node gave no answer{said}", "hint": ""}
