"""One bare node becomes a model server; a second run changes nothing; drift is repaired."""

import json
import shlex
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import testinfra
from testinfra.host import Host

from gpuwright.layout import Layout
from tests.lab.lab import Lab
from tests.lab.node import Node
from tests.lab.serving import NOT_SHARED, Run, inventory, raw_inventory, run
from tests.lab.warm import boot_warm

pytestmark = pytest.mark.lab

MODEL = "SmolLM2-135M-Instruct"
QUESTION = "What is the capital of France? Answer in one sentence."
UNIT = "gpuwright-llm.service"
LAYOUT = Layout()
KEY_FILE = LAYOUT.environment_path("llm")
RESTARTED = ["The service runs what the plan says", "The model answers"]
PROTECTED = "Engine and model are root's alone to change"


class Served:
    """A node that serves, with the inventory that made it so."""

    def __init__(self, node: Node, folder: Path) -> None:
        self.node = node
        self.folder = folder
        self.inventory = self.inventory_with("inventory.py", {})
        self.first = run(self.inventory)
        self.host: Host = testinfra.get_host(node.testinfra_uri)

    def inventory_with(self, name: str, want: dict[str, Any], **data: Any) -> Path:
        full = {"gpuwright": {"model": MODEL} | want} | data
        return inventory(self.folder / name, [(self.node, full)])

    def shell(self, command: str) -> str:
        return self.node.run(command).stdout.strip()

    @property
    def pid(self) -> str:
        return self.shell(f"systemctl show -p MainPID --value {UNIT}")

    @property
    def key(self) -> str:
        return self.shell(f"sed -n s/^LLAMA_API_KEY=//p {KEY_FILE}")

    @property
    def checkpoint(self) -> str:
        record = json.loads(self.shell(f"cat {LAYOUT.plan_path('llm')}"))
        (name,) = record["files"]
        return f"{LAYOUT.checkpoint_dir(record['checkpoint'])}/{name}"

    @property
    def engine_dir(self) -> str:
        return str(json.loads(self.shell(f"cat {LAYOUT.plan_path('llm')}"))["engine_dir"])

    def ask(self, path: str, body: dict[str, Any] | None = None, key: str | None = None) -> str:
        """Status and body of a request to the service, from the node itself."""
        words = ["curl", "-sS", "-m", "60", "-w", "\n%{http_code}"]
        if key is not None:
            words += ["-H", f"Authorization: Bearer {key}"]
        if body is not None:
            words += ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
        return self.shell(shlex.join([*words, f"http://127.0.0.1:8080{path}"]))

    def touched_since(self, mark: str) -> list[str]:
        """Files that changed on the node since `mark` was made, where a deploy could touch it."""
        places = "/etc /opt /usr /var/lib/gpuwright /var/cache/gpuwright /var/lib/dpkg /srv"
        listed = self.shell(f"find {places} -xdev -newer {mark} 2>/dev/null || true")
        return listed.splitlines()


@pytest.fixture(scope="module")
def served(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    node = boot_warm(lab, "serve")
    yield Served(node, tmp_path_factory.mktemp("serve"))
    node.destroy()


@pytest.fixture
def unchanged(served: Served) -> Iterator[None]:
    """The test must leave the node as it was: nothing newer, the same process."""
    mark, pid = "/run/mark", served.pid
    served.shell(f"touch {mark}; sleep 0.02")
    yield
    assert served.touched_since(mark) == []
    assert served.pid == pid


def test_first_run_shows_the_plan_and_changes_everything_it_names(served: Served) -> None:
    assert "SmolLM2-135M-Instruct" in served.first.text
    assert "llama.cpp" in served.first.text
    assert served.first.changed[-2:] == RESTARTED
    assert served.first.quiet == [*NOT_SHARED, PROTECTED]


def test_unit_is_enabled_and_active(served: Served) -> None:
    service = served.host.service(UNIT)
    assert service.is_enabled
    assert service.is_running


def test_port_is_bound_on_loopback_only(served: Served) -> None:
    lines = served.shell("ss -Hltn 'sport = :8080'").splitlines()
    assert [line.split()[3] for line in lines] == ["127.0.0.1:8080"]


def test_request_without_or_with_a_wrong_key_is_refused(served: Served) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    assert served.ask("/v1/chat/completions", body).endswith("\n401")
    assert served.ask("/v1/chat/completions", body, key="wrong").endswith("\n401")


def test_request_with_the_key_is_answered(served: Served) -> None:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": 24,
        "temperature": 0,
    }
    answer, _, status = served.ask("/v1/chat/completions", body, key=served.key).rpartition("\n")
    assert status == "200"
    assert "Paris" in json.loads(answer)["choices"][0]["message"]["content"]


