"""What is removed from a node: what nothing uses, and of that the newest stay."""

import json
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gpuwright.onnode.retire import retire
from gpuwright.onnode.stamps import STAMP
from gpuwright.retiring import retire_spec
from gpuwright.want import Want

ENGINES = "opt/gpuwright/engines"
TOOLKITS = "opt/gpuwright/toolkits"
PYTHONS = "opt/gpuwright/pythons"
CACHE = "var/cache/gpuwright"
NEW = "vllm-0.33.0-aaaaaaaaaaaa"


class Node:
    """A node's root with the engine `NEW`, which was just made."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.put(f"{ENGINES}/{NEW}", 0)

    def put(self, path: str, age: int, complete: str = STAMP) -> Path:
        place = self.root / path
        (place / complete).parent.mkdir(parents=True)
        (place / complete).write_text("{}")
        os.utime(place / complete, ns=(10**18 - age, 10**18 - age))
        return place

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def spec(self, **want: Any) -> dict[str, Any]:
        text = json.dumps(retire_spec(Want(**want)))
        found: dict[str, Any] = json.loads(text.replace('"/', f'"{self.root}/'))
        return found

    def retire(self, **want: Any) -> set[str]:
        """Paths below the root of what is removed."""
        removed = retire(self.spec(**want), f"{self.root}/{ENGINES}/{NEW}")
        assert not any(Path(path).exists() for path in removed)
        return {path[len(str(self.root)) + 1 :] for path in removed}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_of_what_nothing_uses_the_two_newest_of_an_engine_stay(node: Node) -> None:
    for age, name in enumerate(("0.32.0-b", "0.31.0-c", "0.30.0-d", "0.29.0-e", "0.28.0-f"), 1):
        node.put(f"{ENGINES}/vllm-{name}", age)
    node.put(f"{ENGINES}/llama.cpp-b11434-1", 99)
    node.put(f"{ENGINES}/vllm-omni-1.0-1", 99)
    node.put(f"{ENGINES}/vllm-0.20.0-g.partial", 99)
    (node.root / ENGINES / "vllm-0.27.0-half").mkdir()
    node.write("var/lib/gpuwright/plans/llm.json", f'"{node.root}/{ENGINES}/vllm-0.29.0-e"')
    assert node.retire() == {f"{ENGINES}/vllm-0.28.0-f", f"{ENGINES}/vllm-0.30.0-d"}
    left = {path.name for path in (node.root / ENGINES).iterdir()}
    assert {NEW, "vllm-0.29.0-e", "vllm-0.31.0-c", "llama.cpp-b11434-1", "vllm-omni-1.0-1"} <= left
    assert {"vllm-0.27.0-half", "vllm-0.20.0-g.partial"} <= left


def test_the_operator_says_how_many_stay(node: Node) -> None:
    for age in range(1, 6):
        node.put(f"{ENGINES}/vllm-0.2{age}.0-a", age)
    assert len(node.retire(keep_engines=4)) == 1
    assert len(node.retire(keep_engines=1)) == 3


def test_what_a_unit_names_or_a_process_runs_stays(node: Node) -> None:
    for age in range(1, 6):
        node.put(f"{ENGINES}/vllm-0.2{age}.0-a", age)
    node.write("etc/systemd/system/gpuwright-x.service", f"{node.root}/{ENGINES}/vllm-0.25.0-a/bin")
    held = f"{node.root}/{ENGINES}/vllm-0.24.0-a"
    process = subprocess.Popen(["/bin/sh", "-c", "read word", held], stdin=subprocess.PIPE)
    try:
        assert node.retire(keep_engines=1) == {
            f"{ENGINES}/vllm-0.22.0-a",
            f"{ENGINES}/vllm-0.23.0-a",
        }
    finally:
        process.communicate(b"\n")


def test_toolkits_go_that_builds_take_no_longer(node: Node) -> None:
    names = [f"{TOOLKITS}/cuda-13.{minor}.1-x86_64-a" for minor in range(3, 8)]
    for age, name in enumerate(names):
        node.put(name, age)
    compiling = f"{node.root}/{names[4]}/bin/nvcc"
    process = subprocess.Popen(["/bin/sh", "-c", "read word", compiling], stdin=subprocess.PIPE)
    try:
        assert node.retire() == {names[2], names[3]}
    finally:
        process.communicate(b"\n")


def test_a_python_stays_with_the_environments_that_lead_to_it(node: Node) -> None:
    names = [f"{PYTHONS}/cpython-3.1{minor}.1-linux-x86_64-gnu" for minor in range(5)]
    for age, name in enumerate(names):
        node.put(name, age)
    # uv names the minor version alone, through a link.
    (node.root / PYTHONS / "cpython-3.14-linux-x86_64-gnu").symlink_to(Path(names[4]).name)
    home = f"home = {node.root}/{PYTHONS}/cpython-3.14-linux-x86_64-gnu/bin\n"
    node.write(f"{ENGINES}/{NEW}/pyvenv.cfg", home)
    assert node.retire() == {names[2], names[3]}
    assert (node.root / names[4]).is_dir()


def test_what_a_release_compiled_goes_with_the_last_engine_of_it(node: Node) -> None:
    node.put(f"{CACHE}/vllm-0.33.0", 9, "triton/kernel")
    node.put(f"{CACHE}/vllm-0.30.0", 9, "triton/kernel")
    for name in ("sources", "ccache", "build", "uv"):
        node.put(f"{CACHE}/{name}", 99, "file")
    assert node.retire() == {f"{CACHE}/vllm-0.30.0"}


def test_packed_builds_of_runs_that_ended_early_go_after_a_day(node: Node) -> None:
    for name, age in (("old", 90000), ("new", 60)):
        node.write(f"{CACHE}/build.{name}.tar", "")
        seen = time.time() - age
        os.utime(node.root / CACHE / f"build.{name}.tar", (seen, seen))
    assert node.retire() == {f"{CACHE}/build.old.tar"}


def test_runs_that_clear_up_at_once_remove_each_thing_once(node: Node) -> None:
    names = {f"{TOOLKITS}/cuda-13.{minor}-a" for minor in range(40)}
    for age, name in enumerate(sorted(names)):
        node.put(name, age)
    spec, own = node.spec(keep_engines=1), f"{node.root}/{ENGINES}/{NEW}"
    with ThreadPoolExecutor(8) as pool:
        runs = [pool.submit(retire, spec, own) for _ in range(8)]
        removed = [path for run in runs for path in run.result()]
    assert len(removed) == len(set(removed)) == 39
    assert len(list((node.root / TOOLKITS).iterdir())) == 1
