"""A bare node is told of files and an address that are not as they must be: nothing is touched."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.lab import Lab
from tests.lab.node import Node
from tests.lab.serving import inventory, run

pytestmark = pytest.mark.lab

PLACE = "/srv/named"
MAKE = (
    f"set -e; install -d {PLACE}; cd {PLACE}; install -d -m 700 closed; install -d tone; "
    "echo x >closed/open; install -m 600 closed/open own; ln -sfn /root/template link; "
    "echo x >/root/template; echo '{\"r\": 8}' >tone/adapter_config.json"
)


@pytest.fixture(scope="module")
def node(lab: Lab) -> Iterator[Node]:
    booted = lab.boot("named", "bookworm")
    booted.run(MAKE)
    yield booted
    booted.destroy()


@pytest.mark.parametrize(
    ("want", "texts"),
    [
        ({"chat_template": f"{PLACE}/none"}, (f"{PLACE}/none", "found nothing")),
        ({"chat_template": f"{PLACE}/own"}, (f"{PLACE}/own", "service's user", "chmod o+r ")),
        (
            {"chat_template": f"{PLACE}/closed/open"},
            (f"{PLACE}/closed/open", f"{PLACE}/closed is not", "chmod o+x"),
        ),
        ({"chat_template": f"{PLACE}/link"}, (f"{PLACE}/link", "all of /root is hidden")),
        (
            {"lora": {"tone": f"{PLACE}/tone"}, "engine": "llama.cpp"},
            (f"lora tone {PLACE}/tone", "a GGUF file"),
        ),
        ({"ca_bundle": f"{PLACE}/none"}, (f"ca_bundle {PLACE}/none", "found nothing")),
        ({"bind": "192.0.2.77"}, ("bind 192.0.2.77", "an address of the node: 127.0.0.1")),
    ],
)
def test_what_a_want_names_is_looked_at_before_anything_is_touched(
    node: Node, tmp_path: Path, want: dict[str, Any], texts: tuple[str, ...]
) -> None:
    data = {"gpuwright": {"model": "SmolLM2-135M-Instruct"} | want}
    done = run(inventory(tmp_path / "hosts.py", [(node, data)]), check=False)
    assert done.status != 0
    assert "Traceback" not in done.text, done.text
    for text in texts:
        assert text in done.text
    assert node.run(["test", "-e", "/etc/gpuwright"], check=False).returncode == 1
