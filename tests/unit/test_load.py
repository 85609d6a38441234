"""The strict door to the matrix: what it refuses, and that it says where."""

import shutil

import pytest
import yaml

from gpuwright import strict
from gpuwright.load import MATRIX, load_matrix
from gpuwright.refusals import MatrixError, WantError


@pytest.fixture
def copy(tmp_path):
    shutil.copytree(MATRIX, tmp_path / "matrix")
    return tmp_path / "matrix"


def edit(directory, name, change):
    path = directory / name
    rows = yaml.safe_load(path.read_text())
    change(rows)
    path.write_text(yaml.safe_dump(rows, sort_keys=False))


def faults(directory):
    with pytest.raises(MatrixError) as caught:
        load_matrix(directory=directory)
    return caught.value.faults


def test_our_own_matrix_loads():
    matrix = load_matrix()
    assert set(matrix.engines) == {path.stem for path in (MATRIX / "engines").glob("*.yaml")}
    assert matrix.engine_release("llama.cpp", "b11434").build.source_subdir.endswith("llama.cpp")


def test_llama_cpp_its_fork_on_the_cpu_sglang_and_vllm_are_installed():
    applicable = [
        (row.engine, row.release, tag.tag)
        for row in load_matrix().releases
        for tag in row.build_tags
        if tag.applicable
    ]
    tags = ("cpu", "cuda13", "cuda12", "cuda12.4", "cuda12.0", "cuda11.8")
    llama = [("llama.cpp", "b11434", tag) for tag in tags]
    vllm = [("0.33.0", "cu130"), ("0.32.0", "cpu"), ("0.19.1", "cu128")]
    sglangs = [("sglang", "0.5.23", "cu130"), ("sglang", "0.5.10.post1", "cu128")]
    vllms = [("vllm", release, tag) for release, tag in vllm]
    assert applicable == [("ik_llama.cpp", "0.1.5", "cpu"), *llama, *sglangs, *vllms]


def test_the_archive_to_build_from_has_a_hash():
    build = load_matrix().engine_release("llama.cpp", "b11434").build
    assert build.archive.kind == "python_package"
    assert build.archive_sha256 == build.archive.sha256
    unpinned = [source for source in build.sources if source.sha256 is None]
    assert unpinned
    assert all(source.unpinned for source in unpinned)


def test_rows_are_parsed_by_the_parser_in_c():
    # The other one takes ten times as long; `benchmarks/decide.py` measures.
    assert issubclass(strict._Loader, yaml.CSafeLoader)


def test_refuses_an_unknown_key_and_names_the_nearest(copy):
    edit(copy, "gpus/geforce.yaml", lambda rows: rows[1].update(pci_idz=["10de:2684"]))
    assert faults(copy) == ("gpus/geforce.yaml[1].pci_idz: unknown key; nearest: pci_ids",)


def test_rows_of_one_kind_stand_in_a_file_or_in_a_directory_of_files_or_in_both(copy):
    (copy / "cuda").mkdir()
    (copy / "cuda.yaml").rename(copy / "cuda" / "one.yaml")
    (copy / "gpus.yaml").write_text("- {}\n")
    assert {fault.split(".id:")[0] for fault in faults(copy)} >= {"gpus.yaml[0]"}
    (copy / "gpus.yaml").unlink()
    assert repr(load_matrix(directory=copy).cuda) == repr(load_matrix().cuda)


def test_refuses_a_missing_key(copy):
    edit(copy, "gpus/geforce.yaml", lambda rows: rows[0].pop("compute_capability"))
    assert faults(copy) == ("gpus/geforce.yaml[0].compute_capability: missing",)


def test_refuses_a_key_that_stands_twice(copy):
    path = copy / "cuda.yaml"
    path.write_text(
        path.read_text().replace("  min_driver:", "  min_driver: '1'\n  min_driver:", 1)
    )
    found = faults(copy)
    assert len(found) == 1
    assert "key 'min_driver' stands twice" in found[0]


@pytest.mark.parametrize(
    ("written", "read"), [("8.6", "a number"), ("12", "a whole number"), ("on", "true or false")]
)
def test_refuses_a_version_that_is_not_quoted(copy, written, read):
    path = copy / "gpus/geforce.yaml"
    path.write_text(path.read_text().replace('capability: "7.0"', f"capability: {written}"))
    found = faults(copy)
    assert len(found) == 1
    assert found[0].startswith("gpus/geforce.yaml[7].compute_capability: ")
    assert found[0].endswith(f"must be quoted, YAML reads it as {read}")