def test_metrics_and_model_name_are_served(served: Served) -> None:
    models, _, _ = served.ask("/v1/models", key=served.key).rpartition("\n")
    assert [row["id"] for row in json.loads(models)["data"]] == [MODEL]
    assert "llamacpp:prompt_tokens_total" in served.ask("/metrics", key=served.key)


@pytest.mark.parametrize(
    ("path", "mode"),
    [
        (KEY_FILE, 0o600),
        (LAYOUT.environments, 0o700),
        (LAYOUT.config, 0o755),
        (LAYOUT.unit_path("llm"), 0o644),
        (LAYOUT.plan_path("llm"), 0o644),
        (LAYOUT.model_store, 0o755),
        (LAYOUT.engines, 0o755),
    ],
)
def test_file_belongs_to_root_with_its_mode(served: Served, path: str, mode: int) -> None:
    found = served.host.file(path)
    assert (found.user, found.group, oct(found.mode)) == ("root", "root", oct(mode))


def test_service_user_cannot_log_in_and_owns_nothing(served: Served) -> None:
    user = served.host.user("gpuwright")
    assert user.shell == "/usr/sbin/nologin"
    places = f"/etc /opt /usr {LAYOUT.state} {LAYOUT.cache}"
    assert served.shell(f"find {places} -xdev -user gpuwright") == ""
    assert served.shell(f"stat -c %U /proc/{served.pid}") == "gpuwright"


def test_key_is_nowhere_but_in_its_file_and_the_process(served: Served) -> None:
    key = served.key
    assert len(key) >= 32
    assert key not in served.first.text
    assert key not in served.shell("ps axww -o args")
    assert key not in served.shell("journalctl --no-pager")
    assert key not in served.shell(f"systemctl show {UNIT}; systemctl cat {UNIT}")
    found = served.shell(f"grep -rlF -- {key} /etc /opt /var /tmp /root 2>/dev/null || true")
    assert found == KEY_FILE


def test_unit_is_rated_at_most_1_5(served: Served) -> None:
    rating = served.shell(f"systemd-analyze security --no-pager {UNIT} | tail -n 1")
    assert float(rating.split(":")[1].split()[0]) <= 1.5, rating


def test_second_run_changes_nothing_and_restarts_nothing(served: Served) -> None:
    pid = served.pid
    second = run(served.inventory)
    assert second.changed == []
    assert sorted(second.quiet) == sorted([*served.first.changed, *served.first.quiet])
    assert served.pid == pid


def test_dry_run_of_a_served_node_shows_no_change(served: Served) -> None:
    done = run(served.inventory, "--dry")
    assert "nothing to change" in done.text


def test_diff_run_prints_no_secret(served: Served) -> None:
    served.shell(f"rm {KEY_FILE}")
    done = run(served.inventory, "--diff", "-vvv")
    assert "The API key exists, for root alone" in done.changed
    assert served.key not in done.text


def _edit_unit(served: Served) -> None:
    served.shell(f"sed -i 's/^Restart=.*/Restart=no/' {LAYOUT.unit_path('llm')}")


def _edit_unit_and_reload(served: Served) -> None:
    _edit_unit(served)
    served.shell("systemctl daemon-reload")


def _stop(served: Served) -> None:
    served.shell(f"systemctl stop {UNIT}")


