"""Models and their checkpoints: published figures as intervals, shapes, and who is in the list."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpuwright.architecture import Architecture, LayerGroup, LayerKind
from gpuwright.catalogue import resolve
from gpuwright.load import MATRIX, load_matrix
from gpuwright.memory.layers import kv_bytes_per_token, linear_state_bytes
from gpuwright.model_rows import Confidence, ModelRow, Role
from gpuwright.refusals import WantError
from gpuwright.sizes import size_interval, size_words

MODELS = load_matrix().models
ROWS = [row for model in MODELS for row in model.checkpoints]
NAMED = (Path(__file__).parent / "checkpoints.txt").read_text().splitlines()


def model(name: str) -> ModelRow:
    return resolve("model", MODELS, name)


# Sizes


@pytest.mark.parametrize(
    ("printed", "least", "most"),
    [
        ("29.0 GB", 28_950_000_000, 29_050_000_000),
        ("29 GB", 28_500_000_000, 29_500_000_000),
        ("0.93 GB", 925_000_000, 935_000_000),
        ("16.393 GiB", 17_601_312_849, 17_602_386_592),
        ("17.5 GB or GiB", 17_450_000_000, 18_844_169_012),
        ("28-30 GB", 27_500_000_000, 30_500_000_000),
        ("55563006776 B", 55_563_006_776, 55_563_006_776),
        ("805 MiB", 843_579_392, 844_627_968),
    ],
)
def test_a_printed_size_is_open_by_half_its_last_digit(printed: str, least: int, most: int) -> None:
    assert size_interval(printed) == (least, most)


@pytest.mark.parametrize(
    "text",
    ["29.0", "29.0 gb", "GB", "-1 GB", "0 B", "0.0 GB", "30-28 GB", "29.0  GB", "1e3 GB", ""],
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="size"):
        size_interval(text)


@given(
    st.decimals(min_value=1, max_value=9999, places=3),
    st.integers(0, 3),
    st.sampled_from(["GB", "GiB"]),
)
def test_an_interval_holds_every_size_that_prints_so(value: Any, digits: int, unit: str) -> None:
    scale = {"GB": 10**9, "GiB": 2**30}[unit]
    least, most = size_interval(f"{value:.{digits}f} {unit}")
    assert least <= int(value * scale) <= most
    wider = size_interval(f"{value:.{digits}f} GB or GiB")
    assert wider[0] <= least
    assert most <= wider[1]


def test_words_for_an_interval_tell_its_ends_apart() -> None:
    assert size_words(28_950_000_000, 29_050_000_000) == "28.95-29.05 GB"
    assert size_words(14_252_845_984, 14_252_845_984) == "14.25 GB"
    assert size_words(*size_interval("16.393 GiB")) == "17.601-17.602 GB"


def row_of(**changes: Any) -> dict[str, Any]:
    (data,) = yaml.safe_load((MATRIX / "models" / "smollm2.yaml").read_text())
    data |= {"id": "mine", "aliases": []}
    checkpoint = data["checkpoints"][0] | {"id": "mine-q4", "aliases": []}
    data["checkpoints"] = [checkpoint | changes]
    result: dict[str, Any] = data
    return result


def loaded(tmp_path: Path, *rows: dict[str, Any]) -> ModelRow:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(list(rows)))
    return load_matrix(path).models[-1]


UNPINNED = {"files": None, "unpinned": "nobody has looked"}


def test_a_checkpoint_is_planned_on_the_upper_end_of_its_published_size(tmp_path: Path) -> None:
    (row,) = loaded(tmp_path, row_of(**UNPINNED, size="0.98 GB", confidence="reported")).weights
    assert (row.min_bytes, row.max_bytes, row.disk_bytes) == (975_000_000, 985_000_000, 985_000_000)
    assert (
        row.assumed == "mine-q4: weights 0.97-0.98 GB, from the published size 0.98 GB (reported)"
    )


def test_what_was_loaded_counts_before_what_lies_on_disk(tmp_path: Path) -> None:
    (row,) = loaded(tmp_path, row_of(**UNPINNED, size="0.98 GB", loaded="0.9-1.1 GB")).weights
    assert (row.min_bytes, row.max_bytes, row.disk_bytes) == (
        850_000_000,
        1_150_000_000,
        985_000_000,
    )
    assert "from the loaded size 0.9-1.1 GB" in str(row.assumed)


def test_pinned_files_count_and_nothing_else(tmp_path: Path) -> None:
    (row,) = loaded(tmp_path, row_of(loaded="3 GB")).weights
    assert row.weights == (98_362_432, 98_362_432)
    assert row.assumptions == ()


def test_a_checkpoint_without_a_figure_has_no_size(tmp_path: Path) -> None:
    changes = {"size": None, "unknown": {"repo": "none", "size": "nobody prints it"}}
    (row,) = loaded(tmp_path, row_of(**UNPINNED, **changes)).weights
    assert (row.weights, row.disk_bytes, row.assumed) == (None, None, None)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"size": "29.0"}, ".size: '29.0' is not a size such as"),
        ({"size": "97 MB"}, ".files: 98,362,432 bytes of weights, and size says 97 MB"),
        ({**UNPINNED, "size": None}, ".unknown.size: missing"),
        ({"experts": "most"}, ".experts: 'most' is not a size"),
        ({"role": "drafter"}, ".drafts: stands exactly where role is drafter"),
        ({"role": "projector"}, ".checkpoints: none of them has the role weights"),
        ({"unverified": ["speed"]}, ".unverified[0]: the row has no key 'speed'"),
        ({"confidence": "sure"}, ".confidence: 'sure' is unknown; "),
    ],
)
def test_a_faulty_checkpoint_is_refused(
    tmp_path: Path, changes: dict[str, Any], fault: str
) -> None:
    with pytest.raises(WantError) as caught:
        loaded(tmp_path, row_of(**changes))
    assert any(fault in each for each in caught.value.faults), caught.value.faults


def named(*paths: str) -> dict[str, Any]:
    """Changes to `row_of` that leave one file's bytes, under the first of these names."""
    (file,) = row_of()["checkpoints"][0]["files"]
    rest = [file | {"path": path, "bytes": 0} for path in paths[1:]]
    return {"files": [file | {"path": paths[0]}, *rest]}


