import itertools
import json
import os
import shutil
import subprocess
import sys

import pytest
import yaml

from gpuwright import load, sketch_values
from gpuwright.cli import main
from tools.golden import CLI_PAGE, HOSTS, cli_page

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
    assert main(["explain", "--host", CPU, "--pin", "prot=1", "--pin", "port=0"]) == 2
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


def test_a_card_s_name_is_all_that_a_question_needs(capsys):
    assert main(["explain", "--gpu", "4060 Ti 16 GB", "--gpu", "4060 Ti 16 GB", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["verdict"] == "plan"
    assert [card["name"] for card in data["cards"]] == ["NVIDIA GeForce RTX 4060 Ti"] * 2
    assert any(each.startswith("driver 580: assumed") for each in data["assumed"])


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ([], "no node: needs --host FILE, or --gpu NAME for each card"),
        (["--host", CPU, "--driver", "570"], "--host: stands alone, found --driver beside it"),
        (["--host", CPU, "--gpu", "3090"], "--host: stands alone, found --gpu beside it"),
        (["--driver", "570"], "no node: needs --host FILE, or --gpu NAME for each card"),
        (["--gpu", "RTX 3091"], "gpus[0]: 'RTX 3091' is unknown; nearest: "),
        (["--gpu", "3090", "--p2p", "yes please"], "p2p: needs true or false, found 'yes please'"),
        (["--gpu", "3090", "--memory-gib", "lots"], "memory_gib: needs a number of GiB"),
        (["--gpu", "3090", "--driver", "new"], "driver: needs a version as text, such as "),
    ],
)
def test_a_wrong_node_exits_2_and_is_named(capsys, words, fault):
    assert main(["explain", *words]) == 2
    assert capsys.readouterr().err.startswith(f"gpuwright: {fault}")


def test_a_host_file_may_be_a_sketch_in_yaml_or_json(tmp_path, capsys):
    said = {"gpus": ["RTX 3090"], "driver": "550", "free_memory_gib": 20}
    answers = []
    for name, text in (("a.yaml", yaml.safe_dump(said)), ("b.json", json.dumps(said))):
        (tmp_path / name).write_text(text)
        assert main(["explain", "--host", str(tmp_path / name), "--model", "qwen3.6-27b"]) == 0
        answers.append(capsys.readouterr().out)
    options = ["--gpu", "3090", "--driver", "550", "--free-memory-gib", "20"]
    assert main(["explain", *options, "--model", "qwen3.6-27b"]) == 0
    assert answers == [capsys.readouterr().out] * 2


def test_a_fault_in_a_file_names_the_file(tmp_path, capsys):
    path = tmp_path / "sketch.yaml"
    path.write_text("gpus: [RTX 3090]\ndriver: 5x\ngpu: 3\n")
    assert main(["explain", "--host", str(path)]) == 2
    known, newest = ", ".join(sketch_values.KEYS), '"580.95.05"'
    assert capsys.readouterr().err.splitlines() == [
        f"gpuwright: {path}: driver: needs a version as text, such as {newest}, found '5x'",
        f"gpuwright: {path}: gpu: unknown key; nearest: gpus; known: {known}",
    ]


@pytest.mark.parametrize(
    "text", ["{", "gpus: [", "a: 1\na: 2", '{"gpus": [], "gpus": []}', "\0", "x: 2026-13-45"]
)
def test_a_file_that_cannot_be_read_exits_2(tmp_path, capsys, text):
    path = tmp_path / "sketch.yaml"
    path.write_text(text)
    assert main(["explain", "--host", str(path)]) == 2
    assert capsys.readouterr().err.startswith(f"gpuwright: {path}: ")


