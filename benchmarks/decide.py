"""What a decision costs: plans per second over mixed rigs, loading the matrix, memory.

`make bench-decide`, or python -m benchmarks.decide [--rigs N] [--seed N] [--json]. One core, no
node and no network. Rigs are drawn from the cards of the matrix by a seed, so that two runs decide
the same; seconds are this machine's, CPU time beside wall time says how busy it was.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from gpuwright.catalogue import Matrix
from gpuwright.host import Host
from gpuwright.load import load_matrix
from gpuwright.plan import Plan
from gpuwright.selection import decide
from gpuwright.sketch import read_sketch
from gpuwright.want import Want

ROOT = Path(__file__).parent.parent
MIB = 2**20

WANTS: dict[str, dict[str, Any]] = {
    "auto, chat": {},
    "qwen3.6-27b, agents": {"model": "qwen3.6-27b", "workload": "agents"},
    "qwen3.6-35b-a3b, throughput": {"model": "qwen3.6-35b-a3b", "workload": "throughput"},
    "gemma-4-26b-a4b, rag": {"model": "gemma-4-26b-a4b", "workload": "rag"},
    "gpt-oss-120b, agents": {"model": "gpt-oss-120b", "workload": "agents"},
    "llama-3.1-8b, chat": {"model": "llama-3.1-8b"},
}
DRIVERS = ("470.256", "535.183", "550.54", "560.35", "570.133", "575.57", "580.95", "590.44", "595")
_LOAD = """
import resource, sys, time
sys.path.insert(0, sys.argv[1])
from gpuwright.load import load_matrix
began, cpu = time.perf_counter(), time.process_time()
load_matrix()
print(time.perf_counter() - began, time.process_time() - cpu,
      resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
"""The imports are the interpreter's business; what is timed is reading and checking the rows."""


def sketches(matrix: Matrix, count: int, seed: int) -> list[dict[str, Any]]:
    """`count` rigs: 1 to 8 cards, alike or mixed, with all that a sketch may say drawn too."""
    draw = random.Random(seed)
    cards = [row for row in matrix.gpus if not row.unified_memory]
    linked = [row for row in cards if row.nvlink]
    distros = [row.id for row in matrix.distros]
    found = []
    for _ in range(count):
        size = draw.choice((1, 1, 1, 2, 2, 2, 3, 4, 4, 6, 8))
        nvlink = size > 1 and draw.random() < 0.2
        kinds = draw.choices(linked if nvlink else cards, k=2 if draw.random() < 0.3 else 1)
        rig: dict[str, Any] = {
            "gpus": [draw.choice(kinds).id for _ in range(size)],
            "driver": draw.choice(DRIVERS),
            "distro": draw.choice(distros),
            "memory_gib": draw.choice((16, 32, 64, 128, 256, 512)),
            "disk_free_gib": draw.choice((50, 200, 1000, 4000)),
            "environment": draw.choice(("bare", "bare", "bare", "kvm", "lxc", "wsl2")),
        }
        if size > 1:
            rig["interconnect"] = "nvlink" if nvlink else "pcie"
        if draw.random() < 0.3:
            least = min(matrix.gpu_index.find(name).memory_mib for name in rig["gpus"])
            rig["free_memory_gib"] = round(least / 1024 * draw.uniform(0.5, 0.95), 1)
        found.append(rig)
    return found


def count_plans(hosts: list[Host], want: Want, matrix: Matrix) -> int:
    """Each decision is let go, as thousands at once are nobody's."""
    return sum(isinstance(decide(host, want, matrix), Plan) for host in hosts)


def count_reasons(hosts: list[Host], want: Want, matrix: Matrix) -> int:
    """As `count_plans`, and reads of each decision why the other candidates are not the plan."""
    return sum(len(decide(host, want, matrix).why_not) for host in hosts)


def timed(work: Callable[[], Any]) -> tuple[float, float, Any]:
    """Wall and CPU seconds of `work`, and what it answers."""
    began, cpu = time.perf_counter(), time.process_time()
    answer = work()
    return time.perf_counter() - began, time.process_time() - cpu, answer


def load_in_fresh_processes(rounds: int) -> dict[str, float]:
    """Median seconds and peak memory of loading the matrix, each in a process of its own."""
    command = [sys.executable, "-c", _LOAD, str(ROOT)]
    runs = [
        [float(word) for word in subprocess.check_output(command, text=True).split()]
        for _ in range(rounds)
    ]
    wall, cpu, peak = (statistics.median(column) for column in zip(*runs, strict=True))
    return {"wall_seconds": wall, "cpu_seconds": cpu, "peak_mib": peak * 1024 / MIB}


def measure(rigs: int, seed: int) -> dict[str, Any]:
    load = load_in_fresh_processes(5)
    matrix = load_matrix()
    drawn = sketches(matrix, rigs, seed)

    def read() -> list[Host]:
        return [Host.from_document(read_sketch(sketch, matrix)[0]) for sketch in drawn]

    reading, _, hosts = timed(read)
    wants = {name: Want.from_data(data) for name, data in WANTS.items()}
    of_each: dict[str, float] = {}
    wall = cpu = explained = 0.0
    plans = 0
    for name, want in wants.items():
        used_wall, used_cpu, found = timed(partial(count_plans, hosts, want, matrix))
        of_each[name] = len(hosts) / used_cpu
        wall, cpu = wall + used_wall, cpu + used_cpu
        plans += found
        explained += timed(partial(count_reasons, hosts, want, matrix))[1]
    count = len(hosts) * len(wants)
    return {
        "load": load,
        "rigs": len(hosts),
        "decisions": count,
        "plans_percent": 100 * plans / count,
        "decisions_per_wall_second": count / wall,
        "decisions_per_cpu_second": count / cpu,
        "decisions_with_why_not_per_cpu_second": count / explained,
        "decisions_per_cpu_second_of_each_want": of_each,
        "sketches_per_second": len(hosts) / reading,
        "loads_worth_of_decisions": load["cpu_seconds"] / (cpu / count),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MIB,
    }


def as_text(found: dict[str, Any]) -> str:
    load = found["load"]
    lines = [
        f"{found['decisions']:,} decisions, {found['rigs']:,} rigs x {len(WANTS)} wants; "
        f"{found['plans_percent']:.0f} % are plans, the rest refusals",
        f"  {found['decisions_per_cpu_second']:8,.0f} a second of CPU, "
        f"{found['decisions_per_wall_second']:,.0f} of the clock",
    ]
    lines.append(
        f"  {found['decisions_with_why_not_per_cpu_second']:8,.0f} a second of CPU with why each "
        "other candidate is not the plan"
    )
    for name, rate in found["decisions_per_cpu_second_of_each_want"].items():
        lines.append(f"  {rate:8,.0f} a second of CPU  {name}")
    lines += [
        f"  {found['sketches_per_second']:8,.0f} sketches read a second of the clock",
        f"  {load['cpu_seconds'] * 1000:8,.0f} ms of CPU to load the matrix in a fresh process, "
        f"{load['wall_seconds'] * 1000:,.0f} of the clock: as long as "
        f"{found['loads_worth_of_decisions']:,.0f} decisions",
        f"  {load['peak_mib']:8,.0f} MiB at most with the matrix loaded, "
        f"{found['peak_mib']:,.0f} after all decisions",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rigs", type=int, default=1000, help="rigs to draw (default 1000)")
    parser.add_argument("--seed", type=int, default=1, help="what they are drawn by (default 1)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    found = measure(arguments.rigs, arguments.seed)
    print(json.dumps(found) if arguments.json else as_text(found))


if __name__ == "__main__":
    main()