@pytest.mark.parametrize(
    "paths",
    [
        ("m.gguf",),
        ("m.gguf", "README.md", "chat.jinja"),
        ("q4/m-00002-of-00003.gguf", "q4/m-00001-of-00003.gguf", "q4/m-00003-of-00003.gguf"),
    ],
)
def test_a_gguf_checkpoint_is_one_file_or_all_parts_of_one(
    tmp_path: Path, paths: tuple[str, ...]
) -> None:
    (row,) = loaded(tmp_path, row_of(**named(*paths))).weights
    assert row.files is not None
    assert [file.path for file in row.files] == list(paths)


@pytest.mark.parametrize(
    ("paths", "found"),
    [
        # The first by name would be served, and it is the projector.
        (("model-Q4.gguf", "mmproj-F16.gguf"), "'mmproj-F16.gguf', 'model-Q4.gguf'"),
        (("m-00001-of-00002.gguf", "q/m-00002-of-00002.gguf"), "'m-00001-of-00002.gguf', 'q/m-"),
        (("m-00002-of-00002.gguf",), "'m-00002-of-00002.gguf'"),
        (("m-00001-of-00002.gguf",), "'m-00001-of-00002.gguf'"),
        (("m-00001-of-00002.gguf", "n-00002-of-00002.gguf"), "'m-00001-of-00002.gguf', 'n-"),
        (("m-00001-of-00001.gguf", "m.gguf"), "'m-00001-of-00001.gguf', 'm.gguf'"),
        (("m.safetensors",), "found none"),
    ],
)
def test_gguf_files_that_are_not_one_are_refused(
    tmp_path: Path, paths: tuple[str, ...], found: str
) -> None:
    with pytest.raises(WantError) as caught:
        loaded(tmp_path, row_of(**named(*paths)))
    (fault,) = caught.value.faults
    assert ".files: a GGUF checkpoint is one file or all its parts, found " in fault
    assert found in fault


def test_a_file_that_stands_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WantError) as caught:
        loaded(tmp_path, row_of(**named("m.gguf", "a.json", "a.json")))
    (fault,) = caught.value.faults
    assert fault.endswith(".files: 'a.json' stands twice")


# The catalogue


def test_every_checkpoint_that_the_evidence_names_has_a_row() -> None:
    assert len(NAMED) == 104  # 102 entries, two of which name two quantizations each
    rows = {
        f"{row.repo or model.id} {row.quantization} {row.role}"
        for model in MODELS
        for row in model.checkpoints
    }
    assert set(NAMED) <= rows


def test_fifteen_models_are_known_by_their_makers_names() -> None:
    names = (
        "Qwen/Qwen3.6-27B Qwen/Qwen3.8-27B Qwen/Qwen3.6-35B-A3B Qwen/Qwen3-Coder-Next "
        "google/gemma-4-31B-it google/gemma-4-26B-A4B-it google/gemma-4-12B-it openai/gpt-oss-20b "
        "openai/gpt-oss-120b zai-org/GLM-4.7-Flash zai-org/GLM-4.5-Air "
        "deepseek-ai/DeepSeek-V4-Flash-0731 meta-llama/Llama-3.1-8B-Instruct Qwen/Qwen3-0.6B "
        "HuggingFaceTB/SmolLM2-135M-Instruct"
    )
    assert len({model(name).id for name in names.split()}) == 15 == len(MODELS)


