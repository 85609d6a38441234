"""What a run costs: from a bare node to the first answer, and a converged run beside others.

`make bench`, or python -m benchmarks.converged [--rounds N] [--json]. One lab node, one machine,
one run: the ratios are what to compare, the seconds are this machine's.

- floor: `pyinfra INVENTORY exec -- true`, nothing less can be had from pyinfra
- gpuwright: `pyinfra -y INVENTORY deploys/serve.py` on the served node, which changes nothing
- ansible: the same tasks (benchmarks/converged.yml), pipelining on, connections kept
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpuwright.expected import directories
from gpuwright.layout import Layout
from gpuwright.load import load_matrix
from tests.lab.lab import Lab
from tests.lab.node import Node
from tests.lab.serving import ROOT, inventory
from tests.lab.warm import boot_warm

MODEL = "SmolLM2-135M-Instruct"
PYINFRA = [sys.executable, "-m", "pyinfra"]
STARTING = re.compile(r"--> Starting operation: (.*)")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")

# What an operation's time goes to; everything else is ours.
THEIRS = {
    "Packages that the engine needs are installed": "package manager",
    "The engine's source is present and verified": "downloading",
    "The model's files are present and verified": "downloading",
    "The engine is built and proven": "compiling",
    "The model answers": "loading and answering",
}


def first_serve(path: Path) -> dict[str, float]:
    """Seconds of each step of the first run on a bare node, by the clock of this machine."""
    process = subprocess.Popen(
        [*PYINFRA, "-y", str(path), "deploys/serve.py"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    steps: dict[str, float] = {}
    step, began = "Connect, gather, decide, preflight", time.monotonic()
    said = []
    for raw in process.stderr:
        line = COLOUR.sub("", raw.rstrip())
        said.append(line)
        found = STARTING.search(line)
        name = found.group(1) if found else "Results" if line.startswith("--> Results") else None
        if name:
            now = time.monotonic()
            steps[step] = now - began
            step, began = name, now
    if process.wait():
        raise SystemExit("\n".join(said))
    steps[step] = time.monotonic() - began
    return steps


def timed(command: list[str], environment: dict[str, str] | None = None) -> float:
    """Wall time of a command in seconds; SystemExit with what it said when it fails."""
    began = time.monotonic()
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment
    )
    seconds = time.monotonic() - began
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return seconds


def remote_commands(path: Path, *words: str) -> int:
    """How many commands a run sends to the node; `words` are the deploy and its options."""
    done = subprocess.run(
        [*PYINFRA, "--debug", "-y", str(path), *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return sum("Running command on" in line for line in done.stderr.splitlines())


def ansible(node: Node, folder: Path) -> tuple[list[str], dict[str, str]]:
    """The command and environment of the playbook against the node, with the node's own values."""
    record = json.loads(node.run(["cat", "/var/lib/gpuwright/plans/llm.json"]).stdout)
    unit_path = "/etc/systemd/system/gpuwright-llm.service"
    for name, source in (("unit", unit_path), ("record", "/var/lib/gpuwright/plans/llm.json")):
        (folder / name).write_text(node.run(["cat", source]).stdout)
    (checkpoint_file,) = record["files"]
    model = f"/var/lib/gpuwright/models/{record['checkpoint']}/{checkpoint_file}"
    distro = next(row for row in load_matrix().distros if row.codename == node.suite)
    variables = {
        "packages": list(distro.runtime_packages),
        "directories": [asdict(row) for row in directories(Layout())],
        "binary": f"{record['engine_dir']}/bin/llama-server",
        "model": model,
        "model_bytes": int(node.run(["stat", "-c", "%s", model]).stdout),
        "environment_file": record["environment_file"],
        "unit_source": str(folder / "unit"),
        "unit_path": unit_path,
        "record_source": str(folder / "record"),
        "record_path": "/var/lib/gpuwright/plans/llm.json",
        "unit_name": "gpuwright-llm.service",
        "port": record["port"],
    }
    (folder / "variables.json").write_text(json.dumps(variables))
    (folder / "hosts.ini").write_text(
        f"box ansible_host={node.address} ansible_user=root "
        f"ansible_ssh_common_args='-F {node.ssh_config}'\n"
    )
    command = [
        str(Path(sys.executable).with_name("ansible-playbook")),
        "-i",
        str(folder / "hosts.ini"),
        "-e",
        f"@{folder / 'variables.json'}",
        str(ROOT / "benchmarks" / "converged.yml"),
    ]
    environment = os.environ | {
        "ANSIBLE_PIPELINING": "true",
        "ANSIBLE_SSH_ARGS": "-o ControlMaster=auto -o ControlPersist=60s",
        "ANSIBLE_NOCOLOR": "true",
        "ANSIBLE_LOCALHOST_WARNING": "false",
    }
    return command, environment


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="runs of each kind (default 5)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    with Lab() as lab, tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        node = boot_warm(lab, "bench")
        path = inventory(folder / "hosts.py", [(node, {"gpuwright": {"model": MODEL}})])
        steps = first_serve(path)
        playbook, environment = ansible(node, folder)
        timed(playbook, environment)  # installs python3-apt, opens the connection
        runs: dict[str, list[float]] = {"floor": [], "gpuwright": [], "ansible": []}
        for _ in range(arguments.rounds):
            runs["floor"].append(timed([*PYINFRA, "-y", str(path), "exec", "--", "true"]))
            runs["gpuwright"].append(timed([*PYINFRA, "-y", str(path), "deploys/serve.py"]))
            runs["ansible"].append(timed(playbook, environment))
        medians = {name: statistics.median(values) for name, values in runs.items()}
        result = {
            "first_serve_seconds": steps,
            "converged_seconds": medians,
            "remote_commands": remote_commands(path, "deploys/serve.py"),
            "ratio_to_floor": medians["gpuwright"] / medians["floor"],
            "times_faster_than_ansible": medians["ansible"] / medians["gpuwright"],
        }
    print(json.dumps(result) if arguments.json else as_text(result, arguments.rounds))


def as_text(result: dict[str, Any], rounds: int) -> str:
    steps = result["first_serve_seconds"]
    total = sum(steps.values())
    lines = ["From a bare node to the first completion:"]
    for name, seconds in steps.items():
        lines.append(f"  {seconds:7.2f} s  {THEIRS.get(name, 'ours'):22} {name}")
    ours = sum(seconds for name, seconds in steps.items() if name not in THEIRS)
    lines += [
        f"  {total:7.2f} s  in all, {ours:.2f} s of it ours ({100 * ours / total:.1f} %)",
        "",
        f"A converged run, median of {rounds}:",
    ]
    for name, seconds in result["converged_seconds"].items():
        lines.append(f"  {seconds:7.2f} s  {name}")
    lines += [
        f"  {result['remote_commands']} remote commands, {result['ratio_to_floor']:.2f} times the "
        f"floor, {result['times_faster_than_ansible']:.1f} times faster than Ansible",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
