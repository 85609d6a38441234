"""A model with its drafter and its projector on a node: each is brought, and each works."""

import base64
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuwright.layout import Layout
from tests.lab import tiny_gguf, tiny_projector, tiny_rows
from tests.lab.hub import Hub
from tests.lab.lab import Lab
from tests.lab.node import Node
from tests.lab.serving import Run, inventory, run
from tests.lab.warm import boot_warm

pytestmark = pytest.mark.lab

LAYOUT = Layout()
UNIT = "gpuwright-llm.service"
DRAFTER, PROJECTOR = "tiny-drafter", "tiny-projector"
MODEL_DIRECTORY = f"{tiny_gguf.MODEL}-f16"
DRAFTER_FILE = "tiny-draft-f16.gguf"
FETCHED = "The model's files are present and verified"
RESTARTED = ["The service runs what the plan says", "The model answers"]
GROUPS = tiny_rows.groups(tiny_gguf.LAYERS, tiny_gguf.KV_HEADS, tiny_gguf.HEAD)
DRAFTS = {"role": "drafter", "drafts": {"method": "draft", "tokens": 4, "groups": GROUPS}}


class Served:
    """A node that serves a model with its drafter and its projector, from a hub of its own."""

    def __init__(self, node: Node, hub: Hub, folder: Path) -> None:
        self.node, self.hub, self.folder = node, hub, folder
        self.models = folder / "models.yaml"
        want = {
            "model": tiny_gguf.MODEL,
            "engine": "llama.cpp",
            "speculative": "draft-model",
            "vision": True,
            "extra_models": str(self.models),
        }
        self.hosts = inventory(folder / "hosts.py", [(node, {"gpuwright": want})])
        self.pin(tiny_gguf.content(DRAFTER))

    def pin(self, drafter: bytes, url: str | None = None, model: bytes | None = None) -> None:
        """Write the rows, with this drafter, which is at `url`, and with another model's file."""
        projector, held = tiny_projector.content(), model or tiny_gguf.content()
        at = url or self.hub.add_file(DRAFTER_FILE, drafter)
        image = self.hub.add_file(tiny_projector.FILE, projector)
        tiny_gguf.write_row(
            self.models,
            self.hub.add_file(tiny_gguf.FILE, held),
            tiny_gguf.checkpoint(DRAFTER, DRAFTER_FILE, drafter, at) | DRAFTS,
            tiny_gguf.checkpoint(PROJECTOR, tiny_projector.FILE, projector, image)
            | {"role": "projector"},
            vision=True,
            held=held,
        )

    def shell(self, command: str) -> str:
        return self.node.run(command).stdout.strip()

    @property
    def pid(self) -> str:
        return self.shell(f"systemctl show -p MainPID --value {UNIT}")

    def ask(self, content: object) -> dict[str, Any]:
        """The answer to one message, which the node asks itself."""
        key = self.shell(f"sed -n s/^LLAMA_API_KEY=//p {LAYOUT.environment_path('llm')}")
        body = {
            "messages": [{"role": "user", "content": content}],
            "max_tokens": 24,
            "temperature": 0,
        }
        words = ["curl", "-sS", "-f", "-m", "60", "-H", f"Authorization: Bearer {key}", "-d"]
        url = "http://127.0.0.1:8080/v1/chat/completions"
        answer: dict[str, Any] = json.loads(self.shell(shlex.join([*words, json.dumps(body), url])))
        return answer