def test_a_want_may_be_a_file(tmp_path, capsys):
    path = tmp_path / "want.yaml"
    path.write_text("model: smollm2\nmax_model_len: 4096\n")
    assert main(["explain", "--host", CPU, "--want", str(path), "--json"]) == 0
    by_file = capsys.readouterr().out
    pins = ["--model", "smollm2", "--pin", "max_model_len=4096"]
    assert main(["explain", "--host", CPU, *pins, "--json"]) == 0
    assert by_file == capsys.readouterr().out
    assert main(["explain", "--host", CPU, "--want", str(path), "--model", "x"]) == 2
    assert "--want: stands alone, found model beside it" in capsys.readouterr().err
    path.write_text("modle: smollm2\n")
    assert main(["explain", "--host", CPU, "--want", str(path)]) == 2
    assert f"{path}: modle: unknown key; nearest: model" in capsys.readouterr().err


def test_a_want_may_list_services_and_is_refused_as_one(tmp_path, capsys):
    path = tmp_path / "want.yaml"
    services = [{"service": "a", "model": "smollm2"}, {"service": "b", "port": 8081}]
    path.write_text(json.dumps({"model": "gpt-oss-120b", "services": services}))
    words = ["explain", "--gpu", "3060", "--memory-gib", "16", "--want", str(path), "--json"]
    assert main(words) == 3
    data = json.loads(capsys.readouterr().out)
    assert data["verdict"] == "refusal"
    assert [(each["service"], each["verdict"]) for each in data["services"]] == [
        ("a", "plan"),
        ("b", "refusal"),
    ]


def test_services_of_one_node_have_one_file_of_models(tmp_path, capsys):
    path = tmp_path / "want.yaml"
    services = [{"service": "a"}, {"service": "b", "port": 8081, "extra_models": "x.yaml"}]
    path.write_text(json.dumps({"services": services}))
    assert main(["explain", "--gpu", "3060", "--want", str(path)]) == 2
    assert "extra_models: differs between services" in capsys.readouterr().err


def test_a_key_that_is_pinned_to_two_values_is_named(capsys):
    pins = ["--model", "smollm2", "--pin", "model=qwen3.6-27b", "--pin", "port"]
    assert main(["explain", "--host", CPU, *pins]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "gpuwright: --pin port: needs KEY=VALUE",
        "gpuwright: model: pinned twice, to 'qwen3.6-27b' and to 'smollm2'",
    ]


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--pin", "lora={a: /srv/a, a: /srv/b}"], "lora line 1: key 'a' stands twice"),
        (["--pin", "gpus=[0"], "gpus: line 2, column 1: did not find expected ',' or ']'"),
        (["--free-memory-gib", "[20"], "free_memory_gib: line 2, column 1: did not find expected"),
    ],
)
def test_a_list_or_mapping_of_an_option_is_refused_for_what_is_wrong_with_its_yaml(
    words, fault, capsys
):
    assert main(["explain", "--gpu", "3090", *words]) == 2
    assert capsys.readouterr().err.startswith(f"gpuwright: {fault}")


@pytest.mark.parametrize(
    "words",
    [
        ["explain", "--gpu", "3090", "--model", "a", "--model", "b"],
        ["fits", "--gpu", "3090", "--driver", "a", "--driver", "b"],
        ["kv", "--model", "x", "--engine", "a", "--engine=b", "--available-gib", "9"],
    ],
)
def test_an_option_that_is_said_twice_is_named_with_both_values(capsys, words):
    assert main(words) == 2
    assert ": said twice, 'a' and 'b'; " in capsys.readouterr().err
    same = [{"b": "a", "--engine=b": "--engine=a"}.get(word, word) for word in words]
    assert main(same) == 2
    assert "twice" not in capsys.readouterr().err


PINNABLE = [
    *("engine", "release", "build_tag", "checkpoint", "attention_backend", "kv_cache_dtype"),
    *("tensor_parallel_size", "gpus", "max_model_len", "max_num_seqs"),
]


@pytest.mark.parametrize("rig", ["1x3090", "2x3090-pcie", "3090-and-4090", "5090"])
def test_what_a_plan_says_pins_the_same_plan(capsys, rig):
    words = ["explain", "--json", "--model", "qwen3.6-27b", "--host"]
    words.append(str(HOSTS / rig / "document.json"))
    assert main(words) == 0
    first = json.loads(capsys.readouterr().out)
    pins = [f"--pin={key}={json.dumps(first[key])}" for key in PINNABLE]
    pins = [pin.replace('"', "") for pin in pins]
    assert main([*words, *pins]) == 0
    second = json.loads(capsys.readouterr().out)
    different = {"reasons", "why_not"}
    assert {key: value for key, value in second.items() if key not in different} == {
        key: value for key, value in first.items() if key not in different
    }