def test_refuses_an_id_that_dangles(copy):
    def change(rows):
        rows[0]["build_tags"][1]["cuda"] = "14.0"

    edit(copy, "engines/llama.cpp.yaml", change)
    assert faults(copy) == (
        "engines/llama.cpp.yaml[0].build_tags[1].cuda: no row has the id '14.0'",
    )


def test_refuses_code_for_an_architecture_that_the_release_is_not_for(copy):
    def change(rows):
        rows[0]["build_tags"][0]["capabilities_on"] = {"riscv64": ["8.0"]}

    edit(copy, "engines/vllm.yaml", change)
    assert faults(copy) == (
        "engines/vllm.yaml[0].build_tags[0].capabilities_on: no row has the id 'riscv64'",
    )


def test_refuses_a_download_without_hash_and_without_reason(copy):
    def change(rows):
        del rows[0]["build"]["sources"][1]["unpinned"]

    edit(copy, "engines/llama.cpp.yaml", change)
    assert faults(copy) == (
        "engines/llama.cpp.yaml[0].build.sources[1].sha256: null without a reason",
        "engines/llama.cpp.yaml[0].build.sources[1].bytes: null without a reason",
    )


def test_refuses_forward_compatibility_of_a_geforce_card(copy):
    edit(copy, "gpus/geforce.yaml", lambda rows: rows[3].update(forward_compatibility=True))
    edit(copy, "cuda.yaml", lambda rows: rows[1].update(forward_compatibility=["geforce"]))
    assert [fault.split(": ")[0] for fault in faults(copy)] == [
        "gpus/geforce.yaml[3].forward_compatibility",
        "cuda.yaml[1].forward_compatibility",
    ]


def test_refuses_a_name_that_two_cards_have_however_it_is_spelled(copy):
    edit(copy, "gpus/workstation.yaml", lambda rows: rows[1].update(aliases=["GeForce 3090"]))
    assert faults(copy) == ("gpu '3090': two rows have it",)


def test_refuses_two_cards_that_nothing_tells_apart(copy):
    def change(rows):
        one, other = (row for row in rows if row["name"] == "NVIDIA GeForce RTX 4090")
        other["memory_mib"] = one["memory_mib"]

    edit(copy, "gpus/geforce.yaml", change)
    assert len(faults(copy)) == 2


def test_refuses_a_pci_id_that_cannot_be(copy):
    edit(copy, "gpus/geforce.yaml", lambda rows: rows[0].update(pci_ids=["10DE:1B80"]))
    assert "gpus/geforce.yaml[0].pci_ids: '10DE:1B80' is not" in faults(copy)[0]


def test_refuses_a_null_without_reason(copy):
    edit(copy, "gpus/geforce.yaml", lambda rows: rows[0].update(bandwidth_gb_per_s=None))
    assert faults(copy) == ("gpus/geforce.yaml[0].bandwidth_gb_per_s: null without a reason",)


def test_refuses_a_malformed_hash(copy):
    def change(rows):
        rows[0]["checkpoints"][0]["files"][0]["sha256"] = "abc"

    edit(copy, "models/smollm2.yaml", change)
    assert faults(copy) == (
        "models/smollm2.yaml[0].checkpoints[0].files[0].sha256: needs 64 hexadecimal digits",
    )


def test_refuses_a_file_that_leaves_its_directory(copy):
    def change(rows):
        rows[0]["checkpoints"][0]["files"][0]["path"] = "../../etc/passwd"

    edit(copy, "models/smollm2.yaml", change)
    assert "leaves the checkpoint's directory" in faults(copy)[0]


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("name", {"name": "--trust-remote-code"}),
        ("name", {"name": "two\nlines"}),
        ("parsers.vllm.tool", {"parsers": {"vllm": {"tool": "--x"}}}),
    ],
)
def test_refuses_a_word_of_a_model_that_an_engine_would_take_for_an_option(copy, key, change):
    edit(copy, "models/smollm2.yaml", lambda rows: rows[0].update(change))
    assert faults(copy)[0].startswith(f"models/smollm2.yaml[0].{key}: ")


def test_refuses_an_alias_that_means_two_rows(copy):
    edit(copy, "models/qwen3.yaml", lambda rows: rows[0]["aliases"].append("SMOLLM2"))
    assert faults(copy) == ("name 'smollm2': two rows have it",)


def test_refuses_a_row_without_sources(copy):
    edit(copy, "hazards/vllm.yaml", lambda rows: rows[0].update(sources=[]))
    assert faults(copy) == ("hazards/vllm.yaml[0].sources: empty",)