def _kill_hard(served: Served) -> None:
    served.shell(f"systemctl kill -s KILL {UNIT}; systemctl stop {UNIT}")


def _truncate_model(served: Served) -> None:
    served.shell(f"truncate -s 1000000 {served.checkpoint}")


def _replace_model(served: Served) -> None:
    path = served.checkpoint
    served.shell(f"head -c $(stat -c %s {path}) /dev/urandom > {path}.x && mv {path}.x {path}")


def _remove_model(served: Served) -> None:
    served.shell(f"rm {served.checkpoint}")


def _remove_build(served: Served) -> None:
    served.shell(f"rm -r {served.engine_dir}")


def _replace_binary(served: Served) -> None:
    path = f"{served.engine_dir}/bin/llama-server"
    served.shell(f"cp /bin/true {path}.x && mv {path}.x {path}")


def _remove_key(served: Served) -> None:
    served.shell(f"rm {KEY_FILE}")


def _change_key(served: Served) -> None:
    served.shell(f"sed -i s/=./=x/ {KEY_FILE}")


FETCHED = ["The model's files are present and verified", *RESTARTED]
BUILT = [
    "The engine's source is present and verified",
    "The engine is built and proven",
    *RESTARTED,
]
UNIT_WRITTEN = ["The unit is the plan's", "systemd knows the unit as it is", *RESTARTED]


@pytest.mark.parametrize(
    ("damage", "repairs"),
    [
        (_edit_unit, UNIT_WRITTEN),
        (_edit_unit_and_reload, UNIT_WRITTEN),
        (_stop, RESTARTED),
        (_kill_hard, RESTARTED),
        (_truncate_model, FETCHED),
        (_replace_model, FETCHED),
        (_remove_model, FETCHED),
        (_remove_build, BUILT),
        (_replace_binary, BUILT),
        (_remove_key, ["The API key exists, for root alone", *RESTARTED]),
        (_change_key, RESTARTED),
    ],
)
def test_drift_is_repaired_with_a_restart_and_nothing_else(
    served: Served, damage: Callable[[Served], None], repairs: list[str]
) -> None:
    pid = served.pid
    damage(served)
    assert run(served.inventory).changed == repairs
    assert served.pid not in (pid, "0")
    assert served.ask("/v1/models", key=served.key).endswith("\n200")
    assert run(served.inventory).changed == []


@pytest.mark.parametrize(
    ("damage", "repair"),
    [
        (f"chmod 0644 {KEY_FILE}", "The API key exists, for root alone"),
        (f"chown gpuwright {KEY_FILE}", "The API key exists, for root alone"),
        (f"chmod 0755 {LAYOUT.environments}", "Directories stand with their owners and modes"),
        (f"systemctl --quiet disable {UNIT}", "The service starts at boot"),
        (f"chmod 0666 {LAYOUT.model_store}/*/*.gguf", PROTECTED),
        (f"chown nobody {LAYOUT.engines}/*/bin/llama-server", PROTECTED),
        (f"chmod 0700 {LAYOUT.engines}/*", PROTECTED),
        (f"rm {LAYOUT.plan_path('llm')}", "The node's record is the plan's"),
        (f"echo '{{}}' > {LAYOUT.plan_path('llm')}", "The node's record is the plan's"),
    ],
)
def test_drift_that_the_process_does_not_feel_is_repaired_without_a_restart(
    served: Served, damage: str, repair: str
) -> None:
    pid = served.pid
    served.shell(damage)
    assert run(served.inventory).changed == [repair]
    assert served.pid == pid
    assert run(served.inventory).changed == []


def test_silent_bit_flip_is_found_by_full_verification_only(served: Served) -> None:
    path = served.checkpoint
    flip = (
        "import os,sys; p=sys.argv[1]; s=os.stat(p); f=open(p,'r+b'); f.seek(5000000); "
        "b=f.read(1); f.seek(5000000); f.write(bytes([b[0]^1])); f.close(); "
        "os.utime(p, ns=(s.st_atime_ns, s.st_mtime_ns))"
    )
    served.shell(shlex.join(["python3", "-c", flip, path]))
    assert run(served.inventory).changed == []
    assert run(served.inventory, "--data", "verify=full").changed == FETCHED
    assert run(served.inventory, "--data", "verify=full").changed == []


