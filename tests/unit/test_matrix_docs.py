"""docs/matrix/ says what the rows say: each page is rendered anew and compared."""

from dataclasses import fields
from pathlib import Path

import pytest

from gpuwright.hazard_rows import When
from gpuwright.load import load_matrix
from gpuwright.recommendation_rows import load_recommendations
from tools.pages.fit import CARDS
from tools.pages.hazards import PHRASES
from tools.pages.markdown import link_text, source, span, table, tokens
from tools.render_docs import DIRECTORY, PAGES, stale

MATRIX = load_matrix()
TEXTS = {name: (DIRECTORY / name).read_text(encoding="utf-8") for name in PAGES}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_says_what_the_rows_say(name: str) -> None:
    assert PAGES[name](MATRIX) == TEXTS[name], "python -m tools.render_docs"


def test_no_page_is_left_over() -> None:
    assert {path.name for path in DIRECTORY.glob("*")} == set(PAGES)


def test_a_page_that_differs_and_one_that_nothing_renders_are_stale(tmp_path: Path) -> None:
    for name, text in TEXTS.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "gpus.md").write_text("# Cards\n", encoding="utf-8")
    (tmp_path / "old.md").write_text("# Old\n", encoding="utf-8")
    assert stale(tmp_path) == {"gpus.md": TEXTS["gpus.md"], "old.md": None}


NAMED = {
    "engines.md": [tag.tag for row in MATRIX.releases for tag in row.build_tags],
    "features.md": [f"`{row.id}`" for row in MATRIX.features],
    "attention.md": [f"`{row.backend}`" for row in MATRIX.attention_backends],
    "models.md": [f"| {row.id} |" for model in MATRIX.models for row in model.checkpoints],
    "fit.md": [row.id for row in MATRIX.models],
    "hazards.md": [f"- `{row.id}` **" for row in MATRIX.hazards],
    "gpus.md": [f"| {row.id} |" for row in MATRIX.gpus],
    "recommendations.md": [row.because for row in load_recommendations()],
    "workloads.md": [f"## {row.id}\n" for row in MATRIX.workloads],
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_names_every_row(name: str) -> None:
    assert [each for each in NAMED[name] if each not in TEXTS[name]] == []


def test_every_source_is_linked_from_a_page() -> None:
    rows = (
        *MATRIX.gpus,
        *MATRIX.cuda,
        *MATRIX.releases,
        *MATRIX.attention_backends,
        *MATRIX.features,
        *MATRIX.models,
        *(row for model in MATRIX.models for row in model.checkpoints),
        *MATRIX.hazards,
        *MATRIX.workloads,
        *load_recommendations(),
    )
    linked = "".join(TEXTS.values())
    assert [c.url for row in rows for c in row.sources if source(c.url) not in linked] == []


def test_every_condition_of_a_hazard_has_a_phrase() -> None:
    assert set(PHRASES) == {field.name for field in fields(When)}


def test_every_generation_of_cards_is_on_the_page_of_what_fits() -> None:
    shown = {MATRIX.gpu_index.find(card).compute_capability for card in CARDS}
    assert shown >= {"6.1", "7.0", "7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0"}


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("https://github.com/vllm-project/vllm/issues/53180", "vllm#53180"),
        ("https://github.com/vllm-project/vllm/pull/7#issuecomment-1", "vllm#7"),
        ("https://github.com/a/b/blob/v1/src/x.cu#L3", "b x.cu"),
        ("https://github.com/a/b/tree/8337e4cd", "b"),
        ("https://github.com/a/b", "b"),
        ("https://www.example.org/page", "example.org"),
        ("pkg:pypi/sglang@0.5.23", "sglang==0.5.23"),
    ],
)
def test_a_source_is_called_by_its_thread_file_or_place(url: str, text: str) -> None:
    assert link_text(url) == text


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (">=8.0", "from 8.0"),
        (">=8.0,<9.0", "8.0 to below 9.0"),
        (">=7.5,<=12.1", "7.5 to 12.1"),
        ("==8.6", "8.6"),
        ("<8.0", "below 8.0"),
        (">2", "above 2"),
        (">=8.0,!=8.7", ">=8.0 and !=8.7"),
    ],
)
def test_a_range_is_read_as_words(spec: str, words: str) -> None:
    assert span(spec) == words


def test_a_bar_in_a_cell_does_not_end_it() -> None:
    assert table(("a", "b"), [("x|y", "")]).splitlines()[-1] == "| x\\|y | - |"


@pytest.mark.parametrize(("count", "text"), [(262144, "256K"), (40960, "40K"), (1000, "1,000")])
def test_a_context_is_told_in_k_where_it_is_whole(count: int, text: str) -> None:
    assert tokens(count) == text
