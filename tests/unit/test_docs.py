"""Pages name exactly what the code has: keys, documents, paths, figures, links, commands."""

import ast
import dataclasses
import importlib
import importlib.util
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from facts.node import Section
from gpuwright import cli
from gpuwright.host import Host
from gpuwright.launch import launch
from gpuwright.layout import Layout
from gpuwright.load import load_matrix
from gpuwright.plan import Plan
from gpuwright.selection import decide
from gpuwright.units import render_unit
from gpuwright.want import KEYS, Want
from tests.nvml import rigs
from tests.unit.onnode_rig import listen, put, run, site
from tools import golden

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


def tables(page: Path, first: str) -> Iterator[list[str]]:
    """Cells of every row of the tables whose first column is called `first`."""
    inside = False
    for line in page.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            inside = False
        elif cells[0] == first:
            inside = True
        elif inside and not set(cells[0]) <= {"-"}:
            yield cells


def quoted(cell: str) -> str:
    match = re.match(r"`([^`]+)`", cell)
    assert match, cell
    return match[1]


# want.md

WANTED = {quoted(row[0]): row for row in tables(DOCS / "want.md", "key")}


def test_want_page_names_every_key_in_order_and_no_other() -> None:
    assert tuple(WANTED) == KEYS


@pytest.mark.parametrize("key", KEYS)
def test_default_on_the_want_page_is_the_code_s(key: str) -> None:
    default = next(field.default for field in dataclasses.fields(Want) if field.name == key)
    shown = WANTED[key][2]
    if default is None:
        assert "`" not in shown
    else:
        assert ast.literal_eval(quoted(shown)) == default


BESIDE = {"images_per_prompt": {"vision": True}, "max_lora_rank": {"lora": {"a": "/srv/a"}}}
"""What stands beside a key that means nothing alone."""


@pytest.mark.parametrize("key", KEYS)
def test_example_on_the_want_page_is_taken(key: str) -> None:
    value = ast.literal_eval(quoted(WANTED[key][3]))
    want = Want.from_data({key: value, **BESIDE.get(key, {})})
    assert getattr(want, key) != getattr(Want(), key)


@pytest.mark.parametrize("key", ["max_model_len", "max_num_seqs", "port", "start_timeout_seconds"])
def test_range_on_the_want_page_is_the_code_s(key: str) -> None:
    low, high = (int(text.replace(",", "")) for text in re.findall(r"[\d,]+", WANTED[key][1])[:2])
    for inside, outside in ((low, low - 1), (high, high + 1)):
        assert getattr(Want.from_data({key: inside}), key) == inside
        with pytest.raises(Exception, match=f"{key}: needs"):
            Want.from_data({key: outside})


def test_workloads_on_the_want_page_are_the_catalogue_s() -> None:
    named = re.search(r"service is for: (.*?);", WANTED["workload"][4])
    assert named
    assert re.findall(r"`([^`]+)`", named[1]) == [row.id for row in load_matrix().workloads]


def test_run_options_on_the_want_page_are_those_that_deploys_read() -> None:
    read = set()
    for path in (ROOT / "deploys").rglob("*.py"):
        read |= set(re.findall(r"host\.data\.get\(\"(\w+)\"", path.read_text()))
    assert {quoted(row[0]) for row in tables(DOCS / "want.md", "option")} == read - {"gpuwright"}


# node-document.md

