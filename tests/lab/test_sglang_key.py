"""SGLang's key under the real unit: in the process and its own directory, and nowhere else."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from gpuwright import carry
from gpuwright.launch import launch
from gpuwright.layout import RUN, Layout
from gpuwright.units import render_unit
from tests.lab.lab import Lab
from tests.lab.node import Node
from tests.lab.serving import ROOT
from tests.unit.plans import PLAN

pytestmark = pytest.mark.lab

LAYOUT = Layout()
UNIT = LAYOUT.unit_name(PLAN.service)
SETTINGS = {"chunked_prefill_tokens": 2048, "mem_fraction_static": "0.80"}
PLANNED = replace(PLAN, engine="sglang", release="0.5.23", parameters=SETTINGS)
ENGINE = "/opt/gpuwright/engines/sglang"
MARK = "s3cr3t%it"
KEY = f"{MARK}'s-\"$HOME`\\key"
DIRECTORY = f"{RUN}/gpuwright-{PLAN.service}"


@dataclass
class Served:
    node: Node

    def shell(self, command: str) -> str:
        return self.node.run(command).stdout.strip()

    def write_key(self, key: str) -> None:
        quoted = (
            key.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$").replace("`", "\\`")
        )
        path = LAYOUT.environment_path(PLAN.service)
        self.node.run(f"install -m 600 /dev/stdin {path}", stdin=f'SGLANG_API_KEY="{quoted}"\n')

    def asked(self, key: str) -> str:
        """Status of a request with the key, which comes over standard input."""
        command = "curl -s -o /dev/null -w %{http_code} --retry 20 --retry-connrefused -K - "
        quoted = key.replace("\\", "\\\\").replace('"', '\\"')
        done = self.node.run(
            f"{command} http://127.0.0.1:{PLAN.port}/v1/models",
            stdin=f'header = "Authorization: Bearer {quoted}"\nretry-delay = 1\n',
        )
        return done.stdout.strip()


@pytest.fixture(scope="module", params=["bookworm", "trixie"])
def served(
    lab: Lab, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    node = lab.boot(f"sglang-{request.param}", request.param)
    found = Served(node)
    for path in (LAYOUT.environments, f"{ENGINE}/bin"):
        found.shell(f"install -d {path}")
    found.shell("useradd --system --user-group --shell /usr/sbin/nologin gpuwright")
    standin = (Path(__file__).parent / "sglang_standin.py").read_text()
    node.run(f"install -m 755 /dev/stdin {ENGINE}/bin/python", stdin=standin)
    version = int(found.shell("systemctl --version").split()[1])
    unit = render_unit(
        plan=PLANNED,
        launch=launch(PLANNED, LAYOUT, "/models/m", ENGINE),
        layout=LAYOUT,
        engine_dir=ENGINE,
        templates=ROOT / "templates",
        systemd_version=version,
    )
    path = LAYOUT.unit_path(PLAN.service)
    node.run(f"install -m 644 /dev/stdin {path}", stdin=unit)
    assert found.shell(f"systemd-analyze verify {path} 2>&1 | grep {UNIT} || true") == ""
    found.write_key(KEY)
    found.shell(f"systemctl daemon-reload && systemctl start {UNIT}")
    yield found
    node.destroy()


def test_it_asks_for_the_key_of_the_environment_file(served: Served) -> None:
    assert served.asked(KEY) == "200"
    assert served.asked("another") == "401"


def test_the_key_is_in_no_argument_no_unit_and_no_journal(served: Served) -> None:
    assert served.asked(KEY) == "200"
    for command in (
        "journalctl --no-pager -o cat",
        "ps axww -o args",
        f"systemctl show {UNIT}; systemctl cat {UNIT}",
    ):
        assert MARK not in served.shell(command)
    # What else it logs is there.
    assert "Load weight begin." in served.shell(f"journalctl --no-pager -o cat -u {UNIT}")
    places = "/etc /opt /var /tmp /root /run"
    found = served.shell(f"grep -rlF -- '{MARK}' {places} 2>/dev/null")
    assert sorted(found.splitlines()) == [
        LAYOUT.environment_path(PLAN.service),
        f"{DIRECTORY}/arguments.yaml",
    ]


def test_without_the_filter_the_journal_would_have_it(served: Served) -> None:
    drop_in = f"/run/systemd/system/{UNIT}.d"
    served.shell(f"mkdir -p {drop_in}")
    served.node.run(
        f"install /dev/stdin {drop_in}/x.conf",
        stdin="[Service]\nUnsetEnvironment=SGLANG_LOGGING_CONFIG_PATH\n",
    )
    served.write_key("a-key-that-is-shown")
    served.shell(f"systemctl daemon-reload && systemctl restart {UNIT}")
    assert served.asked("a-key-that-is-shown") == "200"
    assert "a-key-that-is-shown" in served.shell(f"journalctl --no-pager -o cat -u {UNIT}")
    served.shell(f"rm -r {drop_in}")
    served.write_key(KEY)
    served.shell(f"systemctl daemon-reload && systemctl restart {UNIT}")
    assert served.asked(KEY) == "200"


def test_its_file_is_the_services_alone_and_gone_when_it_stops(served: Served) -> None:
    assert served.asked(KEY) == "200"
    shown = served.shell(f"stat -c '%a %U' {DIRECTORY} {DIRECTORY}/arguments.yaml")
    assert shown.splitlines() == ["700 gpuwright", "600 gpuwright"]
    assert served.node.run(
        f"setpriv --reuid nobody --clear-groups cat {DIRECTORY}/arguments.yaml", check=False
    ).returncode
    served.shell(f"systemctl stop {UNIT}")
    assert served.shell(f"test -e {DIRECTORY} || echo gone") == "gone"
    served.shell(f"systemctl start {UNIT}")


def test_what_it_compiles_stays_for_its_next_start(served: Served) -> None:
    kept = LAYOUT.kernels("sglang", "0.5.23")
    assert served.asked(KEY) == "200"
    assert served.shell(f"stat -c '%a %U' {kept}") == "700 gpuwright"
    served.shell(f"touch {kept}/triton/kernel; systemctl restart {UNIT}")
    assert served.shell(f"ls {kept}/triton") == "kernel"


@pytest.mark.parametrize(("key", "said"), [("", "is empty"), ("-abcdefgh", "begins with -")])
def test_without_a_key_that_it_can_read_it_does_not_start(
    served: Served, key: str, said: str
) -> None:
    served.write_key(key)
    assert served.node.run(f"systemctl restart {UNIT}", check=False).returncode
    assert said in served.shell(f"journalctl --no-pager -o cat -u {UNIT} -n 20")
    served.write_key(KEY)
    served.shell(f"systemctl reset-failed {UNIT}; systemctl restart {UNIT}")


def test_a_generated_key_is_one_that_it_can_read(served: Served) -> None:
    path = LAYOUT.environment_path(PLAN.service)
    served.shell(f"rm {path}")
    spec = {"files": [{"path": path, "mode": "0600", "generate": ["SGLANG_API_KEY"]}]}
    served.shell(carry.command("write", spec))
    served.shell(f"systemctl restart {UNIT}")
    key = served.shell(f"sed -n s/^SGLANG_API_KEY=//p {path}")
    assert len(key) >= 32
    assert served.asked(key) == "200"
