"""Whatever a user hands over: an answer, or sentences that say what is wrong; never a traceback."""

import contextlib
import copy
import io
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuwright.cli import main
from gpuwright.load import FILES, MATRIX
from gpuwright.sketch_values import KEYS as SKETCH_KEYS
from gpuwright.strict import read_row, read_yaml, read_yaml_text
from gpuwright.want import KEYS
from tools.golden import HOSTS, document

CPU = str(HOSTS / "cpu-debian12" / "document.json")
FEW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])

NUMBERS = st.integers(-2, 70) | st.integers() | st.floats()
WORDS = st.sampled_from(
    (
        *("", "none", "auto", "off", "RTX 3090", "3090", "RTX 309", "570", "8.6", "debian-12"),
        *("pcie", "nvlink", "wsl2", "llama.cpp", "q8_0", "/", "/tmp", "../x", "http://", "mtp:3"),
        *("\x00", "\ud800", "\u00e9\n"),
    )
)
SCALARS = st.none() | st.booleans() | NUMBERS | WORDS | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(WORDS | st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
CARD_KEYS = ("name", "compute_capability", "memory_gib", "else")
CARDS = st.lists(
    WORDS | st.fixed_dictionaries({}, optional=dict.fromkeys(CARD_KEYS, VALUES)), max_size=3
)


def answer(*words):
    """Exit status and fault lines of a command, which never raises."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(list(words))
    lines = err.getvalue().splitlines()
    if status == 2:
        assert lines
        assert all(line.startswith("gpuwright: ") and line.isprintable() for line in lines)
        if "--json" in words:
            assert json.loads(out.getvalue())["verdict"] == "error"
        else:
            assert not out.getvalue()
    else:
        assert status in (0, 3)
        assert out.getvalue()
    return status, lines


@contextlib.contextmanager
def written(content):
    """A file with bytes, text, or data as YAML; JSON where that has no way to say it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file.yaml"
        if not isinstance(content, bytes | str):
            content = json.dumps(content)
        if isinstance(content, str):
            content = content.encode("utf-8", "surrogatepass")
        path.write_bytes(content)
        yield path


SYNTAX = st.text("{}[]:,-&*!|>'\"?#%@`\n\t 01.ex~<=", max_size=40)
TEXTS = st.binary(max_size=40) | st.text(max_size=40) | SYNTAX
TRAPS = [
    "2026-13-45",
    '!!int ""',
    "!!bool x",
    "!!timestamp x",
    "!!float x",
    "? [1]\n: 2",
    "&a [*a]",
    "gpus: &a [*a]",
    "gpus: " + "9" * 5000,
    "[" * 5000,
    '{"gpus": ' + "[" * 5000,
    '{"gpus": ["\\ud800"], "\\ud800": 1}',
    "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
    + "".join(
        f"{new}: &{new} [{','.join([f'*{old}'] * 10)}]\n"
        for old, new in zip("abcdefgh", "bcdefghi", strict=True)
    )
    + "gpus: *i\n",
]


@pytest.mark.parametrize("option", ["--host", "--want"])
@pytest.mark.parametrize("text", TRAPS, ids=range(len(TRAPS)))
def test_a_file_that_is_a_trap_is_bad_input(option, text):
    with written(text) as path:
        others = ["--host", CPU] if option == "--want" else []
        assert answer("explain", option, str(path), *others)[0] == 2


@given(TEXTS)
@FEW
def test_any_file_as_a_host(content):
    with written(content) as path:
        assert answer("explain", "--model", "smollm2", "--host", str(path))[0] == 2


@given(TEXTS)
@FEW
def test_any_file_as_a_want(content):
    with written(content) as path:
        answer("explain", "--host", CPU, "--want", str(path))


@given(st.dictionaries(st.sampled_from(list(SKETCH_KEYS)) | WORDS, VALUES, max_size=6), CARDS)
@FEW
def test_any_sketch(said, cards):
    for data in (said, said | {"gpus": cards}):
        with written(data) as path:
            answer("explain", "--model", "smollm2", "--host", str(path))


@given(st.dictionaries(st.sampled_from(KEYS) | WORDS, VALUES, max_size=4))
@FEW
def test_any_want(data):
    with written({"model": "smollm2"} | data) as path:
        answer("explain", "--host", CPU, "--want", str(path))


@given(st.lists(st.tuples(st.sampled_from(KEYS) | WORDS, WORDS | SYNTAX | st.text(max_size=8))))
@FEW
def test_any_pins(pins):
    words = [f"--pin={key}={value}" for key, value in pins]
    answer("explain", "--host", CPU, "--model=smollm2", *words)


@given(st.sampled_from([key for key in SKETCH_KEYS if key != "gpus"]), WORDS | SYNTAX)
@FEW
def test_any_option_of_a_sketch(key, value):
    answer("explain", "--model=smollm2", "--gpu=3090", f"--{key.replace('_', '-')}={value}")


def places(data, path=()):
    """Paths of everything in `data`."""
    yield path
    if isinstance(data, dict | list):
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield from places(value, (*path, key))


def put(data, path, value):
    data = copy.deepcopy(data)
    at = data
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return data


RIGS = ["2x3090-pcie", "cpu-debian12"]
NODES = [(rig, path) for rig in RIGS for path in places(document(rig)) if path]


@given(st.sampled_from(NODES), VALUES)
@FEW
def test_a_node_document_with_one_wrong_value(place, value):
    rig, path = place
    with written(put(document(rig), path, value)) as file:
        answer("explain", "--model", "smollm2", "--host", str(file))


@given(st.sampled_from(RIGS), st.data())
@FEW
def test_a_node_document_with_several_wrong_values(rig, data):
    found = document(rig)
    for _ in range(data.draw(st.integers(2, 5))):
        path = data.draw(st.sampled_from([path for path in places(found) if path]))
        found = put(found, path, data.draw(VALUES))
    with written(found) as file:
        answer("explain", "--model", "smollm2", "--host", str(file))


def rows_of(name):
    """The rows of one kind, without what unknown anchors share."""
    files = [MATRIX / f"{name}.yaml", *sorted((MATRIX / name).glob("*.yaml"))]
    faults = []
    rows = [row for file in files if file.exists() for row in read_yaml(file, name, faults)]
    assert not faults
    return copy.deepcopy(rows)


MODEL = next(row for row in rows_of("models") if row["id"] == "qwen3.6-27b")


def renamed(row):
    """`row` under names that the catalogue does not have."""
    row = copy.deepcopy(row)
    row["id"], row["name"], row["aliases"] = "mine", "Mine", []
    for checkpoint in row["checkpoints"]:
        checkpoint["id"], checkpoint["aliases"] = f"mine-{checkpoint['id']}", []
    return row


OURS = renamed(MODEL)


@given(st.sampled_from([path for path in places(OURS) if path]), VALUES)
@settings(FEW, max_examples=150)
def test_an_operator_s_model_with_one_wrong_value(path, value):
    with written([put(OURS, path, value)]) as file:
        status, lines = answer(
            *("explain", "--host", str(HOSTS / "2x3090-pcie" / "document.json")),
            *("--model", "mine", f"--pin=extra_models={file}"),
        )
    if status == 2:
        assert all(str(file) in line or "'mine' is unknown" in line for line in lines)


def test_an_operator_s_model_without_a_fault_is_planned():
    with written([OURS]) as file:
        words = ("--model", "mine", f"--pin=extra_models={file}")
        host = str(HOSTS / "2x3090-pcie" / "document.json")
        assert answer("explain", "--host", host, *words)[0] == 0


KV_OPTIONS = (
    *("--model", "--checkpoint", "--engine", "--release", "--tensor-parallel-size"),
    *("--kv-cache-dtype", "--max-model-len", "--max-num-seqs", "--max-num-batched-tokens"),
    *("--speculative-tokens", "--prefix-caching", "--state-dtype", "--block-multiple"),
    *("--available-gib", "--gpu", "--gpu-memory-utilization", "--mem-fraction-static"),
)
KV_WORDS = st.sampled_from(
    (
        *("qwen3.6-27b", "gpt-oss-20b", "gemma-4-12b", "deepseek-v4-flash", "qwen3.6-27b-awq"),
        *("vllm", "sglang", "llama.cpp", "tensorrt-llm", "0.33.0", "fp8", "nvfp4", "q8_0"),
        *("turboquant_4bit_nc", "1", "2", "3", "1e400", "inf", "-1", "0.9", "\u0663", "4096"),
        *("on", "float32", "1_0", "9" * 5000, "0x10", "\x1b[2J"),
    )
)


@given(st.dictionaries(st.sampled_from(KV_OPTIONS), KV_WORDS | WORDS | st.text(max_size=8)))
@FEW
def test_any_question_about_a_cache(options):
    said = {"--model": "qwen3.6-27b", "--engine": "vllm", "--available-gib": "9"} | options
    answer("kv", *(f"{key}={value}" for key, value in said.items()))


@given(st.dictionaries(st.sampled_from(KEYS) | WORDS, VALUES, max_size=3))
@settings(FEW, max_examples=8)
def test_any_want_of_every_model(data):
    pins = [f"--pin={key}={json.dumps(value)}" for key, value in data.items()]
    answer("fits", "--host", CPU, *pins)


@given(
    st.lists(
        st.dictionaries(st.sampled_from(KEYS) | WORDS, VALUES, max_size=3)
        | st.fixed_dictionaries({"service": WORDS, "port": NUMBERS})
        | VALUES,
        max_size=3,
    )
    | VALUES,
    st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=2),
)
@FEW
def test_any_services(services, common):
    with written({"model": "smollm2"} | common | {"services": services}) as path:
        answer("explain", "--host", CPU, "--want", str(path))


