"""Ask an engine's own code what it would do on every card, and record it; no GPU is needed.

`python -m tools.ask_engine vllm 0.33.0` installs what that release's lock says into an environment
of its own (9-10 GB, kept until it is deleted) and writes its record into gpuwright/matrix/records.
`--sample N --seed S` asks N random cells instead and compares them with the record.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import platform
import random
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gpuwright.load import load_matrix
from gpuwright.lock_rows import LOCKS
from gpuwright.records import AXES, RECORDS, Cell, load_record
from tools.engine_environment import ENGINES, TOOLCHAINS, EngineEnvironment, install
from tools.package_index import PackageIndex
from tools.record_text import outcome, record_text

CAPABILITIES = ("7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "12.0", "12.1")
HEADS = ("64", "80", "96", "128", "192", "256", "512", "mla")
"""`mla` is a latent of 512 with 64 for positions, as DeepSeek has it."""
BOTH = ("no", "yes")
PROCESSES = 2
CELLS_A_PROCESS = 4


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.ask_engine", description=__doc__)
    parser.add_argument("engine", choices=sorted(TOOLCHAINS))
    parser.add_argument("release")
    parser.add_argument("--environment", type=Path, help="where it is installed, and kept")
    parser.add_argument("--cells", type=Path, help="ask these cells (JSON) and print the answers")
    parser.add_argument("--sample", type=int, help="ask this many random cells of the record")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="where the record is written")
    told = parser.parse_args(arguments)
    environment = environment_of(told.engine, told.release, told.environment)
    if told.cells is not None:
        cells = [Cell(**cell) for cell in json.loads(told.cells.read_text(encoding="utf-8"))]
        print(json.dumps(list(answers(environment, cells).values()), indent=1))
        return 0
    if told.sample is not None:
        wrong = differing(environment, told.sample, told.seed)
        print("\n".join(wrong) or f"{told.sample} cells answered as recorded")
        return 1 if wrong else 0
    return record(environment, told.out or RECORDS)


def environment_of(engine: str, release: str, directory: Path | None = None) -> EngineEnvironment:
    """The installed environment of a release with CUDA that is locked for this machine; it is
    installed where needed. LookupError where it has no lock."""
    here = (engine, release, platform.machine())
    for row in load_matrix().locks:
        if (row.engine, row.release, row.architecture) == here and row.sha256 is not None:
            tag = load_matrix().engine_release(engine, release).build_tag(row.build_tag)
            if tag.cuda is None:
                continue
            home = directory or ENGINES / f"{engine}-{release}"
            return install(
                engine,
                release,
                tag.cuda,
                home.absolute(),
                LOCKS / row.filename,
                python=row.python[0],
                index=PackageIndex(),
            )
    raise LookupError(f"{engine} {release}: no lock; `python -m tools.lock` makes one")


def answers(environment: EngineEnvironment, cells: Iterable[Cell]) -> dict[Cell, dict[str, Any]]:
    """What the engine says to each cell; one process per card and toolchain, two at a time."""
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.capability, cell.toolchain), []).append(cell)

    def ask(group: tuple[tuple[str, str], list[Cell]]) -> list[dict[str, Any]]:
        (capability, toolchain), members = group
        questions = {"cells": [question(cell) for cell in members]}
        told = environment.ask(questions, capability=capability, toolchain=toolchain)
        found: list[dict[str, Any]] = told["answers"]
        return found

    with ThreadPoolExecutor(PROCESSES) as pool:
        lists = list(pool.map(ask, groups.items()))
    asked = itertools.chain.from_iterable(groups.values())
    return dict(zip(asked, itertools.chain.from_iterable(lists), strict=True))


def question(cell: Cell) -> dict[str, Any]:
    """A cell as the programs in tools/standins read it."""
    return {
        "head": 0 if cell.head == "mla" else int(cell.head),
        "mla": cell.head == "mla",
        "kv": cell.kv,
        "dtype": cell.dtype,
        "sliding": cell.sliding == "yes",
        "sinks": cell.sinks == "yes",
    }


def differing(environment: EngineEnvironment, count: int, seed: int) -> list[str]:
    """Of `count` random cells of the record, those that the engine answers otherwise."""
    table = load_record(environment.engine, environment.release).table()
    chosen = _sample(sorted(table), count, random.Random(seed))  # noqa: S311
    wrong = []
    for cell, told in answers(environment, chosen).items():
        expected = table[cell]
        found = (*outcome(told), told.get("version"))
        if found != (expected.chosen, expected.constructs, expected.version):
            wrong.append(
                f"{cell}: recorded {expected.chosen}, constructs {expected.constructs}, version "
                f"{expected.version}; found {told}"
            )
    return wrong


def _sample(cells: list[Cell], count: int, chance: random.Random) -> list[Cell]:
    """Random cells of a few random cards and toolchains: each of those is a process of its own."""
    rigs = sorted({(cell.capability, cell.toolchain) for cell in cells})
    few = set(chance.sample(rigs, -(-count // CELLS_A_PROCESS)))
    return chance.sample([cell for cell in cells if cell[:2] in few], count)


def record(environment: EngineEnvironment, directory: Path) -> int:
    """Ask everything and write the release's record into `directory`."""
    began = time.monotonic()
    general = environment.ask(
        {"flags": True, "defaults": True, "kv_cache_dtypes": True}, capability="8.6"
    )
    cells = list(_all_cells(environment.engine, general["kv_cache_dtypes"]))
    told = answers(environment, cells)
    name = f"{environment.engine}-{environment.release}"
    text = record_text(
        {
            "engine": environment.engine,
            "release": environment.release,
            "asked": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "python": general["python"].rpartition(".")[0],
            "cuda": environment.cuda,
        },
        general["defaults"],
        general["flags"],
        told,
    )
    (directory / f"{name}.yaml").write_text(text, encoding="utf-8")
    print(
        f"{name}: installed in {environment.seconds:.0f} s, {len(cells)} cells asked in "
        f"{time.monotonic() - began:.0f} s, {len(general['flags'])} flags"
    )
    return 0


def _all_cells(engine: str, kv_cache_dtypes: Sequence[str]) -> Iterable[Cell]:
    """Every cell, but for 16-bit caches in the other 16-bit format than the activations."""
    axes = {
        "capability": CAPABILITIES,
        "toolchain": tuple(TOOLCHAINS[engine]),
        "dtype": ("bfloat16", "float16"),
        "kv": tuple(kv_cache_dtypes),
        "head": HEADS,
        "sliding": BOTH,
        "sinks": BOTH,
    }
    for values in itertools.product(*(axes[axis] for axis in AXES)):
        cell = Cell(*values)
        if {cell.kv, cell.dtype} != {"bfloat16", "float16"} and _there_is_such(engine, cell):
            yield cell


def _there_is_such(engine: str, cell: Cell) -> bool:
    """SGLang is asked with whole models, and no model has sinks without a sliding window, or
    either with latent attention."""
    special = (cell.sliding, cell.sinks)
    if engine != "sglang" or special == ("no", "no"):
        return True
    return cell.head != "mla" and special != ("no", "yes")


if __name__ == "__main__":
    sys.exit(main())
