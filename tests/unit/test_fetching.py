"""What a node is told to download: one question before, and one program for all checkpoints."""

from dataclasses import replace

import pytest

from gpuwright.converge import Changes
from gpuwright.expected import Expected
from gpuwright.fetching import FetchSpecs, fetch_specs
from gpuwright.layout import Layout
from gpuwright.plan import ModelFile, PlannedCheckpoint, Source
from gpuwright.want import Want
from tests.unit.plans import BESIDE, FILE, PLAN

ARCHIVE = replace(FILE, path="source.tar.gz")
GATED = PlannedCheckpoint(
    id="tiny-draft",
    files=(
        ModelFile(
            path="draft.gguf",
            bytes=10,
            sha256="b" * 64,
            sources=(Source(kind="hub", repo="a/b", revision="c", path="draft.gguf"),),
        ),
    ),
)
ALL = Changes(build="build it", fetch="fetch it")


def told(beside: PlannedCheckpoint = BESIDE, changes: Changes = ALL, **want: str) -> FetchSpecs:
    expected = Expected(
        layout=Layout(),
        plan=replace(PLAN, beside=(beside,)),
        engine_dir="/opt/e",
        engine_files=(),
        unit="",
        secret_names=(),
        build_packages=(),
        runtime_packages=(),
        start_timeout_seconds=120,
    )
    return fetch_specs(
        want=Want.from_data({"model": "tiny", **want}),
        expected=expected,
        archives=(ARCHIVE,),
        changes=changes,
        verify="quick",
    )


def test_every_checkpoint_is_a_store_of_one_program() -> None:
    found = told().models
    assert found is not None
    places = {
        store["directory"]: [row["path"] for row in store["files"]] for store in found["stores"]
    }
    root = Layout().model_store
    assert places == {f"{root}/tiny-q4": [FILE.path], f"{root}/tiny-draft": [FILE.path]}
    assert len({store["lock"] for store in found["stores"]}) == 2


def test_all_downloads_of_a_run_are_asked_about_at_once() -> None:
    asked = told().preflight()
    assert asked is not None
    assert asked["preflight"] is True
    assert len(asked["stores"]) == 3
    assert told(changes=Changes()).preflight() is None
    only = told(changes=Changes(build="build it")).preflight()
    assert only is not None
    assert [row["path"] for store in only["stores"] for row in store["files"]] == [ARCHIVE.path]


@pytest.mark.parametrize("changes", [ALL, Changes(fetch="fetch it")])
def test_a_drafters_hub_gets_the_token_as_the_models_does(changes: Changes) -> None:
    found = told(GATED, changes, hub="https://hub.example", hub_token_file="/x")
    assert found.models is not None
    assert found.models["token_stdin"]
    assert found.needs_token
    asked = found.preflight()
    assert asked is not None
    assert asked["token_stdin"]
    (source,) = found.models["stores"][1]["files"][0]["sources"]
    assert source["hub"] == "https://hub.example"
    assert not told(GATED, changes).needs_token
    assert not told(BESIDE, changes, hub_token_file="/x").needs_token
