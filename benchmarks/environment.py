"""What installing an engine costs beside a bare `uv pip sync` of the same lock, on one node in one
run: time, bytes, and what a second run asks for.

`python -m benchmarks.environment [--memory] [ROUNDS]` (root; boots a lab node, 8 GB of disk).
Packages come from an index on this machine, so that no network is measured. The two take turns,
each from nothing; whoever is first in one round is second in the next. Where the disk's own pace
varies more than what is compared, `--memory` has both write to a filesystem in memory (4 GB).
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from gpuwright.carry import command, parse
from gpuwright.environments import Environment, environment_spec, requirements
from gpuwright.interpreters import Interpreter
from gpuwright.layout import Layout
from gpuwright.load import load_matrix
from gpuwright.want import Want
from tests.lab import tiny_model, wheels
from tests.lab.hub import Hub
from tests.lab.lab import Lab
from tests.lab.node import Node
from tests.lab.serving import inventory, run

LAYOUT = Layout()
PLACE = "/var/cache/compared"
BARE = f"{PLACE}/bare"


def bare(node: Node, hub: Hub, lines: dict[str, tuple[str, ...]]) -> float:
    """Seconds of the least that installs the lock: an environment and a sync, with a cache of its
    own on the same filesystem, which has taken it all in the end."""
    text = "".join(
        " ".join([line, *(f"--hash=sha256:{one}" for one in hashes)]) + "\n"
        for line, hashes in lines.items()
    )
    node.run(f"mkdir -p {BARE} && cat > {BARE}/lock.txt", stdin=text, timeout=600)
    uv = f"{LAYOUT.cache}/sources/{wheels.uv_row().file.path} --cache-dir {BARE}/uv"
    began = time.monotonic()
    node.run(
        f"{uv} venv -q --python /usr/bin/python3 {BARE}/venv && "
        f"{uv} pip sync -q --require-hashes --python {BARE}/venv/bin/python "
        f"--default-index {hub.index_url} {BARE}/lock.txt && sync -f {BARE}",
        timeout=600,
    )
    return time.monotonic() - began


def ours(node: Node, spec: dict[str, Any]) -> dict[str, float]:
    """Seconds of each part of an installation by the program that a run carries to the node."""
    done = node.run(command("environment", spec), timeout=600)
    answer = parse(done.stdout.splitlines())
    assert answer["engine"] == "installed", answer
    return dict(answer["seconds"])


def specification(hub: Hub, key: str, engine_dir: str) -> dict[str, Any]:
    """What a run tells the program."""
    matrix, lock = load_matrix(), wheels.cpu_lock()
    row = matrix.engine_release(lock.engine, lock.release).environment
    assert row is not None
    minor = lock.python[0]
    environment = Environment(
        key=key,
        lock=lock,
        row=row,
        python=Interpreter(minor=minor, executable=f"/usr/bin/python{minor}"),
        uv=wheels.uv_row(),
        requirements=requirements(lock, minor, lock.architecture),
    )
    want = Want.from_data({"python_index": hub.index_url})
    return environment_spec(environment, want, engine_dir, verify="quick")


def size(node: Node, *paths: str) -> int:
    """Bytes on the disk; of files with several names once."""
    listed = node.run(f"du -scB1 {' '.join(paths)} | tail -n 1", timeout=300).stdout
    return int(listed.split()[0])


def main(rounds: int, memory: bool) -> None:
    with Lab() as lab, lab.hub() as hub, tempfile.TemporaryDirectory() as folder:
        node = lab.boot("environment")
        hub.serve_packages(wheels.ensure(wheels.cpu_lock()))
        commit = hub.add_repository(tiny_model.REPOSITORY, tiny_model.files()).commit
        want = {
            "model": tiny_model.MODEL,
            "engine": "vllm",
            "extra_models": str(tiny_model.write_row(Path(folder) / "models.yaml", commit)),
            "hub": hub.url,
            "python_index": hub.index_url,
        }
        hosts = inventory(Path(folder) / "hosts.py", [(node, {"gpuwright": want})])
        run(hosts)
        record = json.loads(node.run(f"cat {LAYOUT.plan_path('llm')}").stdout)
        hub.forget_requests()
        again = run(hosts)
        requests = len(hub.requests)
        node.run("systemctl stop gpuwright-llm")
        engine_dir = record["engine_dir"]
        key = json.loads(node.run(f"cat {engine_dir}/gpuwright.json").stdout)["key"]
        spec = specification(hub, key, f"{PLACE}/engines/{engine_dir.rsplit('/', 1)[-1]}")
        spec["cache_dir"] = f"{PLACE}/uv"
        node.run(f"mkdir -p {PLACE}")
        if memory:
            node.run(f"mount -t tmpfs -o size=8g,nr_inodes=2m tmpfs {PLACE}")
        plain, spent = [], []
        for number in range(rounds):
            for turn in (0, 1):
                node.run(f"rm -rf {PLACE}/*", timeout=600)
                os.sync()  # neither pays for what the other has still to write
                if (number + turn) % 2:
                    spent.append(ours(node, spec))
                    alone = size(node, spec["engine_dir"])
                    both = size(node, spec["engine_dir"], spec["cache_dir"])
                else:
                    plain.append(bare(node, hub, spec["requirements"]))
                    bare_bytes = size(node, BARE)
            told = {name: spent[-1].get(name) for name in ("venv", "packages", "proof", "sync")}
            print(f"round {number + 1}: bare {plain[-1]:.1f} s, ours {told}", flush=True)
        same = [sum(one[part] for part in ("venv", "packages", "sync")) for one in spent]
        middle = statistics.median
        print(f"bare uv venv and sync      {middle(plain):6.1f} s")
        print(f"ours, the same parts       {middle(same):6.1f} s")
        ratio = middle(one / other for one, other in zip(same, plain, strict=True))
        print(f"ratio, median of rounds    {ratio:6.2f}")
        print(f"ours, proof                {middle(one['proof'] for one in spent):6.1f} s")
        print(f"ours, all                  {middle(one['all'] for one in spent):6.1f} s")
        print(f"environment                {alone / 2**30:6.2f} GiB")
        print(f"with uv's cache beside it  {both / 2**30:6.2f} GiB")
        print(f"bare, the same             {bare_bytes / 2**30:6.2f} GiB")
        print(f"second run                 {len(again.changed)} changes, {requests} requests")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.environment", description=__doc__)
    parser.add_argument("--memory", action="store_true", help="write to memory, not to the disk")
    parser.add_argument("rounds", nargs="?", type=int, default=3)
    told = parser.parse_args()
    main(told.rounds, told.memory)
