"""Equal nodes get one build: compiled on one, copied to the other, checked by its hash."""

import json

import pytest

from gpuwright.layout import Layout
from tests.lab.lab import Lab
from tests.lab.serving import inventory, run
from tests.lab.warm import MODEL, boot_warm

pytestmark = pytest.mark.lab

LAYOUT = Layout()


def built(node) -> tuple[str, str]:
    """The engine's directory on a node, and the server's sha256 there."""
    record = json.loads(node.run(f"cat {LAYOUT.plan_path('llm')}").stdout)
    found = node.run(f"sha256sum {record['engine_dir']}/bin/llama-server").stdout
    return record["engine_dir"], found.split()[0]


def test_one_node_compiles_and_the_other_serves_the_same_binary(lab: Lab, tmp_path):
    nodes = [boot_warm(lab, "fleet-a"), lab.boot("fleet-b", "bookworm")]
    hosts = inventory(
        tmp_path / "hosts.py", [(node, {"gpuwright": {"model": MODEL}}) for node in nodes]
    )
    first = run(hosts)
    assert "The engine is taken over from an equal node" in first.changed
    assert built(nodes[0]) == built(nodes[1])
    # No compiler is on the node that took it over, and no source was fetched there.
    lacking = nodes[1].run("command -v cmake ninja g++-12; ls /var/cache/gpuwright/sources; true")
    assert lacking.stdout.split() == []
    again = run(hosts)
    assert again.changed == []
