"""Environments of Python engines: what identifies one, its Python, what is asked of uv."""

import ast
import dataclasses
import json
from pathlib import Path

import pytest

from gpuwright import environments, rehearsals
from gpuwright.environments import content_key, environment_of, environment_spec, requirements
from gpuwright.expectation import expectation, gate_spec
from gpuwright.host import Host
from gpuwright.interpreters import Interpreter, interpreter
from gpuwright.load import load_matrix
from gpuwright.onnode.proving import versions_differ
from gpuwright.onnode.uv import named_line, reasons
from gpuwright.plan import Plan
from gpuwright.refusals import MatrixError, Refusal
from gpuwright.rehearsals import rehearsal_spec, settled_values
from gpuwright.selection import decide
from gpuwright.want import Want
from tests.lab import tiny_model
from tests.unit.plans import PLAN
from tools import golden

MATRIX = load_matrix()
RELEASE = MATRIX.engine_release("vllm", "0.32.0")
TAG = RELEASE.build_tag("cpu")
LOCK = MATRIX.lock("vllm", "0.32.0", "cpu", "x86_64")
TEMPLATES = golden.TESTS.parent / "templates"


@pytest.fixture(scope="module")
def want(tmp_path_factory):
    rows = tiny_model.write_row(tmp_path_factory.mktemp("rows") / "models.yaml", "0" * 40)
    return {
        "model": tiny_model.MODEL,
        "engine": "vllm",
        "extra_models": str(rows),
        "python_index": "https://index.example/simple",
    }


def node(change=None) -> Host:
    document = golden.document("cpu-debian12")
    if change is not None:
        change(document)
    return Host.from_document(document)


def decided(want, host=None, **more):
    asked = Want.from_data(want | more)
    return decide(host or node(), asked, load_matrix(asked.extra_models))


def has_pythons(*rows):
    def change(document):
        document["python"] = {"version": "3.13.5", "executable": "/usr/bin/python3"}
        document["pythons"] = [
            {"executable": path, "version": version, "headers": headers}
            for path, version, headers in rows
        ]

    return change


def test_who_pins_vllm_without_cards_gets_its_cpu_build(want):
    plan = decided(want)
    assert isinstance(plan, Plan)
    assert (plan.engine, plan.build_tag, plan.attention_backend) == ("vllm", "cpu", "cpu_attn")
    assert plan.not_applicable is None
    assert plan.parameters["kv_cache_memory_bytes"] == plan.figures["kv_cache_bytes"]


def test_nobody_else_gets_it(want):
    assert isinstance(decided(want | {"engine": None}), Refusal)
    assert decided({"model": "auto"}).engine == "llama.cpp"


def test_the_pool_holds_every_request_with_its_whole_context(want):
    plan = decided(want, max_num_seqs=3, max_model_len=1000)
    assert (plan.max_num_seqs, plan.max_model_len) == (3, 1000)
    assert plan.figures["max_concurrency"] >= 3


def test_the_pool_and_the_plan_hold_a_drafter_too(want):
    alone, drafting = decided(want), decided(want, speculative="draft-model")
    assert drafting.speculation.drafter == tiny_model.DRAFTER
    # Its layers are as many and as wide as the model's.
    cache = "kv_cache_memory_bytes"
    assert drafting.parameters[cache] == 2 * alone.parameters[cache]
    weights = drafting.memory.bytes_of("drafter")
    assert weights == drafting.memory.bytes_of("weights") > 0


def test_a_drafter_whose_layers_nobody_read_is_not_planned_on_the_cpu(want, tmp_path):
    row = tiny_model.row("0" * 40)
    drafts = {"groups": None, "unknown": {"groups": "nobody read them"}}
    row["checkpoints"][1]["drafts"] |= drafts
    path = tmp_path / "unread.yaml"
    path.write_text(json.dumps([row]))
    refusal = decided(want | {"extra_models": str(path), "speculative": "draft-model"})
    assert "cache of the drafter: needs layers that were read, found unknown" in refusal.sentence()


def test_a_context_that_ram_does_not_hold_is_refused_with_the_largest(want):
    def little(document):
        document["memory"]["total_bytes"] = 3 << 30

    refusal = decided(want, node(little))
    assert isinstance(refusal, Refusal)
    assert "RAM" in refusal.reasons[0]