def test_reboot_brings_the_service_back_and_a_run_changes_nothing(served: Served) -> None:
    served.node.shutdown()
    served.node.power_on()
    deadline = time.monotonic() + 60
    while not served.ask("/health").endswith("\n200") and time.monotonic() < deadline:
        time.sleep(0.5)
    assert run(served.inventory).changed == []


def test_second_service_is_bound_where_asked_and_leaves_the_first_alone(served: Served) -> None:
    pid = served.pid
    want = {"service": "open", "port": 8091, "bind": "0.0.0.0"}
    path = served.inventory_with("open.py", want)
    run(path)
    try:
        lines = served.shell("ss -Hltn 'sport = :8091'").splitlines()
        assert [line.split()[3] for line in lines] == ["0.0.0.0:8091"]
        url = f"http://{served.node.address}:8091/v1/models"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(url, timeout=10)
        key = served.shell(f"sed -n s/^LLAMA_API_KEY=//p {LAYOUT.environment_path('open')}")
        assert key != served.key
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"})
        with urllib.request.urlopen(request, timeout=10) as response:
            assert MODEL in response.read().decode()
        assert run(path).changed == []
        assert run(served.inventory).changed == []
        assert served.pid == pid
    finally:
        served.shell("systemctl disable --now gpuwright-open.service")


def test_service_that_a_drop_in_opens_is_not_passed(served: Served) -> None:
    """No run may end well while whoever has no key is answered."""
    folder = f"/etc/systemd/system/{UNIT}.d"
    text = "[Service]\nUnsetEnvironment=LLAMA_API_KEY\n"
    served.node.run(f"mkdir {folder} && cat > {folder}/x.conf", stdin=text)
    served.shell(f"systemctl daemon-reload; systemctl restart {UNIT}")
    served.shell("until curl -sf http://127.0.0.1:8080/health; do sleep .2; done")
    try:
        done = run(served.inventory, check=False)
        assert done.status != 0
        assert "answers without a key" in done.text
        assert f"{folder}/x.conf" in done.text
    finally:
        served.shell(f"rm -r {folder}; systemctl daemon-reload")
    assert run(served.inventory).changed == RESTARTED


def test_package_lists_held_by_another_process_are_waited_for(served: Served) -> None:
    hold = (
        "import fcntl,time; f=open('/var/lib/apt/lists/lock','w'); fcntl.lockf(f,2); time.sleep(12)"
    )
    served.shell(f"systemd-run -q --unit=holder python3 -c {shlex.quote(hold)}")
    served.shell("dpkg --purge --force-depends libgomp1")
    try:
        assert run(served.inventory).changed == ["Packages that the engine needs are installed"]
    finally:
        served.shell("systemctl stop holder || true")
    assert run(served.inventory).changed == []


# Bad input: one clear line for every host concerned, a non-zero exit, no node touched.


def _refused(done: Run, *texts: str) -> None:
    assert done.status != 0, done.text
    assert "Traceback" not in done.text, done.text
    line = next((line for line in done.text.splitlines() if texts[0] in line), "")
    for text in texts:
        assert text in line, done.text


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    ("want", "texts"),
    [
        ({"model": "SmolLM2-135M-Instuct"}, ("SmolLM2-135M-Instuct", "smollm2-135m-instruct")),
        ({"modle": "x"}, ("modle", "nearest: model")),
        ({"port": 70000}, ("port", "70,000", "65,535")),
        ({"port": "8080"}, ("port", "'8080'")),
        ({"model": "Qwen3.6-27B", "engine": "sglang"}, ("Qwen3.6-27B", "GPU")),
        ({"service": "../x"}, ("service", "../x")),
        ({"bind": "everywhere"}, ("bind", "everywhere")),
    ],
)
def test_bad_want_is_refused_in_one_line(
    served: Served, want: dict[str, Any], texts: tuple[str, ...]
) -> None:
    done = run(served.inventory_with("bad.py", want), check=False)
    _refused(done, *texts)
    assert served.node.name in done.text


