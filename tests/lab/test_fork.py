"""ik_llama.cpp on a node: built from its own source by the same steps, and it answers."""

import json
from pathlib import Path

import pytest

from gpuwright.layout import Layout
from tests.lab import tiny_gguf
from tests.lab.fixtures import BootNode
from tests.lab.hub import Hub
from tests.lab.serving import NOT_SHARED, inventory, run

pytestmark = pytest.mark.slow

UNIT = "gpuwright-llm.service"
READABLE = "LC_ALL=C tr -cd '[:print:]\\n'"
KEYS = "/run/gpuwright-llm/keys"


def test_the_fork_serves_who_has_the_key_and_a_second_run_changes_nothing(
    boot_node: BootNode, hub: Hub, tmp_path: Path
):
    node = boot_node("fork", ccache=True)
    url = hub.add_file(tiny_gguf.FILE, tiny_gguf.content())
    rows = tiny_gguf.write_row(tmp_path / "models.yaml", url)
    wanted = {"model": tiny_gguf.MODEL, "engine": "ik_llama.cpp", "extra_models": str(rows)}
    want = {"gpuwright": wanted}
    hosts = inventory(tmp_path / "hosts.py", [(node, want)])
    # The gate has had the model answer, with the key.
    first = run(hosts, timeout=2400)
    assert set(first.quiet) <= {*NOT_SHARED, "Engine and model are root's alone to change"}
    key = node.run(f"sed -n s/^LLAMA_API_KEY=//p {Layout().environment_path('llm')}").stdout.strip()
    assert node.run(f"cat {KEYS}; stat -c '%U %a' {KEYS}").stdout.split() == [
        key,
        key,
        "gpuwright",
        "600",
    ]
    body = json.dumps({"prompt": "Hello", "max_tokens": 4})
    asked = (
        "curl -s -m 60 -o /dev/null -w '%{http_code}' -H 'Content-Type: application/json' "
        f"-d '{body}' http://127.0.0.1:8080/v1/completions"
    )
    assert node.run(asked).stdout == "401"
    assert node.run(f"{asked} -H 'Authorization: Bearer {key}'").stdout == "200"
    journal = node.run(f"journalctl -u {UNIT} -o cat | {READABLE}").stdout
    assert key not in journal
    assert "2 keys loaded" in journal
    assert "ik-llama-cpp-python 0.1.5" in journal
    assert key not in node.run(f"cat /proc/[0-9]*/cmdline | {READABLE}").stdout
    assert run(hosts).changed == []
