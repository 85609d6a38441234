"""What is written at an engine's start: the key stays a value, and never reaches the journal."""

import json
import logging
import os
import stat
import subprocess
import sys

import pytest
import yaml

from gpuwright.launch_files import ik_llama_cpp_files, sglang_files, tensorrt_llm_files
from gpuwright.records import load_record, recorded

KEYS = ["abcdefgh", "12345678", "it's", "'", "a''b", "null", "#a:b,{[", 'q"u\\o$te`%s', "true", "~"]


def start(command, directory, **environment):
    environment = os.environ | {"RUNTIME_DIRECTORY": str(directory)} | environment
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("key", KEYS)
def test_sglang_reads_the_key_as_it_stands_in_the_environment(key, tmp_path):
    done = start(sglang_files("0.5.23"), tmp_path, SGLANG_API_KEY=key)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    path = tmp_path / "arguments.yaml"
    assert yaml.safe_load(path.read_text()) == {"api-key": key}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(("engine", "release"), [r for r in recorded() if r[0] == "sglang"])
def test_what_the_file_says_is_an_option_that_takes_a_value(engine, release):
    flags = load_record(engine, release).flags
    assert flags["--api-key"].takes == flags["--config"].takes == "1"


@pytest.mark.parametrize(
    ("environment", "said"),
    [({"SGLANG_API_KEY": ""}, "is empty"), ({}, "is empty"), ({"SGLANG_API_KEY": "-x"}, "begins")],
)
def test_sglang_does_not_start_without_a_key_that_it_can_read(environment, said, tmp_path):
    done = start(sglang_files("0.5.23"), tmp_path, **environment)
    assert done.returncode == 1
    assert said in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("release", "said"),
    [("0.5.10.post1", ["a warning"]), ("0.5.23", ["a warning", "max_total_num_tokens"])],
)
def test_what_sglang_logs_of_its_arguments_is_not_said_and_all_else_is(release, said, tmp_path):
    start(sglang_files(release), tmp_path, SGLANG_API_KEY="abcdefgh")
    # As its own code does it: the file first, then the lines.
    program = (
        "import json, logging, logging.config, sys\n"
        "logging.basicConfig(level='INFO', force=True)\n"
        "engine = logging.getLogger('sglang.srt.entrypoints.engine')\n"
        "logging.config.dictConfig(json.load(open(sys.argv[1])))\n"
        "engine.info('server_args=%s', {'api_key': 'abcdefgh'})\n"
        "engine.warning('a warning')\n"
        "logging.getLogger('sglang.srt.managers.scheduler').info('max_total_num_tokens')\n"
        "logging.getLogger('sglang.srt.managers.scheduler_metrics_mixin').info('Decode batch')\n"
        "logging.getLogger('uvicorn.error').info('Started server process')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "logging.json"],
        capture_output=True,
        text=True,
        check=True,
    )
    found = [line.split("] ", 1)[1] for line in done.stderr.splitlines()]
    assert found == [*said, "Decode batch", "Started server process"]
    assert logging.getLogger("sglang").level == logging.NOTSET


def test_ik_llama_reads_each_key_from_a_line_that_only_the_service_can_read(tmp_path):
    done = start(ik_llama_cpp_files(), tmp_path, LLAMA_API_KEY="-first%s,second\\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    path = tmp_path / "keys"
    assert path.read_text() == 2 * "-first%s\nsecond\\n\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("environment", [{"LLAMA_API_KEY": ""}, {}])
def test_ik_llama_does_not_start_without_a_key(environment, tmp_path):
    done = start(ik_llama_cpp_files(), tmp_path, **environment)
    assert done.returncode == 1
    assert "LLAMA_API_KEY is empty" in done.stderr
    assert not list(tmp_path.iterdir())


def test_tensorrt_llms_settings_come_out_of_the_shell_as_they_went_in(tmp_path):
    settings = {"a": "it's $HOME `x` %s \\n", "b": {"c": 1, "d": True}}
    done = start(tensorrt_llm_files(settings), tmp_path)
    assert done.returncode == 0, done.stderr
    path = tmp_path / "config.yaml"
    assert yaml.safe_load(path.read_text()) == json.loads(path.read_text()) == settings
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_tensorrt_llms_model_is_linked_under_its_name_at_each_start(tmp_path):
    model, other = tmp_path / "a model's", tmp_path / "other"
    model.mkdir()
    other.mkdir()
    for target in (model, other, other):
        done = start(tensorrt_llm_files({}, (str(target), "$x")), tmp_path)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "model/$x").resolve() == target
    assert not list(other.iterdir())