@pytest.mark.usefixtures("unchanged")
def test_port_of_another_process_is_refused_with_its_name(served: Served) -> None:
    served.shell("systemd-run -q --unit=squatter python3 -m http.server 8099 --bind 127.0.0.1")
    served.shell(
        "for i in $(seq 50); do ss -Hltn 'sport = :8099' | grep -q . && break; sleep .1; done"
    )
    try:
        want = {"service": "other", "port": 8099}
        done = run(served.inventory_with("port.py", want), check=False)
    finally:
        served.shell("systemctl stop squatter")
    _refused(done, "8099", "squatter")


@pytest.mark.usefixtures("unchanged")
def test_small_disk_is_refused_with_needed_and_found(served: Served) -> None:
    served.node.limit_disk("/mnt/small", 64 << 20)
    want = {"service": "other", "port": 8099, "model_store": "/mnt/small/models"}
    done = run(served.inventory_with("disk.py", want), check=False)
    _refused(done, "/mnt/small", "GiB")


@pytest.mark.usefixtures("unchanged")
def test_unreachable_index_is_refused_before_anything_is_touched(served: Served) -> None:
    want = {
        "service": "other",
        "port": 8099,
        "model_store": "/srv/other",
        "python_index": "http://127.0.0.1:9/simple",
    }
    done = run(served.inventory_with("mirror.py", want), check=False)
    _refused(done, "127.0.0.1:9")
    assert served.node.name in done.text


@pytest.mark.usefixtures("unchanged")
def test_unreachable_host_keeps_the_others_untouched(served: Served, tmp_path: Path) -> None:
    gone = served.node.pyinfra_host_data() | {"ssh_hostname": "127.0.0.1", "ssh_port": 9}
    data = {"gpuwright": {"model": MODEL, "service": "other", "port": 8099}}
    hosts = [
        (served.node.name, served.node.pyinfra_host_data() | data),
        ("gone", gone | data),
    ]
    done = run(raw_inventory(tmp_path / "two.py", hosts), check=False)
    _refused(done, "gone: not reached")


@pytest.mark.usefixtures("unchanged")
def test_every_host_without_a_plan_is_named(served: Served, tmp_path: Path) -> None:
    connection = served.node.pyinfra_host_data()
    hosts = [
        ("good", connection | {"gpuwright": {"model": MODEL}}),
        ("misspelt", connection | {"gpuwright": {"modle": MODEL}}),
        ("unknown", connection | {"gpuwright": {"model": "GPT-9"}}),
    ]
    done = run(raw_inventory(tmp_path / "three.py", hosts), check=False)
    _refused(done, "2 hosts of 3")
    assert "misspelt: " in done.text
    assert "unknown: " in done.text
    assert "good: " not in done.text


def test_a_plan_that_does_not_start_leaves_the_old_one_answering(served: Served) -> None:
    served.shell(f"systemctl is-active {UNIT}")
    # A file that can be read, and that the engine itself ends at.
    served.shell("printf '{%% if %%}' > /srv/broken.jinja")
    broken = served.inventory_with("broken.py", {"chat_template": "/srv/broken.jinja"})
    done = run(broken, check=False)
    assert done.status != 0
    assert f"what served before serves again: {MODEL} on llama.cpp" in done.text
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    assert served.ask("/v1/chat/completions", body, key=served.key).endswith("\n200")
    assert served.shell("find /etc/systemd /var/lib/gpuwright -name '*.previous'") == ""
    # The node is as the plan before says, to the last byte.
    assert run(served.inventory).changed == []


def test_a_plan_that_starts_lets_go_of_the_old_one(served: Served) -> None:
    other = served.inventory_with("other.py", {"max_num_seqs": 1})
    assert run(other).changed[-2:] == RESTARTED
    assert served.shell("find /etc/systemd /var/lib/gpuwright -name '*.previous'") == ""
    run(served.inventory)