def test_weights_that_its_kernels_do_not_know_are_refused(want, tmp_path):
    row = tiny_model.row("0" * 40)
    row["checkpoints"][0]["quantization"] = "fp8"
    path = tmp_path / "fp8.yaml"
    path.write_text(json.dumps([row]))
    refusal = decided(want | {"extra_models": str(path)})
    assert "fp8 weights under vllm: needs a card, found cpu" in refusal.sentence()


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([("/usr/bin/python3.13", "3.13.5", True), ("/usr/bin/python3.11", "3.11.2", False)],
         "/usr/bin/python3.11"),
        ([("/opt/python/bin/python3.11", "3.11.9", True)], "/opt/python/bin/python3.11"),
        ([("/root/.local/share/uv/python/x/bin/python3.11", "3.11.9", True)], None),
        ([("/usr/bin/python3.13", "3.13.5", True)], None),
    ],
)  # fmt: skip
def test_a_python_of_the_nodes_own_comes_before_one_that_is_brought(rows, found):
    chosen = interpreter(node(has_pythons(*rows)), RELEASE, TAG, MATRIX)
    assert chosen.minor == "3.11"
    assert chosen.executable == found
    assert (chosen.row is None) == (found is not None)


def test_what_no_row_brings_is_refused_with_what_is_there(want):
    def foreign(document):
        has_pythons(("/usr/bin/python3.13", "3.13.5", True))(document)

    bare = dataclasses.replace(MATRIX, pythons=())
    assert interpreter(node(foreign), RELEASE, TAG, bare) is None


def test_only_lines_for_this_python_travel():
    cuda = MATRIX.lock("vllm", "0.33.0", "cu130", "x86_64")
    both = [requirements(cuda, minor, "x86_64") for minor in ("3.11", "3.13")]
    names = [[line.partition("==")[0] for line in each] for each in both]
    assert all(len(each) == len(set(each)) for each in names)
    assert all(hashes for each in both for hashes in each.values())
    assert len(requirements(LOCK, "3.11", "x86_64")) == LOCK.packages


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: None, "No such file or directory"),
        (lambda text: b"\xff" + text, "is not text"),
        (lambda text: text.replace(b"sha256:0", b"sha256:1", 1), "is not that of its row"),
        (lambda text: text[: text.rindex(b"\n", 0, -1)], "is not that of its row"),
    ],
    ids=["gone", "junk", "another-hash", "a-line-less"],
)
def test_a_lock_that_is_not_its_rows_is_a_fault_of_the_matrix(change, said, tmp_path, monkeypatch):
    text = change((environments.LOCKS / LOCK.filename).read_bytes())
    if text is not None:
        (tmp_path / LOCK.filename).write_bytes(text)
    monkeypatch.setattr(environments, "LOCKS", tmp_path)
    with pytest.raises(MatrixError, match=said):
        # Not what another test has read already.
        requirements.__wrapped__(LOCK, "3.11", "x86_64")


def test_a_key_names_lock_python_and_platform_and_no_patch_of_the_systems_python():
    own = Interpreter(minor="3.11", executable="/usr/bin/python3.11")
    brought = Interpreter(minor="3.11", row=MATRIX.pythons[0])
    keys = {
        content_key("a", own, "debian-12-x86_64"),
        content_key("b", own, "debian-12-x86_64"),
        content_key("a", own, "debian-13-x86_64"),
        content_key("a", brought, "debian-12-x86_64"),
    }
    assert len(keys) == 4


def test_a_brought_python_comes_from_the_mirror_by_the_rows_hash(want):
    host = node(has_pythons(("/usr/bin/python3.13", "3.13.5", True)))
    asked = Want.from_data(want | {"python_mirror": "https://mirror.example/python/"})
    matrix = load_matrix(asked.extra_models)
    plan = decide(host, asked, matrix)
    distro = matrix.distro(host)
    made = environment_of(
        want=asked, plan=plan, release=RELEASE, distro=distro, node=host, matrix=matrix
    )
    spec = environment_spec(made, asked, "/opt/e", verify="quick")
    (listed,) = json.loads(spec["python"]["listing"]).values()
    row = next(row for row in MATRIX.pythons if row.id == "cpython-3.11.18-x86_64")
    assert listed["url"].startswith("https://mirror.example/python/20")
    assert listed["sha256"] == row.sha256
    assert spec["python"]["version"] == row.python
    here = Want.from_data(want | {"python_mirror": "/srv/my pythons"})
    spec = environment_spec(made, here, "/opt/e", verify="quick")
    (listed,) = json.loads(spec["python"]["listing"]).values()
    assert listed["url"].startswith("file:///srv/my%20pythons/20")


