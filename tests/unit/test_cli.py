import json
import shutil

import pytest

from gpuwright import cli, load
from gpuwright.cli import main
from tools.golden import HOSTS

CPU = str(HOSTS / "cpu-debian12" / "document.json")
LOST = str(HOSTS / "3090-gpu-lost" / "document.json")
CARD = str(HOSTS / "1x3090" / "document.json")


def test_a_plan_exits_0_and_shows_its_parts(capsys):
    assert main(["explain", "--host", CPU]) == 0
    shown = capsys.readouterr().out
    for part in ("CPU ", "memory of RAM", "why\n", "why not\n", "command\n", "--ctx-size 16384"):
        assert part in shown


def test_a_refusal_exits_3_and_says_what_would_help(capsys):
    assert main(["explain", "--host", LOST]) == 3
    shown = capsys.readouterr().out
    assert "refused: this node cannot serve" in shown
    assert "what would help" in shown


def test_bad_input_exits_2_with_one_line_per_fault(capsys):
    assert main(["explain", "--host", CPU, "--set", "prot=1", "--set", "port=0"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "gpuwright: prot: unknown key; nearest: port",
        "gpuwright: port: needs 1,024 to 65,535, found 0",
    ]


@pytest.mark.parametrize("text", ["not json", "[]", "{}", '{"schema": 9}'])
def test_a_file_that_is_no_node_document_exits_2(tmp_path, capsys, text):
    path = tmp_path / "document.json"
    path.write_text(text)
    assert main(["explain", "--host", str(path)]) == 2
    assert capsys.readouterr().err.startswith("gpuwright: ")


def test_a_missing_file_exits_2(tmp_path, capsys):
    assert main(["explain", "--host", str(tmp_path / "none.json")]) == 2
    assert "No such file" in capsys.readouterr().err


def test_a_fault_in_the_matrix_exits_4(tmp_path, capsys, monkeypatch):
    shutil.copytree(load.MATRIX, tmp_path / "matrix")
    (tmp_path / "matrix" / "cuda.yaml").write_text("- {}\n")
    monkeypatch.setattr(load.load_matrix, "__kwdefaults__", {"directory": tmp_path / "matrix"})
    assert main(["gpus"]) == 4
    assert "cuda.yaml[0].id: missing" in capsys.readouterr().err


def test_json_is_the_decision_as_data(capsys):
    assert main(["explain", "--host", CPU, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["decision"], data["engine"]) == ("plan", "llama.cpp")
    assert main(["explain", "--host", LOST, "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["decision"] == "refusal"


@pytest.mark.parametrize(
    ("setting", "shown"),
    [
        ("engine=llama.cpp", "llama.cpp: pinned"),
        ("gpus=none", "on the CPU"),
        ("gpus=[0]", "on GPU 0"),
        ("max_model_len=4096", "4,096 tokens: pinned"),
    ],
)
def test_every_key_of_a_want_can_be_set(capsys, setting, shown):
    assert main(["explain", "--host", CARD, "--model", "smollm2", "--set", setting]) == 0
    assert shown in capsys.readouterr().out


def test_a_release_that_looks_like_a_number_stays_text(capsys):
    assert main(["explain", "--host", CARD, "--set", "release=1.2"]) == 2
    assert "release: '1.2' is unknown" in capsys.readouterr().err


@pytest.mark.parametrize("command", [[], *([name] for name in cli.COMMANDS)])
def test_every_command_has_help(capsys, command):
    with pytest.raises(SystemExit) as caught:
        main([*command, "--help"])
    assert caught.value.code == 0
    assert "usage: gpuwright" in capsys.readouterr().out


def test_the_version_is_shown(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("gpuwright 0.")


def test_an_unknown_command_exits_2():
    with pytest.raises(SystemExit) as caught:
        main(["explode"])
    assert caught.value.code == 2


def test_models_and_gpus_list_the_catalogue(capsys):
    assert main(["models"]) == 0
    assert "smollm2-135m-instruct-q4_1" in capsys.readouterr().out
    assert main(["gpus"]) == 0
    assert "rtx-5090" in capsys.readouterr().out


def test_models_as_json_say_what_is_published_and_what_is_assumed(capsys):
    assert main(["models", "--json"]) == 0
    models = {row["id"]: row for row in json.loads(capsys.readouterr().out)}
    assert models["qwen3.6-27b"]["tensor_parallel_sizes"] == [1, 2, 4, 8]
    rows = {row["id"]: row for row in models["qwen3.6-27b"]["checkpoints"]}
    assert rows["qwen3.6-27b-nvfp4"]["size"] == "21.9 GB"
    assert rows["qwen3.6-27b-nvfp4"]["assumed"]
    assert rows["qwen3.6-27b-gptq"]["max_bytes"] is None
    assert rows["qwen3.6-27b-dflash"]["role"] == "drafter"
