"""Units: what comes from outside stays one word, and the digest names the text."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwright.expected import PLAN_VARIABLE, digest_of
from gpuwright.launch import Launch
from gpuwright.layout import Layout
from gpuwright.plan import PlannedGpu
from gpuwright.units import UnitError, environment_line, render_unit, systemd_word
from tests.unit.plans import BESIDE, PLAN

TEMPLATES = Path(__file__).resolve().parents[2] / "templates"
GPU = PlannedGpu(uuid="GPU-0", index=0, name="NVIDIA GeForce RTX 3090", compute_capability="8.6")


def _unit(**changes: object) -> str:
    values = {
        "plan": PLAN,
        "launch": Launch(
            argv=("/opt/e/bin/llama-server", "--alias", "a b"), environment={"A": "1"}
        ),
        "layout": Layout(),
        "engine_dir": "/opt/e",
        "templates": TEMPLATES,
        "systemd_version": 257,
    }
    return render_unit(**(values | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ("--port", "--port"),
        ("a b", '"a b"'),
        ("50%", '"50%%"'),
        ("$HOME", '"$$HOME"'),
        ('say "hi"', '"say \\"hi\\""'),
        ("back\\slash", '"back\\\\slash"'),
        ("", '""'),
        ("semi;colon", '"semi;colon"'),
    ],
)
def test_word_is_quoted_for_systemd(value: str, word: str) -> None:
    assert systemd_word(value) == word


@pytest.mark.parametrize("value", ["new\nline", "nul\0", "\x1b[31m"])
def test_control_characters_have_no_place_in_a_unit(value: str) -> None:
    with pytest.raises(UnitError, match="control characters"):
        systemd_word(value)


def _read_word(text: str) -> str:
    """What systemd makes of a word (systemd.syntax(7)): quotes, backslashes, then % and $."""
    if text.startswith('"'):
        text = re.sub(r"\\(.)", r"\1", text[1:-1])
    return text.replace("%%", "%").replace("$$", "$")


@given(st.text(st.characters(min_codepoint=32, exclude_characters="\x7f"), max_size=40))
def test_word_reads_back_as_the_value(value: str) -> None:
    word = systemd_word(value)
    assert _read_word(word) == value
    assert word.startswith('"') or not re.search(r"[\s\"'\\;]", word)


def test_environment_values_keep_their_dollars() -> None:
    assert environment_line("A", "$x 5%") == '"A=$x 5%%"'


def test_unit_carries_the_digest_of_its_own_text() -> None:
    unit = _unit()
    found = re.search(rf'Environment="{PLAN_VARIABLE}=([0-9a-f]{{16}})"', unit)
    assert found
    assert digest_of(unit.replace(found.group(1), "")) == found.group(1)


def test_digest_changes_with_anything_that_the_unit_says() -> None:
    other = _unit(launch=Launch(argv=("/opt/e/bin/llama-server", "--alias", "other")))
    assert re.search(PLAN_VARIABLE + '=(.*)"', _unit()).group(1) != (  # type: ignore[union-attr]
        re.search(PLAN_VARIABLE + '=(.*)"', other).group(1)  # type: ignore[union-attr]
    )


def test_loopback_service_is_fenced_in_by_the_kernel_and_others_are_not() -> None:
    assert "IPAddressDeny=any" in _unit()
    assert "IPAddressDeny" not in _unit(plan=replace(PLAN, bind="0.0.0.0"))


def test_cpu_unit_has_no_devices_and_no_writable_code() -> None:
    unit = _unit()
    assert "PrivateDevices=yes" in unit
    assert "MemoryDenyWriteExecute=yes" in unit
    assert "DeviceAllow" not in unit


def test_gpu_unit_reaches_every_device_class_of_the_driver() -> None:
    unit = _unit(plan=replace(PLAN, gpus=(GPU,)))
    for name in ("char-nvidia ", "char-nvidia-uvm ", "char-nvidia-caps "):
        assert f"DeviceAllow={name}rw" in unit
    for hidden in ("PrivateDevices=yes", "ProcSubset=pid", "MemoryDenyWriteExecute=yes"):
        assert f"\n{hidden}" not in unit
    assert "/dev/nvidia-uvm" in unit


def test_growing_restart_delay_is_left_out_where_systemd_does_not_know_it() -> None:
    assert "RestartSteps=" in _unit(systemd_version=254)
    assert "RestartSteps=" not in _unit(systemd_version=252)


def test_model_below_a_home_directory_is_shown_alone() -> None:
    plan = replace(PLAN, beside=(BESIDE,))
    unit = _unit(layout=Layout(model_store="/home/me/models"), plan=plan)
    assert "ProtectHome=tmpfs" in unit
    shown = [line for line in unit.splitlines() if line.startswith("BindReadOnlyPaths=")]
    names = (PLAN.checkpoint, BESIDE.id)
    assert shown == [f"BindReadOnlyPaths=/home/me/models/{name}" for name in names]


def test_what_runs_before_is_one_line_of_the_services_own_user() -> None:
    before = ("/bin/sh", "-c", 'key=$KEY; printf "%s\\n" >"$RUNTIME_DIRECTORY/a"', "sh", '{"a": 1}')
    unit = _unit(launch=Launch(argv=("/opt/e/bin/x",), before=before))
    assert "RuntimeDirectory=gpuwright-llm\nRuntimeDirectoryMode=0700\n" in unit
    (line,) = [line for line in unit.splitlines() if line.startswith("ExecStartPre=")]
    assert line == (
        'ExecStartPre=/bin/sh -c "key=$$KEY; printf \\"%%s\\\\n\\" '
        '>\\"$$RUNTIME_DIRECTORY/a\\"" sh "{\\"a\\": 1}"'
    )


def test_only_what_compiles_may_write_a_cache_and_run_what_it_wrote() -> None:
    plain, compiling = _unit(), _unit(launch=Launch(argv=("/opt/e/bin/x",), compiles=True))
    assert "CacheDirectory=" not in plain
    assert "CacheDirectory=gpuwright/llama.cpp-b1\n" in compiling
    assert "MemoryDenyWriteExecute=yes" not in compiling
    assert "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK\n" in compiling