def test_the_engine_is_asked_with_the_units_own_arguments(want):
    asked = Want.from_data(want)
    matrix = load_matrix(asked.extra_models)
    host = node()
    plan = decide(host, asked, matrix)
    wanted = expectation(want=asked, node=host, plan=plan, matrix=matrix, templates=TEMPLATES)
    spec = rehearsal_spec(wanted.expected, wanted.start, wanted.serve)
    making = environment_spec(wanted.making, asked, wanted.expected.engine_dir, verify="quick")
    assert f"{making['kept']}/python" == spec["env"]["PYTHONPYCACHEPREFIX"]
    assert spec["arguments"][:2] == ["--model", "/var/lib/gpuwright/models/tiny-llama-bf16"]
    assert list(wanted.start.argv[-len(spec["arguments"]) :]) == spec["arguments"]
    assert spec["expected"]["attention_backend"] == "CPU_ATTN"
    assert not any("API_KEY" in name for name in spec["env"])


def test_what_an_engine_must_settle_on_is_in_its_own_words():
    words = {"engine": "sglang", "attention_backend": "fa3", "kv_cache_dtype": "bf16"}
    plan = dataclasses.replace(PLAN, **words)
    assert settled_values(plan) == {
        "attention_backend": "fa3",
        "kv_cache_dtype": "bf16",
        "max_model_len": PLAN.max_model_len,
        "max_num_seqs": PLAN.max_num_seqs,
        "tensor_parallel_size": PLAN.tensor_parallel_size,
    }


def test_an_engine_that_renames_its_cache_is_not_held_to_the_word():
    assert "kv_cache_dtype" not in settled_values(dataclasses.replace(PLAN, engine="vllm"))


def test_what_is_asked_of_an_engine_does_not_turn_on_its_name():
    names = set(MATRIX.engines)
    read = ast.walk(ast.parse(Path(rehearsals.__file__).read_text()))
    assert not names & {each.value for each in read if isinstance(each, ast.Constant)}


SAID = """\
Using Python 3.11.2 environment at: x
error: Failed to download `anyio==4.16.0`
  cause: Request failed after 2 retries in 62.2s
  cause: error sending request for url (http://10.213.0.1:1/packages/anyio-4.16.0.whl)
hint: try later""".splitlines()


def test_what_uv_says_is_told_with_its_causes_and_the_locks_line():
    assert reasons(SAID)[:2] == [
        "Failed to download `anyio==4.16.0`",
        "Request failed after 2 retries in 62.2s",
    ]
    refused = "hint: An index (http://x/simple) returned a 403 Forbidden error. Check it."
    assert (
        reasons([*SAID, refused])[0] == "An index (http://x/simple) returned a 403 Forbidden error"
    )
    lines = ["any==4.16.0", "anyio==4.16.0", "typing-extensions==4.1"]
    assert named_line("\n".join(SAID), lines) == "anyio==4.16.0"
    assert named_line("Because typing-extensions was not found in the package registry, x", lines)
    assert named_line("nothing", lines) is None


def test_a_version_that_is_not_the_locks_is_named():
    assert versions_differ({"a": "1", "b": "2"}, {"a": "1", "b": "3", "c": "1"}) == [
        "b: 2 locked, 3 installed",
        "c: nothing locked, 1 installed",
    ]


def without_nvcc(rig) -> Host:
    """A node where only C and C++ are compiled."""
    document = golden.document(rig)
    document["compilers"] = [{"kind": "gcc", "executable": "/usr/bin/gcc", "version": "12.2.0"}]
    return Host.from_document(document)


def on_cards(rig, release, **more):
    asked = {"model": "llama-3.1-8b", "engine": "vllm", "release": release} | more
    return decide(without_nvcc(rig), Want.from_data(asked), MATRIX)


def test_plans_count_with_the_compiler_that_an_environment_brings():
    brings = on_cards("1x3090", "0.33.0", kv_cache_dtype="fp8")
    assert (brings.attention_backend, brings.kv_cache_dtype) == ("flashinfer", "fp8_e4m3")
    lacks = on_cards("1x3090", "0.19.1", kv_cache_dtype="fp8")
    assert isinstance(lacks, Refusal)
    assert on_cards("b200", "0.33.0").attention_backend == "flashinfer"
    assert "flashinfer_sampler" not in brings.parameters
    assert on_cards("1x3090", "0.19.1").parameters["flashinfer_sampler"] is False


