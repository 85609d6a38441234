"""What looking costs: a fleet of rigs gathered and planned in one run, and one node over SSH.

`make bench-facts`, or python -m benchmarks.fleet_facts [--hosts N] [--profile] [--node] [--json].
The fleet answers from the documents of tests/hosts (pyinfra's @fake), so what is timed is pyinfra
and us: reading documents, deciding, saving. With --node a lab node is booted (needs root) and
looked at over SSH, beside `ssh node python3 -c pass`, in turns; the difference is what to compare.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.converged import remote_commands
from gpuwright import carry
from tests.lab.lab import Lab
from tests.lab.serving import ROOT, inventory
from tools import golden

MIB = 2**20
BARE, LOOK = "ssh node python3 -c pass", "the whole look"
RUNS = {
    "connect and do nothing": ("-y", "exec", "--", "true"),
    "gather and save": ("-y", "deploys/facts.py"),
    "gather and plan": ("--dry", "deploys/explain.py"),
}


def fleet(count: int) -> list[tuple[str, dict[str, Any]]]:
    """`count` hosts, each with the document of a rig; rigs come again in turns, each with an
    identity of its own."""
    rigs = [rig for rig in golden.rigs() if not rig.startswith("unlisted")]
    found = []
    for number in range(count):
        document = golden.document(rigs[number % len(rigs)])
        document["os"]["identity"] = f"{number:016x}"
        answers = {"gpuwright: probe": json.dumps(document)}
        data = {"gpuwright": {"model": "auto"}, "fake_responses": answers, "fake_delay": 0}
        found.append((f"@fake/{number:03}", data))
    return found


def run(hosts: Path, words: tuple[str, ...], folder: Path, profile: bool) -> dict[str, float]:
    """Seconds of wall and CPU, and the peak of memory, of one pyinfra run."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    watch = ["-m", "cProfile", "-o", str(folder / "profile")] if profile else []
    command = [sys.executable, *watch, "-m", "pyinfra", words[0], str(hosts), *words[1:]]
    done = subprocess.run(
        [*command, "--data", f"facts_cache={folder / 'cache'}"],
        cwd=ROOT,
        env=os.environ | {"PYINFRA_FAKE_DELAY": "0", "PYINFRA_FAKE_DELAY_JITTER": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    wall = time.monotonic() - began
    if "Traceback" in done.stderr:
        raise SystemExit(done.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_seconds": wall, "cpu_seconds": cpu, "peak_mib": after.ru_maxrss * 1024 / MIB}


def measure_fleet(count: int, profile: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="gpuwright-fleet-") as name:
        folder = Path(name)
        hosts = folder / "hosts.py"
        hosts.write_text(f"hosts = {fleet(count)!r}\n")
        found: dict[str, Any] = {"hosts": count}
        # The peak is that of the largest child so far: the least demanding run comes first.
        for label, words in RUNS.items():
            found[label] = run(hosts, words, folder, profile)
            if profile:
                shown = [sys.executable, "-c", _SHOW, str(folder / "profile")]
                print(label, subprocess.run(shown, capture_output=True, text=True).stdout)
        found["saved"] = sum(1 for _ in (folder / "cache").iterdir())
        return found


_SHOW = "import pstats, sys; pstats.Stats(sys.argv[1]).sort_stats('cumtime').print_stats(60)"


def measure_node(rounds: int) -> dict[str, Any]:
    """Over SSH, by turns: an interpreter that does nothing, and the whole look. Medians; and how
    many commands a run of deploys/facts.py sends beside those of pyinfra's own floor."""
    look = carry.command("probe", {})
    commands = {BARE: "python3 -c pass", LOOK: look}
    taken: dict[str, list[float]] = {label: [] for label in commands}
    with Lab() as lab, tempfile.TemporaryDirectory() as scratch:
        node = lab.boot("looked-at")
        for _ in range(rounds):
            for label, command in commands.items():
                began = time.monotonic()
                done = node.run(command)
                taken[label].append(time.monotonic() - began)
        path = inventory(Path(scratch) / "hosts.py", [(node, {})])
        cache = f"facts_cache={scratch}/cache"
        sent = remote_commands(path, "deploys/facts.py", "--data", cache)
        (saved,) = Path(scratch, "cache").iterdir()
        assert json.loads(saved.read_text())["schema"] == 2
    medians = {label: statistics.median(seconds) for label, seconds in taken.items()}
    return {
        **medians,
        "difference": medians[LOOK] - medians[BARE],
        "command_bytes": len(look),
        "look_seconds": carry.parse(done.stdout.splitlines())["seconds"],
        "remote_commands": sent,
    }


def as_text(found: dict[str, Any]) -> str:
    lines = []
    fleet = found.get("fleet")
    if fleet:
        lines.append(f"{fleet['hosts']} @fake hosts in one pyinfra run; {fleet['saved']} saved")
        for label in RUNS:
            one = fleet[label]
            lines.append(
                f"  {one['wall_seconds']:6.2f} s, {one['cpu_seconds']:6.2f} s of CPU, "
                f"{one['peak_mib']:4.0f} MiB at most  {label}"
            )
    node = found.get("node")
    if node:
        lines.append("one lab node over SSH, medians")
        for label in (BARE, LOOK, "difference"):
            lines.append(f"  {node[label]:6.2f} s  {label}")
        lines.append(
            f"  {node['remote_commands']} remote command in a run of deploys/facts.py, of "
            f"{node['command_bytes']:,} bytes; on the node it took {node['look_seconds']} s"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, default=200, help="hosts of the fleet (default 200)")
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    parser.add_argument("--node", action="store_true", help="look at a lab node, too (needs root)")
    parser.add_argument("--rounds", type=int, default=7, help="looks at the node (default 7)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    found = {"fleet": measure_fleet(arguments.hosts, arguments.profile)}
    if arguments.node:
        found["node"] = measure_node(arguments.rounds)
    print(json.dumps(found) if arguments.json else as_text(found))


if __name__ == "__main__":
    main()
