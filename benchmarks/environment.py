"""What installing an engine costs beside a bare `uv pip sync` of the same lock, on one node in one
run: time, bytes, and what a second run asks for.

`python -m benchmarks.environment` (root; boots a lab node, 8 GB of disk). Packages come from an
index on this machine, so that no network is measured.
"""

import json
import tempfile
import time
from pathlib import Path

from gpuwright.environments import requirements
from gpuwright.layout import Layout
from tests.lab import tiny_model, wheels
from tests.lab.hub import Hub
from tests.lab.lab import Lab
from tests.lab.node import Node
from tests.lab.serving import inventory, run

LAYOUT = Layout()
BARE = "/var/cache/bare"


def bare(node: Node, hub: Hub) -> float:
    """Seconds of the least that installs the lock: an environment and a sync, with a cache of its
    own on the same filesystem."""
    lock = wheels.cpu_lock()
    lines = [
        " ".join([line, *(f"--hash=sha256:{one}" for one in hashes)])
        for line, hashes in requirements(lock, lock.python[0], lock.architecture).items()
    ]
    node.run("mkdir -p " + BARE)
    node.run(f"cat > {BARE}/lock.txt", stdin="\n".join(lines) + "\n")
    uv = f"{LAYOUT.cache}/sources/{wheels.uv_row().file.path} --cache-dir {BARE}/uv"
    began = time.monotonic()
    node.run(f"{uv} venv -q --python /usr/bin/python3 {BARE}/venv", timeout=600)
    node.run(
        f"{uv} pip sync -q --require-hashes --python {BARE}/venv/bin/python "
        f"--default-index {hub.index_url} {BARE}/lock.txt && sync",
        timeout=600,
    )
    return time.monotonic() - began


def size(node: Node, *paths: str) -> int:
    """Bytes on the disk; of files with several names once."""
    listed = node.run(f"du -scB1 {' '.join(paths)} | tail -n 1", timeout=300).stdout
    return int(listed.split()[0])


def main() -> None:
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
        engine_dir = record["engine_dir"]
        spent = json.loads(node.run(f"cat {engine_dir}/gpuwright.json").stdout)["seconds"]
        hub.forget_requests()
        again = run(hosts)
        requests = len(hub.requests)
        node.run("systemctl stop gpuwright-llm")
        plain = bare(node, hub)
        ours = sum(spent[part] for part in ("venv", "packages", "sync"))
        cache = f"{LAYOUT.cache}/uv"
        alone, both = size(node, engine_dir), size(node, engine_dir, cache)
        print(f"bare uv venv and sync      {plain:6.1f} s")
        print(f"ours, the same parts       {ours:6.1f} s  {ours / plain:.2f} of it")
        print(f"ours, proof                {spent['proof']:6.1f} s")
        print(f"environment                {alone / 2**30:6.2f} GiB")
        print(f"with uv's cache beside it  {both / 2**30:6.2f} GiB")
        print(f"bare, the same             {size(node, BARE) / 2**30:6.2f} GiB")
        print(f"second run                 {len(again.changed)} changes, {requests} requests")


if __name__ == "__main__":
    main()