def test_refuses_a_source_that_covers_what_is_not_there(copy):
    def change(rows):
        rows[0]["sources"][0] = {**rows[0]["sources"][0], "covers": ["bandwidth"]}

    edit(copy, "cuda.yaml", change)
    assert faults(copy) == ("cuda.yaml[0].sources[0].covers: the row has no key 'bandwidth'",)


def test_refuses_a_range_that_does_not_parse(copy):
    edit(copy, "hazards/sglang.yaml", lambda rows: rows[1]["when"].update(capabilities="8.9"))
    assert faults(copy) == (
        "hazards/sglang.yaml[1].when.capabilities: '8.9' is not a bound such as '>=8.0'",
    )


def test_refuses_a_reason_on_what_is_applicable(copy):
    def change(rows):
        rows[0]["build_tags"][0]["not_applicable"] = "because"

    edit(copy, "engines/llama.cpp.yaml", change)
    assert faults(copy) == (
        "engines/llama.cpp.yaml[0].build_tags[0].not_applicable: stands exactly where applicable "
        "is false",
    )


def test_reports_every_fault_at_once(copy):
    edit(copy, "gpus/geforce.yaml", lambda rows: rows[0].pop("name"))
    edit(copy, "workloads.yaml", lambda rows: rows[0].update(context_tokens="many"))
    edit(copy, "engines/vllm.yaml", lambda rows: rows[0].update(memory_model="vlm"))
    found = faults(copy)
    assert len(found) == 3
    assert any(fault.startswith("engines/vllm.yaml[0].memory_model: 'vlm'") for fault in found)


def test_a_file_that_is_no_yaml_is_a_matrix_error(copy):
    (copy / "cuda.yaml").write_text("- {id: '1\n")
    assert faults(copy)[0].startswith("cuda.yaml: ")


def test_an_operators_models_come_after_ours(tmp_path):
    rows = yaml.safe_load((MATRIX / "models/smollm2.yaml").read_text())
    row = rows[0]
    row["id"], row["aliases"] = "my-model", []
    row["checkpoints"][0]["id"], row["checkpoints"][0]["aliases"] = "my-model-q4_1", []
    path = tmp_path / "models.yaml"
    path.write_text(yaml.safe_dump([row]))
    matrix = load_matrix(path)
    assert matrix.models[-1].id == "my-model"
    assert repr(load_matrix().models) == repr(matrix.models[:-1])


def test_an_operators_file_that_repeats_a_model_is_refused(tmp_path):
    path = tmp_path / "models.yaml"
    path.write_text((MATRIX / "models/smollm2.yaml").read_text())
    with pytest.raises(WantError, match="two rows have it") as caught:
        load_matrix(path)
    assert all(fault.startswith(f"extra_models: {path}: ") for fault in caught.value.faults)


def test_a_wrong_row_of_an_operators_file_is_the_operators_fault_and_names_the_file(tmp_path):
    path = tmp_path / "models.yaml"
    path.write_text("- {id: mine}\n")
    with pytest.raises(WantError) as caught:
        load_matrix(path)
    assert f"extra_models: {path}[0].checkpoints: missing" in caught.value.faults


@pytest.mark.parametrize("id_", ["../mine", "mine/1", ".partial", "my model", ""])
def test_a_checkpoint_has_an_id_that_can_name_a_directory(copy, id_):
    edit(copy, "models/smollm2.yaml", lambda rows: rows[0]["checkpoints"][0].update(id=id_))
    assert faults(copy) == (
        f"models/smollm2.yaml[0].checkpoints[0].id: {id_!r} cannot name a directory",
    )


def test_an_operators_file_that_is_missing_is_named(tmp_path):
    path = tmp_path / "none.yaml"
    with pytest.raises(WantError) as caught:
        load_matrix(path)
    assert caught.value.faults == (f"extra_models: {path}: No such file or directory",)


def test_an_operators_file_that_is_a_directory_is_named(tmp_path):
    with pytest.raises(WantError, match=r"extra_models: .*is not a regular file"):
        load_matrix(tmp_path)


def test_refuses_a_hazard_that_sets_what_no_engine_is_told(copy):
    edit(copy, "hazards/vllm.yaml", lambda rows: rows[0].update(sets={"prefix_cache": False}))
    assert faults(copy)[0].startswith("hazards/vllm.yaml[0].sets.prefix_cache: unknown; known: ")


def test_refuses_a_hazard_whose_setting_is_of_another_kind_or_stands_beside_a_warning(copy):
    edit(copy, "hazards/vllm.yaml", lambda rows: rows[0].update(sets={"eager": 1}, effect="warn"))
    assert faults(copy) == (
        "hazards/vllm.yaml[0].sets: stands beside effect avoid alone",
        "hazards/vllm.yaml[0].sets.eager: int where bool is needed",
    )