@given(TEXTS)
@settings(FEW, max_examples=15)
def test_any_file_of_models(content):
    with written(content) as path:
        answer("models", "--extra-models", str(path))


@given(st.lists(SYNTAX | WORDS | st.sampled_from(("kv", "fits", "--json", "--gpu", "--host"))))
@FEW
def test_any_words(words):
    with contextlib.suppress(SystemExit):
        answer(*words)


@pytest.mark.parametrize("text", TRAPS, ids=range(len(TRAPS)))
def test_a_file_of_models_that_is_a_trap_is_bad_input(text):
    with written(text) as path:
        status, lines = answer("models", "--extra-models", str(path))
        assert status == 2
        assert all(line.startswith(f"gpuwright: extra_models: {path}") for line in lines)
        assert all(line.isprintable() and len(line) < 2500 for line in lines)


KINDS = {name: rows_of(name) for name in FILES}


@given(st.data())
@settings(FEW, max_examples=200)
def test_a_row_with_one_wrong_value_is_a_row_or_faults(data):
    name = data.draw(st.sampled_from(sorted(KINDS)))
    row = data.draw(st.sampled_from(KINDS[name]))
    path = data.draw(st.sampled_from([path for path in places(row) if path]))
    faults = []
    found = read_row(FILES[name], put(row, path, data.draw(VALUES)), "row", faults)
    assert (found is None) <= bool(faults)
    assert all(fault.startswith("row") for fault in faults)


@given(SYNTAX)
def test_any_text_is_data_or_faults(text):
    faults = []
    assert (read_yaml_text(text, "file", faults) is None) or True
    assert all(fault.startswith("file") for fault in faults)