def test_size_and_confidence_agree() -> None:
    for row in ROWS:
        if row.confidence is Confidence.SEEN:
            assert row.size is None, row.id
        if row.confidence in (Confidence.VERIFIED, Confidence.REPORTED, Confidence.DERIVED):
            assert row.size is not None, row.id


def test_roles_do_not_mix() -> None:
    qwen = model("qwen3.8-27b")
    assert {row.role for row in qwen.weights} == {Role.WEIGHTS}
    drafters = {"qwen3.8-27b-dflash2-w4a16", "qwen3.8-27b-dflash2", "qwen3.8-27b-dspark"}
    assert {row.id for row in qwen.drafters} == drafters
    assert {row.id for row in qwen.projectors} == {"qwen3.8-27b-mmproj"}
    assert sorted(qwen.checkpoints, key=lambda row: row.id) == sorted(
        (*qwen.weights, *qwen.drafters, *qwen.projectors), key=lambda row: row.id
    )


def test_takes_images_exactly_where_its_makers_say_so() -> None:
    seeing = {row.id for row in MODELS if row.architecture.vision}
    assert seeing == {
        "qwen3.6-27b",
        "qwen3.8-27b",
        "qwen3.6-35b-a3b",
        "gemma-4-31b",
        "gemma-4-26b-a4b",
        "gemma-4-12b",
    }


# Shapes against printed figures: whole model, one copy

PRINTED = [
    # model, bytes a token of what grows (bf16, fp8, q8_0, q4_0)
    ("qwen3.6-27b", 65_536, 32_768, 34_816, 18_432),
    ("qwen3.8-27b", 65_536, 32_768, 34_816, 18_432),
    ("qwen3.6-35b-a3b", 20_480, 10_240, 10_880, 5_760),
    ("qwen3-coder-next", 24_576, 12_288, 13_056, 6_912),
    ("gemma-4-31b", 81_920, 40_960, 43_520, 23_040),
    ("gemma-4-26b-a4b", 20_480, 10_240, 10_880, 5_760),
    ("gemma-4-12b", 16_384, 8_192, 8_704, 4_608),
    ("gpt-oss-20b", 24_576, 12_288, 13_056, 6_912),
    ("gpt-oss-120b", 36_864, 18_432, 19_584, 10_368),
    ("glm-4.7-flash", 54_144, 27_072, 28_764, 15_228),
    ("glm-4.5-air", 188_416, 94_208, 100_096, 52_992),
    ("llama-3.1-8b-instruct", 131_072, 65_536, 69_632, 36_864),
    ("qwen3-0.6b", 114_688, 57_344, 60_928, 32_256),
]


def bytes_per_token(name: str, dtype: str, *kinds: LayerKind) -> int:
    kv = load_matrix().kv_cache_dtype(dtype)
    groups = [group for group in model(name).architecture.groups if group.kind in kinds]
    return sum(kv_bytes_per_token(group, kv, 1) * group.layers for group in groups)


@pytest.mark.parametrize(("name", "bf16", "fp8", "q8_0", "q4_0"), PRINTED)
def test_cache_of_a_token_is_what_is_printed(
    name: str, bf16: int, fp8: int, q8_0: int, q4_0: int
) -> None:
    growing = (LayerKind.FULL, LayerKind.MLA)
    for dtype, expected in (("bf16", bf16), ("fp8_e4m3", fp8), ("q8_0", q8_0), ("q4_0", q4_0)):
        assert bytes_per_token(name, dtype, *growing) == expected


@pytest.mark.parametrize(
    ("name", "per_window_token", "window"),
    [
        ("gemma-4-31b", 819_200, 1024),
        ("gemma-4-26b-a4b", 204_800, 1024),
        ("gemma-4-12b", 327_680, 1024),
        ("gpt-oss-20b", 24_576, 128),
        ("gpt-oss-120b", 36_864, 128),
    ],
)
def test_cache_of_a_windows_token_is_what_is_printed(
    name: str, per_window_token: int, window: int
) -> None:
    assert bytes_per_token(name, "bf16", LayerKind.SLIDING) == per_window_token
    (group,) = model(name).architecture.of(LayerKind.SLIDING)
    assert group.window == window


