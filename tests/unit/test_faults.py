"""Bad input is told whole: values and names in one report, each with what is near or legal."""

import pytest

from gpuwright.cli import main


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        (
            ["explain", "--gpu", "3090", "--pin", "engine=vlm", "--pin", "port=80"],
            ["port", "engine"],
        ),
        (
            ["fits", "--gpu", "30900", "--pin", "kv_cache_dtype=q8", "--pin", "max_model_len=32k"],
            ["max_model_len", "kv_cache_dtype", "gpus[0]"],
        ),
        (
            [
                "explain",
                "--gpu",
                "3090",
                "--pin",
                "port",
                "--pin",
                "checkpoint=x",
                "--pin",
                "prot=1",
            ],
            ["--pin port", "prot", "checkpoint"],
        ),
        (
            ["kv", "--model", "nope", "--engine", "vlm", "--gpu", "30900", "--max-num-seqs", "0"],
            ["--max-num-seqs", "--model", "--engine", "--gpu"],
        ),
        (
            [
                "kv",
                "--model",
                "qwen3-0.6b",
                "--engine",
                "vllm",
                "--checkpoint",
                "nope",
                "--kv-cache-dtype",
                "q9",
            ],
            ["the cache's size", "--kv-cache-dtype", "--checkpoint"],
        ),
    ],
)
def test_values_and_names_that_are_wrong_are_told_at_once(capsys, words, keys):
    assert main(words) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.removeprefix("gpuwright: ").split(": ")[0] for line in lines] == keys


def test_services_tell_their_unknown_names_with_their_place(tmp_path, capsys):
    path = tmp_path / "want.yaml"
    path.write_text("services: [{engine: vlm}, {service: two, port: 80, model: nope}]")
    assert main(["explain", "--gpu", "3090", "--want", str(path)]) == 2
    said = [line.split(": ")[1:4] for line in capsys.readouterr().err.splitlines()]
    assert said == [
        [str(path), "services[1]", "port"],
        [str(path), "services[0]", "engine"],
        [str(path), "services[1]", "model"],
    ]


@pytest.mark.parametrize("said", ["mtp3", "MTP-3", "mtp_3"])
def test_a_way_of_drafting_with_its_tokens_is_told_how_to_be_written(capsys, said):
    assert main(["explain", "--gpu", "3090", "--pin", f"speculative={said}"]) == 2
    assert capsys.readouterr().err.strip().endswith("nearest: mtp:3")


def test_of_many_names_a_few_are_shown_with_the_command_that_lists_them(capsys):
    assert main(["explain", "--gpu", "3090", "--pin", "checkpoint=zzzzz"]) == 2
    said = capsys.readouterr().err
    assert "more, which `gpuwright models` lists" in said
    assert said.count("deepseek") < 5