def test_refuses_hazards_that_turn_a_switch_both_ways(copy):
    edit(copy, "hazards/vllm.yaml", lambda rows: rows[0].update(sets={"prefix_caching": True}))
    assert faults(copy) == (
        "hazards/vllm.yaml[0].sets.prefix_caching: True, and another row says False",
    )


def test_refuses_a_hazard_of_a_machine_that_the_probe_never_names(copy):
    edit(
        copy,
        "hazards/machines.yaml",
        lambda rows: rows[0]["when"].update(virtualizations=["wsl2"]),
    )
    assert faults(copy) == (
        "hazards/machines.yaml[0].when.virtualizations: no row has the id 'wsl2'",
    )


@pytest.mark.parametrize(("key", "value"), [("url", "http://example.org"), ("read", "last week")])
def test_refuses_a_source_that_nobody_can_follow(copy, key, value):
    edit(copy, "cuda.yaml", lambda rows: rows[0]["sources"][0].update({key: value}))
    assert faults(copy)[0].startswith(f"cuda.yaml[0].sources[0].{key}: {value!r} ")


def test_refuses_an_engine_that_has_no_kernels_for_a_checkpoints_weights(copy):
    edit(
        copy,
        "models/smollm2.yaml",
        lambda rows: rows[0]["checkpoints"][0].update(engines={"vllm": ""}),
    )
    assert faults(copy) == (
        "models/smollm2.yaml[0].checkpoints[0].engines.vllm: q4_1 has no such engine",
    )


def test_refuses_a_measured_cache_of_an_engine_or_type_that_is_not_there(copy):
    def change(rows):
        rows[0]["architecture"]["measured_caches"][0].update(engine="vlm", kv_cache_dtypes=["fp3"])

    edit(copy, "models/deepseek-v4.yaml", change)
    path = "models/deepseek-v4.yaml[0].architecture.measured_caches[0]"
    assert faults(copy) == (
        f"{path}.engine: no row has the id 'vlm'",
        f"{path}.kv_cache_dtypes: no row has the id 'fp3'",
    )


def test_refuses_a_workload_that_drafts_with_what_does_not_draft(copy):
    edit(copy, "workloads.yaml", lambda rows: rows[0].update(speculation=["prefix-caching"]))
    assert faults(copy) == ("workloads.yaml[0].speculation: no row has the id 'prefix-caching'",)


def test_a_locks_row_agrees_with_its_releases(copy):
    lock = load_matrix().lock("vllm", "0.33.0", "cu130", "x86_64")
    twice = lock.python[0]
    change = {"glibc": "2.36", "not_for": {**lock.not_for, twice: "was not had"}}
    edit(copy, f"locks/{lock.id}.yaml", lambda rows: rows[0].update(change))
    assert faults(copy) == (
        f"locks/{lock.id}.yaml[0].glibc: 2.36, and the release's row says {lock.glibc}",
        f"locks/{lock.id}.yaml[0].python: {twice} needs to stand in one of python, not_for",
    )


def test_a_lock_of_a_build_that_its_release_does_not_have_is_refused(copy):
    row = {"id": "vllm-0.19.1-cu130-x86_64", "build_tag": "cu130"}
    edit(copy, "locks/vllm-0.19.1-cu128-x86_64.yaml", lambda rows: rows[0].update(row))
    # Nor is there a lock of the build that it was for.
    first, second = faults(copy)
    assert first.endswith("build tag cu128 says it is applicable")
    assert second.endswith(".build_tag: no row has the id 'cu130'")


def test_links_of_a_toolkit_stay_in_the_environment(copy):
    def change(rows):
        kit = rows[0]["environment"]["toolkit"]
        kit["links"] = {"../bin": "bin", "lib64/../x": "/etc"}

    edit(copy, "engines/vllm.yaml", change)
    path = "engines/vllm.yaml[0].environment.toolkit"
    found = faults(copy)
    assert f"{path}.links: bin is missing" in found
    for name in ("../bin", "lib64/../x", "/etc"):
        assert f"{path}: {name!r} is no path below another" in found


def test_a_toolkit_of_wheels_is_of_a_cuda_that_has_a_row(copy):
    def change(rows):
        rows[0]["environment"]["toolkit"]["cuda"] = "14.0"

    edit(copy, "engines/vllm.yaml", change)
    (fault,) = faults(copy)
    assert fault == "engines/vllm.yaml[0].environment.toolkit.cuda: no row has the id '14.0'"