@pytest.mark.parametrize(
    ("name", "single", "half"),
    [
        ("qwen3.6-27b", 153_944_064, 78_446_592),
        ("qwen3.8-27b", 153_944_064, 78_446_592),
        ("qwen3.6-35b-a3b", 64_389_120, 32_931_840),
        ("qwen3-coder-next", 77_266_944, 39_518_208),
    ],
)
def test_state_of_a_sequence_is_what_is_printed(name: str, single: int, half: int) -> None:
    (group,) = model(name).architecture.of(LayerKind.LINEAR)
    assert linear_state_bytes(group, 1) * group.layers == single
    assert linear_state_bytes(group, 1, state_bytes=2) * group.layers == half


@pytest.mark.parametrize("name", [row.id for row in MODELS if row.architecture.experts])
def test_experts_are_most_of_a_mixture_and_not_all_of_it(name: str) -> None:
    architecture = model(name).architecture
    share = architecture.expert_parameters / architecture.parameters_millions / 1e6
    assert 0.85 < share < 0.99


def test_printed_share_of_the_experts_is_what_the_shapes_give() -> None:
    deepseek = model("deepseek-v4-flash")
    row = next(row for row in deepseek.weights if row.quantization == "q8_k_xl")
    least, most = size_interval(row.experts or "")
    # MXFP4: 4.25 bits a weight.
    assert least <= deepseek.architecture.expert_parameters * 17 // 32 <= most


# Tensor parallel sizes


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("qwen3.6-27b", (1, 2, 4, 8)),
        ("qwen3.6-35b-a3b", (1, 2, 4, 8, 16)),
        ("gemma-4-31b", (1, 2, 4, 8, 16, 32)),
        ("gemma-4-12b", (1, 2, 4, 8, 16)),
        ("glm-4.7-flash", (1, 2, 4)),
        ("llama-3.1-8b-instruct", (1, 2, 4, 8, 16, 32)),
        ("smollm2-135m-instruct", (1, 3, 9)),
    ],
)
def test_tensor_parallel_sizes_follow_from_the_shapes(name: str, sizes: tuple[int, ...]) -> None:
    assert model(name).tensor_parallel_sizes == sizes


@pytest.mark.parametrize(
    ("name", "size", "misfit"),
    [
        ("qwen3.6-27b", 3, "4 KV heads"),
        ("qwen3.6-27b", 5, "24 attention heads"),
        ("qwen3.6-27b", 12, "16 linear key heads"),
        ("qwen3.6-27b", 8, None),
        ("glm-4.7-flash", 5, "1536 columns of an expert"),
        ("glm-4.5-air", 3, "8 KV heads"),
    ],
)
def test_what_does_not_split_is_named(name: str, size: int, misfit: str | None) -> None:
    assert model(name).architecture.misfit(size) == misfit


@given(st.sampled_from(MODELS), st.integers(1, 64))
def test_a_model_that_splits_splits_over_every_divisor_too(row: ModelRow, size: int) -> None:
    if row.architecture.divides(size):
        assert all(row.architecture.divides(part) for part in range(1, size) if size % part == 0)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"experts": 8}, ".moe_layers: stands exactly where experts does"),
        ({"groups": ()}, ".groups: empty"),
        (
            {
                "groups": (
                    LayerGroup(kind=LayerKind.COMPRESSED, layers=2, kv_heads=1, head_size=64),
                )
            },
            ".measured_caches: stand exactly where a compressed group does",
        ),
    ],
)
def test_a_faulty_architecture_says_so(changes: dict[str, Any], fault: str) -> None:
    sound = {
        "attention_heads": 8,
        "hidden_size": 512,
        "vocabulary": 1000,
        "groups": (LayerGroup(kind=LayerKind.FULL, layers=2, kv_heads=2, head_size=64),),
    }
    assert list(Architecture(**sound).faults()) == []
    assert list(Architecture(**(sound | changes)).faults()) == [fault]


def test_a_size_that_is_derived_is_what_the_shape_weighs() -> None:
    air = model("glm-4.5-air")
    shape = air.architecture
    embedding = shape.vocabulary * shape.hidden_size
    heads = shape.hidden_size * 128 * (2 * shape.attention_heads + 2 * 8)
    expert = 3 * shape.hidden_size * shape.expert_size
    layer = heads + expert * 129 + shape.hidden_size * 128
    first = heads + 3 * shape.hidden_size * shape.intermediate_size
    draft = layer + 2 * shape.hidden_size**2 + 2 * embedding
    plain = shape.moe_layers * layer + first + 2 * embedding
    least, most = next(row for row in air.weights if row.id == "glm-4.5-air-bf16").weights or (0, 0)
    assert least <= 2 * plain < 2 * (plain + draft) <= most
    least, most = next(row for row in air.weights if row.id == "glm-4.5-air-fp8").weights or (0, 0)
    assert least <= plain + 2 * embedding < plain + draft + 4 * embedding <= most