SYSTEMCTL = """#!/bin/sh
echo LoadState=loaded ActiveState=active SubState=running UnitFileState=enabled MainPID=77 \
Result=success NRestarts=0 NeedDaemonReload=no ControlGroup=/system.slice/x.service \
FragmentPath=/x.service DropInPaths=/x.conf | tr ' ' '\\n'
"""
NODE = {
    "/etc/passwd": "root:x:0:0::/:/bin/sh\ngpuwright:x:998:998::/nonexistent:/bin/false\n",
    "/etc/group": "root:x:0:\n",
    "/etc/gpuwright/services/llm.env": "LLAMA_API_KEY=0123456789abcdef\n",
    "/var/lib/gpuwright/plans/llm.json": "{}",
    "/var/cache/gpuwright/build/k/object.o": "left",
    "/var/lib/dpkg/status": "Package: cmake\nStatus: install ok installed\nVersion: 3.25\n\n"
    "Package: nvidia-driver\nStatus: install ok installed\nVersion: 535\n",
    "/dev/kmsg": "NVRM: Xid (PCI:0000:01:00): 31, x\nNVRM: Xid (PCI:0000:03:00): 79, x\n",
    "/dev/nvidia0": "",
    "/proc/1/comm": "systemd\n",
    "/proc/cpuinfo": "model name\t: A CPU\nflags\t: avx2\n",
    "/proc/self/mountinfo": "1 0 8:1 / / rw - ext4 /dev/sda rw\n",
    "/proc/net/fib_trie": "Local:\n  |-- 10.0.0.1\n     /32 host LOCAL\n",
    "/srv/tone/adapter_config.json": '{"use_dora": true}',
    "/srv/tone/adapter_model.bin": "",
    "/proc/77/environ": "GPUWRIGHT_PLAN=abc\0",
    "/run/systemd/system/x": "",
    "/sys/bus/pci/devices/0000:01:00.0/class": "0x030000\n",
    "/sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n",
    "/sys/bus/pci/devices/0000:01:00.0/device": "0x2204\n",
    "/sys/bus/pci/devices/0000:03:00.0/class": "0x030000\n",
    "/sys/bus/pci/devices/0000:03:00.0/vendor": "0x10de\n",
    "/sys/bus/pci/devices/0000:03:00.0/device": "0x2204\n",
    "/sys/fs/cgroup/system.slice/x.service/cgroup.procs": "77\n",
    "/etc/systemd/system/gpuwright-llm.service": "",
    "/opt/gpuwright/engines/e/gpuwright.json": json.dumps(
        {"files": {"gpuwright.sha256": {}}, "sites": {"lib": "other names"}}
    ),
    "/var/lib/gpuwright/models/m/gpuwright.json": "{}",
    "/var/lib/dkms/nvidia/1/source": "",
    "/sys/devices/system/node/node0/cpulist": "0\n",
    "/usr/bin/python3.12": "",
    "/usr/bin/gcc": "",
    "/usr/local/cuda/bin/nvcc": "",
    "/etc/environment": "http_proxy=http://proxy:1\n",
    "/etc/apt/sources.list": "deb http://mirror/debian x main\n",
}
OPEN = {"disks", "named", "packages", "ours.files", "ours.stamps", "ours.partials", "ours.altered"}
"""Mappings whose keys are names from the node, not ours."""


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the probe says of a tree that has something of everything."""
    folder = tmp_path_factory.mktemp("node")
    root = put(folder / "root", NODE)
    (root / "proc/77/exe").symlink_to("/bin/true")
    (root / "sys/bus/pci/devices/0000:03:00.0/driver").symlink_to("../nvidia")
    tools = put(folder / "tools", {"systemctl": SYSTEMCTL, "scenario": rigs.everything()})
    (tools / "systemctl").chmod(0o755)
    environment = {
        "PATH": f"{tools}:/usr/bin:/bin",
        "LD_LIBRARY_PATH": str(rigs.build(folder / "library")),
        "NVML_SCENARIO": str(tools / "scenario"),
    }
    spec = {
        "root": str(root),
        "service": "llm",
        "disks": ["/"],
        "packages": ["cmake"],
        "named": {"/srv/tone": True},
    }
    with site(lambda exchange: exchange.reply_json({"data": [{"id": "a"}]})) as engine:
        listen(root, engine.port, "gpuwright-llm.service")
        answer, finished = run("probe", spec | {"port": engine.port}, environment=environment)
    assert finished.returncode == 0
    return answer


def keys_of(value: object, path: str = "") -> Iterator[str]:
    """Every leaf of a document, as the page writes it."""
    if isinstance(value, dict) and value and path != "ours.stamps.*":
        for key, inner in value.items():
            name = "*" if path in OPEN else key
            yield from keys_of(inner, f"{path}.{name}".lstrip("."))
    elif isinstance(value, list):
        for inner in value or [None]:
            yield from keys_of(inner, f"{path}[]")
    else:
        yield path


def test_document_page_names_every_key_of_a_probe_s_answer_and_no_other(
    document: dict[str, Any],
) -> None:
    named = [quoted(row[0]) for row in tables(DOCS / "node-document.md", "key")]
    assert len(set(named)) == len(named)
    # An entry of `files` is null where nothing is there, and a mapping elsewhere.
    assert set(named) == set(keys_of(document)) - {"ours.files.*"}


def test_statuses_on_the_document_page_are_the_code_s() -> None:
    from gpuwright.host import GPU_STATUSES

    rows = {quoted(row[0]): row[1] for row in tables(DOCS / "node-document.md", "key")}
    assert tuple(re.findall(r"`([^`]+)`", rows["gpus.status"])) == GPU_STATUSES


def test_sections_on_the_document_page_are_facts() -> None:
    named = set(
        re.findall(r"`(?:facts\.\w+\.)?([A-Z]\w+)`", (DOCS / "node-document.md").read_text())
    )
    for module in ("facts.cuda", "facts.driver", "facts.engines", "facts.gpu", "facts.system"):
        importlib.import_module(module)
    assert named == {section.__name__ for section in Section.__subclasses__()}


# model-store.md and unit.md


def test_store_page_names_every_kind_of_source_with_its_keys() -> None:
    from gpuwright.model_rows import FileRow
    from gpuwright.plan import Source

    for kind, needs, _ in tables(DOCS / "model-store.md", "kind"):
        words = re.findall(r"`([^`]+)`", needs)
        bare = FileRow(path="x", bytes=1, sha256="0" * 64, sources=(Source(kind=quoted(kind)),))
        missing = [fault for fault in bare.faults() if fault.startswith(".sources")]
        assert missing == [f".sources[0].{word}: missing" for word in words]


def test_unit_page_names_every_path_of_the_layout_and_no_other() -> None:
    layout = Layout()
    names = [field.name for field in dataclasses.fields(Layout)]
    names += [name for name, value in vars(Layout).items() if isinstance(value, property)]
    wanted = {getattr(layout, name) for name in names}
    assert {quoted(row[0]) for row in tables(DOCS / "unit.md", "path")} == wanted


def unit_of(rig: str, **want: Any) -> str:
    node = Host.from_document(golden.document(rig))
    plan = decide(node, Want.from_data(want), load_matrix())
    assert isinstance(plan, Plan)
    return render_unit(
        plan=plan,
        launch=launch(plan, Layout(), "/var/lib/gpuwright/models/m/m.gguf", "/opt/e"),
        layout=Layout(),
        engine_dir="/opt/e",
        templates=ROOT / "templates",
        systemd_version=252,
    )


UNITS = {
    "CPU, loopback": lambda: unit_of("cpu-debian12"),
    "CPU, every address": lambda: unit_of("cpu-debian12", bind="0.0.0.0"),
    "GPU, loopback": lambda: unit_of("1x3090", model="Qwen3.6-27B", engine="llama.cpp"),
}


def _systemd_version() -> str | None:
    if shutil.which("systemd-analyze") is None:
        return None
    done = subprocess.run(["systemd-analyze", "--version"], capture_output=True, text=True)
    return done.stdout.split()[1]


@pytest.mark.skipif(_systemd_version() != "252", reason="figures are those of systemd 252")
@pytest.mark.parametrize("unit", UNITS)
def test_figure_of_a_unit_file_is_the_page_s(tmp_path: Path, unit: str) -> None:
    (figure,) = (
        row[2] for row in tables(DOCS / "unit.md", "unit") if (row[0], row[1]) == (unit, "its file")
    )
    path = tmp_path / "gpuwright-llm.service"
    path.write_text(UNITS[unit]())
    rating = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert f" {figure} " in rating.stdout.splitlines()[-1]


@pytest.mark.parametrize("word", ["DeviceAllow", "PrivateDevices", "MemoryDenyWriteExecute"])
def test_relaxation_on_the_unit_page_is_one_of_the_gpu_unit_alone(word: str) -> None:
    gpu, cpu = UNITS["GPU, loopback"](), UNITS["CPU, loopback"]()
    relaxed = " ".join(row[0] for row in tables(DOCS / "unit.md", "relaxation"))
    assert f"`{word}=`" in relaxed
    assert (f"\n{word}=" in gpu) != (f"\n{word}=" in cpu)


# Links and commands of all pages


def code(page: Path) -> Iterator[str]:
    """Command lines: behind a prompt in fenced blocks, in backquotes elsewhere."""
    fenced = False
    for line in page.read_text().splitlines():
        if line.startswith("```"):
            fenced = not fenced
        elif fenced:
            if line.startswith("$ "):
                yield line[2:].split(" #")[0].strip()
        else:
            yield from re.findall(r"`([^`]+)`", line)


@pytest.mark.parametrize("name", NAMES)
def test_links_resolve(name: str) -> None:
    page = ROOT / name
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if not target.startswith("https://"):
            assert (page.parent / target.split("#")[0]).exists(), target


@pytest.mark.parametrize("name", NAMES)
def test_commands_exist(name: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for line in code(ROOT / name):
        if modules := re.findall(r"python3? -m ([\w.]+)", line):
            assert importlib.util.find_spec(modules[0]), line
        if target := re.match(r"(?:\w+=\w+ )*make (\w+)$", line):
            assert re.search(rf"^{target[1]}:", makefile, re.MULTILINE), line
        if command := re.match(r"gpuwright (\w+)", line):
            assert command[1] in cli.COMMANDS, line
            _arguments_are_known(command[1], line)
        if line.startswith("pyinfra "):
            for word in line.split():
                if "/" in word and word.endswith(".py"):
                    assert (ROOT / word).exists(), line
                if word.startswith("facts."):
                    module, _, fact = word.rpartition(".")
                    assert hasattr(importlib.import_module(module), fact), line


def test_help_of_make_prints_and_runs_nothing() -> None:
    helped = (ROOT / "Makefile").read_text().partition("\nhelp:\n")[2].partition("\n\n")[0]
    assert all(re.fullmatch(r"\t@echo \"make [^`$\"]+\"", line) for line in helped.splitlines())
    assert "make test " in helped


def _arguments_are_known(command: str, line: str) -> None:
    import argparse

    parser = argparse.ArgumentParser()
    importlib.import_module(cli.COMMANDS[command][0]).configure(parser)
    known = {option for action in parser._actions for option in action.option_strings}
    assert {word for word in line.split() if word.startswith("-")} <= known, line


def test_pages_name_commands_at_all() -> None:
    lines = [line for page in PAGES for line in code(page)]
    for start in ("make ", "pyinfra ", "gpuwright ", "python -m "):
        assert any(line.startswith(start) for line in lines), start


@pytest.mark.parametrize("name", NAMES)
def test_files_that_a_page_names_are_there(name: str) -> None:
    rooms = ("deploys/", "facts/", "gpuwright/", "inventory/", "templates/", "tests/", "tools/")
    for word in code(ROOT / name):
        if word.startswith(rooms) and re.fullmatch(r"[\w./-]+", word):
            assert (ROOT / word).exists(), word