def test_a_build_without_a_lock_for_the_nodes_processor_is_planned_and_not_applied():
    plan = decide(
        Host.from_document(golden.document("gb10")),
        Want.from_data({"model": "llama-3.1-8b", "engine": "vllm"}),
        dataclasses.replace(
            MATRIX, locks=tuple(row for row in MATRIX.locks if row.architecture != "aarch64")
        ),
    )
    assert plan.not_applicable.startswith("vllm-0.33.0 (cu130) has no lock for aarch64: ")


def wanted_on_cards(host, tmp_path):
    """What must stand on a node with a card for the tiny model."""
    rows = tiny_model.write_row(tmp_path / "models.yaml", "0" * 40)
    asked = Want.from_data(
        {"model": tiny_model.MODEL, "engine": "vllm", "extra_models": str(rows)}
        | {"python_index": "https://index.example/simple"}
    )
    matrix = load_matrix(asked.extra_models)
    plan = decide(host, asked, matrix)
    assert isinstance(plan, Plan), plan.sentence()
    assert plan.not_applicable is None
    wanted = expectation(want=asked, node=host, plan=plan, matrix=matrix, templates=TEMPLATES)
    return wanted, environment_spec(
        wanted.making, asked, wanted.expected.engine_dir, verify="quick"
    )


def test_a_service_finds_the_compiler_of_its_environment(tmp_path):
    host = without_nvcc("1x3090")
    wanted, spec = wanted_on_cards(host, tmp_path)
    directory = wanted.expected.engine_dir
    environment = wanted.start.environment
    assert environment["CUDA_HOME"] == f"{directory}/cuda"
    assert environment["PATH"].split(":")[:2] == [f"{directory}/cuda/bin", f"{directory}/bin"]
    assert f'Environment="CUDA_HOME={directory}/cuda"' in wanted.expected.unit
    minor = wanted.making.python.minor
    packages = f"lib/python{minor}/site-packages/nvidia/cu13"
    assert spec["toolkit"]["links"]["cuda/bin"] == f"{packages}/bin"
    assert list(spec["toolkit"]["driver"]) == ["cuda/lib64/libcuda.so"]
    assert "g++" in wanted.expected.runtime_packages


@pytest.mark.parametrize(
    ("threads", "gib", "jobs"), [(64, 31.2, 8), (64, 251, 64), (4, 62, 4), (12, 62, 8), (2, 1, 1)]
)
def test_no_more_compilers_run_at_once_than_memory_holds(threads, gib, jobs, tmp_path):
    host = dataclasses.replace(
        without_nvcc("1x3090"), cpu_threads=threads, memory_total_bytes=int(gib * 2**30)
    )
    wanted, _ = wanted_on_cards(host, tmp_path)
    assert wanted.start.environment["MAX_JOBS"] == str(jobs)
    # The fewer, the longer they may keep the first start; one that compiles nothing has not more.
    gate = gate_spec(wanted)
    assert (gate["deadline_seconds"], gate["compiler_seconds"]) == (120 + 480, 2400 // jobs)


def test_a_key_names_the_links_of_a_toolkit():
    row = MATRIX.engine_release("vllm", "0.33.0").environment.toolkit
    other = dataclasses.replace(row, links={**row.links, "lib64/libnvrtc.so": "lib/libnvrtc.so.14"})
    own = Interpreter(minor="3.11", executable="/usr/bin/python3.11")
    keys = {content_key("a", own, "debian-12-x86_64", kit) for kit in (None, row, other)}
    assert len(keys) == 3


def test_a_python_without_headers_that_no_package_brings_is_passed_over():
    release = MATRIX.engine_release("vllm", "0.33.0")
    tag = release.build_tags[0]

    def chosen(*rows):
        document = golden.document("cpu-debian12")
        has_pythons(*rows)(document)
        return interpreter(Host.from_document(document), release, tag, MATRIX)

    assert chosen(("/usr/bin/python3.12", "3.12.3", False)).row is not None
    assert chosen(("/usr/bin/python3.12", "3.12.3", True)).executable == "/usr/bin/python3.12"
    # python3-dev brings those of the distribution's own.
    assert chosen(("/usr/bin/python3.11", "3.11.2", False)).executable == "/usr/bin/python3.11"