def test_figures_of_memory_add_up(capsys):
    assert main(["explain", "--host", CARD, "--model", "qwen3.6-27b", "--json"]) == 0
    memory = json.loads(capsys.readouterr().out)["memory"]
    terms = {term["name"]: term["bytes"] for term in memory["terms"]}
    assert (terms["weights"], terms["KV cache"]) == (
        memory["weights_bytes"],
        memory["kv_cache_bytes"],
    )
    assert memory["needed_bytes"] + memory["free_bytes"] == memory["available_bytes"]
    assert sum(term["bytes"] for term in memory["terms"]) == memory["needed_bytes"]


@pytest.mark.parametrize("rig", ["1x3090", "cpu-debian12"])
def test_fits_lists_first_what_auto_takes(capsys, rig):
    host = ["--host", str(HOSTS / rig / "document.json"), "--json"]
    assert main(["explain", *host]) == 0
    auto = json.loads(capsys.readouterr().out)
    assert main(["fits", *host]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["plans"][0]["model"] == auto["model"]
    assert found["plans"][0]["arguments"] == auto["arguments"]
    models = [each["model"] for each in (*found["plans"], *found["refusals"])]
    assert sorted(models) == sorted(row.id for row in load.load_matrix().models)


def test_fits_is_a_table_and_names_what_is_refused(capsys):
    assert main(["fits", "--gpu", "5090", "--memory-gib", "8"]) == 0
    shown = capsys.readouterr().out
    header, *rows = shown[shown.index("model  ") :].split("\n\n")[0].splitlines()
    assert header.split()[:3] == ["model", "checkpoint", "engine"]
    assert any(row.startswith("qwen3.6-27b ") for row in rows)
    refused = shown[shown.index("\nrefused\n") :].splitlines()
    (line,) = (line for line in refused if "gpt-oss-120b:" in line)
    assert line.endswith("GiB can be had")


def test_fits_exits_3_where_nothing_fits_and_says_once_why(capsys):
    assert main(["fits", "--host", LOST]) == 3
    assert capsys.readouterr().out.count("NVML says the GPU at") == 2


def test_fits_takes_no_pin_of_one_model(capsys):
    assert main(["fits", "--gpu", "5090", "--pin", "model=smollm2"]) == 2
    assert "model: not for fits" in capsys.readouterr().err


# docs/cli.md


def test_the_page_shows_what_commands_answer():
    page = CLI_PAGE.read_text(encoding="utf-8")
    assert cli_page(page) == page
    assert page.count("\n{\n") == 1


def test_the_page_names_every_key_of_a_plan_in_order(capsys):
    assert main(["explain", "--host", CARD, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert list(data) == keys_of_page("verdict")
    assert list(data["memory"]) == keys_of_page("where")


def test_a_refusal_has_the_keys_that_the_page_says(capsys):
    assert main(["explain", "--host", LOST, "--json"]) == 3
    data = json.loads(capsys.readouterr().out)
    keys = keys_of_page("verdict")
    shared = keys[: keys.index("memory") + 1]
    assert list(data)[: len(shared)] == shared
    assert all(data[key] is None for key in shared[shared.index("engine") :])
    assert set(data) - set(shared) == {
        *("summary", "reasons", "remedies", "why_not", "assumed", "warnings")
    }


def test_the_page_names_every_key_of_a_sketch_in_order():
    assert tuple(keys_of_page("gpus")) == tuple(sketch_values.KEYS)


def keys_of_page(first):
    """Keys of the table on the page that begins with the key `first`."""
    lines = CLI_PAGE.read_text(encoding="utf-8").splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(f"| `{first}` |"))
    rows = itertools.takewhile(lambda line: line.startswith("|"), lines[start:])
    return [row.split("`")[1] for row in rows]


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
    assert (data["verdict"], data["engine"]) == ("plan", "llama.cpp")
    assert main(["explain", "--host", LOST, "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["verdict"] == "refusal"


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
    assert main(["explain", "--host", CARD, "--model", "smollm2", "--pin", setting]) == 0
    assert shown in capsys.readouterr().out


def test_a_release_that_looks_like_a_number_stays_text(capsys):
    assert main(["explain", "--host", CARD, "--pin", "release=1.2"]) == 2
    assert "release: '1.2' is unknown" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["explian"], "command: 'explian' is unknown; nearest: explain; known: explain, fits, kv"),
        ([], "the following arguments are required: COMMAND; `gpuwright --help` says"),
        (["kv"], "the following arguments are required: --model, --engine; `gpuwright kv --help`"),
        (["fits", "--gpus=3090"], "'--gpus': unknown option of fits; nearest: --gpu"),
        (["gpus", "3090"], "'3090': no argument of gpus; `gpuwright gpus --help` lists them"),
        (["fits", "--gpu"], "argument --gpu: expected one argument; `gpuwright fits --help`"),
        (["gpus", "\x1b[31m"], "'\\x1b[31m': no argument of gpus"),
        (["gpus", "x" * 5000], f"'{'x' * 37}...{'x' * 38}': no argument of gpus"),
    ],
)
def test_words_that_no_command_takes_exit_2_and_are_named(capsys, words, fault):
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"gpuwright: {fault}")
    assert len(said.err.splitlines()) == 1
    assert said.err.rstrip("\n").isprintable()


