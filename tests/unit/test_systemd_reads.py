"""systemd's own parser reads from a unit the very words that a plan has, whatever they are."""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuwright.launch import ENGINES, Launch, launch
from gpuwright.launch_files import sglang_files, tensorrt_llm_files
from gpuwright.layout import Layout
from gpuwright.units import render_unit
from tests.unit.plans import BESIDE, PLAN

SYSTEMD = next(
    (path for path in ("/lib/systemd/systemd", "/usr/lib/systemd/systemd") if Path(path).exists()),
    None,
)
pytestmark = pytest.mark.skipif(SYSTEMD is None, reason="no systemd is installed here")
TEMPLATES = Path(__file__).resolve().parents[2] / "templates"
HOSTILE = [
    "a b",
    "q\"u'o`te",
    "$HOME ${PATH} $$ $1",
    "50% %n %% %t",
    "--flag",
    "-",
    "@+!:|;",
    ";",
    "#comment",
    "back\\slash\\n\\x41",
    "[Service]",
    "a=b,c:d",
    "{tokens}",
    "\u00fcmlaut \u2603",
    " ",
    "",
    "trailing\\",
]


@dataclass
class Read:
    """What systemd says of a unit: each command's words, its environment, and paths it shows."""

    commands: list[list[str]]
    environment: list[str]
    bound: list[str]


def read(unit: str, folder: Path) -> Read:
    """As a user's manager that only tests reads `unit`; it starts nothing."""
    units = folder / "units"
    shutil.rmtree(units, ignore_errors=True)
    units.mkdir()
    own = folder / "own"
    own.mkdir(exist_ok=True)
    for place, mode in ((folder, 0o755), (units, 0o755), (own, 0o777)):
        place.chmod(mode)
    text = unit.replace("[Unit]\n", "[Unit]\nDefaultDependencies=no\n", 1)
    (units / "x.service").write_text(text, encoding="utf-8")
    words = [SYSTEMD, "--user", "--test", "--unit=x.service", "--no-pager", "--log-target=console"]
    if os.geteuid() == 0:
        for place in folder.parents:
            # It tests for nobody but an ordinary user, who must get there.
            if place.stat().st_mode & 0o777 == 0o700 and place.is_relative_to("/tmp"):
                place.chmod(0o711)
        words = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *words]
    done = subprocess.run(
        words,
        env={
            "HOME": str(own),
            "XDG_RUNTIME_DIR": str(own),
            "SYSTEMD_UNIT_PATH": str(units),
            "PATH": os.environ["PATH"],
            "LC_ALL": "C.UTF-8",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = done.stdout + done.stderr
    assert "/x.service:" not in said, re.findall(r".*/x\.service:.*", said)
    part = re.search(r"-> Unit x\.service:\n(.*?)(?=\n\t?-> |\Z)", said, re.DOTALL)
    assert part is not None, (done.returncode, said[:500])
    return Read(
        commands=[_words(line) for line in re.findall(r"^\s*Command Line: (.*)$", part[1], re.M)],
        environment=re.findall(r"^\s*Environment: (.*)$", part[1], re.M),
        bound=re.findall(r"^\s*BindReadOnlyPaths: (.*):rbind$", part[1], re.M),
    )


def _words(line: str) -> list[str]:
    """Words as systemd prints them, in double quotes where they need some; `$$` is made `$` when a
    command is run."""
    found = []
    for word in re.findall(r'"(?:[^"\\]|\\.)*"|[^ ]+', line):
        if word.startswith('"'):
            word = re.sub(r"\\(.)", r"\1", word[1:-1])
        found.append(word.replace("$$", "$"))
    return found


def unit(start: Launch, **plan: object) -> str:
    return render_unit(
        plan=replace(PLAN, **plan),
        launch=start,
        layout=Layout(),
        engine_dir="/opt/e",
        templates=TEMPLATES,
        systemd_version=252,
    )


def commands(found: Read) -> list[list[str]]:
    """Without the one that waits for cards."""
    return [words for words in found.commands if "/dev/nvidia-uvm" not in words[-1]]


def test_hostile_words_stay_what_they_are(tmp_path: Path) -> None:
    environment = {f"V{at}": word for at, word in enumerate(HOSTILE)}
    start = Launch(argv=("/bin/x", *HOSTILE), before=("/bin/y", *HOSTILE), environment=environment)
    found = read(unit(start), tmp_path)
    assert sorted(commands(found)) == sorted([list(start.argv), list(start.before)])
    for name, word in environment.items():
        assert f"{name}={word}" in found.environment


TEXT = st.text(
    st.characters(
        min_codepoint=32,
        max_codepoint=0x2FF,
        exclude_characters="\x7f",
        exclude_categories=["Cc", "Cs", "Zl", "Zp"],
    ),
    max_size=30,
)


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(TEXT, min_size=20, max_size=60))
def test_any_printable_words_stay_what_they_are(tmp_path: Path, words: list[str]) -> None:
    start = Launch(argv=("/bin/x", *words), before=("/bin/y", *reversed(words)))
    found = read(unit(start), tmp_path)
    assert sorted(commands(found)) == sorted([list(start.argv), list(start.before)])


SETTINGS = {
    "threads": 8,
    "gpu_layers": "all",
    "flash_attention": "on",
    "prompt_cache_mib": 2048,
    "max_num_batched_tokens": 2048,
    "gpu_memory_utilization": "0.90",
    "kv_cache_memory_bytes": 1 << 30,
    "chunked_prefill_tokens": 2048,
    "mem_fraction_static": "0.80",
}


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_is_started_with_the_words_of_its_plan(engine: str, tmp_path: Path) -> None:
    hostile = 'a "b" $HOME 50% \\ --flag'
    plan = replace(
        PLAN,
        engine=engine,
        release="1.2.1",
        served_model_name=hostile,
        parameters=SETTINGS,
        feature_arguments=("--chat-template", f"/srv/{hostile}"),
    )
    start = launch(plan, Layout(), f"/models/{hostile}", "/opt/e")
    found = read(
        render_unit(
            plan=plan,
            launch=start,
            layout=Layout(),
            engine_dir="/opt/e",
            templates=TEMPLATES,
            systemd_version=252,
        ),
        tmp_path,
    )
    assert hostile in " ".join(start.argv)
    wanted = [start.argv, *([start.before] if start.before else [])]
    assert sorted(commands(found)) == sorted(list(words) for words in wanted)
    for name, value in start.environment.items():
        assert f"{name}={value}" in found.environment


@pytest.mark.parametrize(
    "before", [sglang_files("0.5.23"), tensorrt_llm_files({"a": "$x %s 'y'"}, ("/m", "n"))]
)
def test_scripts_reach_the_shell_unchanged(before: tuple[str, ...], tmp_path: Path) -> None:
    found = read(unit(Launch(argv=("/bin/x",), before=before)), tmp_path)
    assert list(before) in found.commands


@pytest.mark.parametrize(
    "store", ["/home/me/models", "/home/me/a b", "/home/$me/50%:x", '/root/"q"\\']
)
def test_a_store_below_a_home_is_shown_as_it_is_called(store: str, tmp_path: Path) -> None:
    text = render_unit(
        plan=replace(PLAN, beside=(BESIDE,)),
        launch=Launch(argv=("/bin/x",)),
        layout=Layout(model_store=store),
        engine_dir="/opt/e",
        templates=TEMPLATES,
        systemd_version=252,
    )
    places = [f"{store}/{name}" for name in (PLAN.checkpoint, BESIDE.id)]
    assert read(text, tmp_path).bound == [f"{place}:{place}" for place in places]