@pytest.fixture(scope="module")
def served(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    node = boot_warm(lab, "second")
    with lab.hub() as hub:
        made = Served(node, hub, tmp_path_factory.mktemp("second"))
        run(made.hosts)
        yield made
    node.destroy()


def _path(name: str, file: str) -> str:
    return f"{LAYOUT.checkpoint_dir(name)}/{file}"


def test_every_checkpoint_is_in_the_store_and_in_the_record(served: Served) -> None:
    record = json.loads(served.shell(f"cat {LAYOUT.plan_path('llm')}"))
    assert set(record["beside"]) == {DRAFTER, PROJECTOR}
    places = {record["checkpoint"]: record["files"]} | record["beside"]
    for name, files in places.items():
        for file, sha256 in files.items():
            path = _path(name, file)
            assert served.shell(f"sha256sum {path}").split()[0] == sha256
            assert path in served.shell(f"systemctl cat {UNIT}")


def test_a_second_run_changes_nothing(served: Served) -> None:
    pid = served.pid
    assert run(served.hosts).changed == []
    assert served.pid == pid


def test_the_drafter_drafts_and_the_model_takes_what_it_would_have_said(served: Served) -> None:
    timings = served.ask("word1 word2 word3")["timings"]
    assert timings["draft_n"] > 0
    # It says the same words as the model, under another name.
    assert timings["draft_n_accepted"] == timings["draft_n"]


def test_an_image_is_read(served: Served) -> None:
    def asked(colour: tuple[int, int, int]) -> dict[str, Any]:
        encoded = base64.b64encode(tiny_projector.picture(colour)).decode()
        url = {"url": f"data:image/png;base64,{encoded}"}
        return served.ask([{"type": "image_url", "image_url": url}, {"type": "text", "text": "hi"}])

    alone = served.ask("hi")
    red, blue = asked((255, 0, 0)), asked((0, 0, 255))
    longer = red["usage"]["prompt_tokens"] - alone["usage"]["prompt_tokens"]
    assert longer >= tiny_projector.TOKENS
    texts = {answer["choices"][0]["message"]["content"] for answer in (red, blue)}
    assert len(texts) == 2, "what is said depends on what is seen"


@pytest.mark.parametrize(
    ("name", "file"), [(DRAFTER, DRAFTER_FILE), (PROJECTOR, tiny_projector.FILE)]
)
def test_one_that_is_gone_is_fetched_again_and_the_service_restarts(
    served: Served, name: str, file: str
) -> None:
    served.hub.forget_requests()
    served.shell(f"rm {_path(name, file)}")
    assert run(served.hosts).changed == [FETCHED, *RESTARTED]
    fetched = [each for each in served.hub.requests_to("hub", "*.gguf") if each.method == "GET"]
    assert [Path(each.path).name for each in fetched] == [file]
    assert run(served.hosts).changed == []


def test_loose_modes_are_put_back_without_a_restart(served: Served) -> None:
    pid = served.pid
    served.shell(f"chmod 0666 {_path(DRAFTER, DRAFTER_FILE)}")
    assert run(served.hosts).changed == ["Engine and model are root's alone to change"]
    assert served.pid == pid


def _left_alone(served: Served, done: Run, *texts: str) -> None:
    assert done.status != 0, done.text
    assert "Traceback" not in done.text, done.text
    for text in (served.node.name, _path(DRAFTER, DRAFTER_FILE), *texts):
        assert text in done.text, done.text


def test_a_drafter_that_cannot_be_had_leaves_what_serves_alone(served: Served) -> None:
    pid, other = served.pid, tiny_gguf.content(DRAFTER, seed=9)
    gone = f"{served.hub.url}/files/gone.gguf"
    lying = served.hub.add_file("lying.gguf", bytes(len(other)))
    try:
        # Nobody has it, which is told before anything is touched.
        served.pin(other, gone)
        _left_alone(served, run(served.hosts, check=False), gone, "404", "nothing was touched")
        # It is another file than its row says, which shows once it has come.
        served.pin(other, lying)
        _left_alone(served, run(served.hosts, check=False), lying, "sha256")
    finally:
        served.pin(tiny_gguf.content(DRAFTER))
    assert served.pid == pid
    assert served.ask("word1")["timings"]["draft_n"] > 0
    assert run(served.hosts).changed == []


def test_a_moved_pin_of_the_model_waits_for_a_drafter_that_cannot_be_had(served: Served) -> None:
    pid, drafter = served.pid, tiny_gguf.content(DRAFTER, seed=9)
    looked = f"cat {LAYOUT.plan_path('llm')} && sha256sum {_path(MODEL_DIRECTORY, tiny_gguf.FILE)}"
    before = served.shell(looked)
    served.hub.forget_requests()
    try:
        lying = served.hub.add_file("lying.gguf", bytes(len(drafter)))
        served.pin(drafter, lying, model=tiny_gguf.content(seed=9))
        _left_alone(served, run(served.hosts, check=False), lying, "sha256")
        fetched = [each for each in served.hub.requests_to("hub", "*.gguf") if each.method == "GET"]
        assert {Path(each.path).name for each in fetched} == {tiny_gguf.FILE, "lying.gguf"}
    finally:
        served.pin(tiny_gguf.content(DRAFTER))
    assert served.shell(looked) == before
    assert served.pid == pid
    assert run(served.hosts).changed == []
    served.shell(f"systemctl restart {UNIT}")
    run(served.hosts)  # waits until it answers
    timings = served.ask("word1 word2 word3")["timings"]
    assert timings["draft_n_accepted"] == timings["draft_n"] > 0


def test_another_pin_of_the_drafter_is_fetched_beside_what_serves(served: Served) -> None:
    pid = served.pid
    served.hub.forget_requests()
    served.pin(tiny_gguf.content(DRAFTER, seed=8))
    record = "The node's record is the plan's"
    assert run(served.hosts).changed == [FETCHED, record, *RESTARTED]
    assert served.hub.requests_to("hub", f"*/{tiny_gguf.FILE}") == []
    assert served.pid != pid
    timings = served.ask("word1 word2 word3")["timings"]
    assert timings["draft_n_accepted"] < timings["draft_n"]
    assert run(served.hosts).changed == []