@pytest.mark.parametrize(
    ("words", "status", "kind"),
    [
        (["explode"], 2, "bad input"),
        (["explain"], 2, "bad input"),
        (["fits", "--gpu", "RTX 3091"], 2, "bad input"),
        (["kv", "--model", "x"], 2, "bad input"),
        (["models", "--extra-models", "/nowhere"], 2, "bad input"),
        (["gpus", "--jsn"], 2, "bad input"),
        (["connect", "a b"], 2, "bad input"),
    ],
)
def test_a_machine_reads_its_faults_as_json(capsys, words, status, kind):
    assert main([*words, "--json"]) == status
    said = capsys.readouterr()
    answer = json.loads(said.out)
    assert (answer["verdict"], answer["kind"]) == ("error", kind)
    assert said.err == "".join(f"gpuwright: {fault}\n" for fault in answer["faults"])
    assert main(words) == status
    assert capsys.readouterr().out == ""


WRITERS = ["--help", "explain --gpu 3090 --model smollm2 --json", "gpus", "kv --json"]


@pytest.mark.parametrize("words", WRITERS)
@pytest.mark.parametrize(
    ("to", "status", "said"),
    [
        ("> /dev/full", 1, "gpuwright: standard output: No space left on device\n"),
        (">&-", 1, "gpuwright: standard output: is closed\n"),
        ("| true", 141, ""),
        ("> /dev/full 2>&1", 1, ""),
    ],
)
def test_an_answer_that_nobody_can_read_is_one_sentence(words, to, status, said):
    env = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    # The reader has gone before anything is written.
    command = f"{sys.executable} -m gpuwright {words}"
    before = "sleep 0.2; " if to.startswith("|") else ""
    script = f'({before}{command}; echo "status $?" >&2) {to}'
    script = script if to.startswith("|") else f'{command} {to}; echo "status $?" >&2'
    found = subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, check=False, env=env
    )
    assert found.stderr.endswith(f"status {status}\n")
    assert found.stderr.removesuffix(f"status {status}\n") == said


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


def test_an_address_with_colons_stands_in_brackets(capsys):
    assert main(["explain", "--host", CPU, "--pin", "bind=::1", "--model", "smollm2"]) == 0
    shown = capsys.readouterr().out
    assert "serves     SmolLM2-135M-Instruct at [::1]:8080\n" in shown
    assert "  --host ::1\n" in shown
