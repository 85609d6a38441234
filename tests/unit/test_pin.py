"""Rows are pinned from a hub that speaks the real protocol, by the hub's own client library."""

import difflib
import hashlib
import json
import shutil
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuwright.load import MATRIX, load_matrix
from gpuwright.sizes import size_interval
from tests.lab.hub import Hub
from tools import pin, pin_rows

GGUF = bytes(range(256)) * 40
OTHER_GGUF = GGUF[::-1]
SHARDS = {f"model-0000{n}-of-00002.safetensors": bytes([n]) * 5_000 for n in (1, 2)}
SMALL = {"config.json": b'{"model_type": "llama"}', "tokenizer.json": b"{}" * 300}
UNUSED = {"README.md": b"# read me", "modeling.py": b"import os", "original/model.gguf": b"x"}
TOKEN = "hf_unit_0123456789abcdef"

ROWS = """\
# Our own models.
- id: tiny
  name: Tiny
  aliases: []
  family: llama
  licence: Apache-2.0
  merit: 1
  max_context_tokens: 8192
  architecture:
    attention_heads: 9
    hidden_size: 576
    vocabulary: 49152
    groups:
      - {kind: full, layers: 30, kv_heads: 3, head_size: 64}
  checkpoints:
    # The small one.
    - id: tiny-q8
      aliases: [Tiny.Q8]
      format: gguf
      quantization: q4_1
      repo: lab/tiny-gguf
      size: "0.0102 MB"
      confidence: verified
      engines: {llama.cpp: ""}
      files: null  # not yet
      unpinned: nobody has looked
      # What it is known from.
      sources: &sources
        - url: https://example.org/tiny
          says: sizes
          covers: [size]
          read: "2026-11-30"
    - id: tiny-bf16
      aliases: []
      format: safetensors
      quantization: bf16
      repo: lab/tiny
      unpinned: nobody has looked
      size: "10000 B"
      confidence: verified
      engines: {vllm: ">=0.17.0"}
      files: null
      sources: *sources

    # It comes in a package.
    - id: tiny-local
      aliases: []
      format: gguf
      quantization: q4_1
      repo: null
      size: "1 B"
      confidence: verified
      engines: {llama.cpp: ""}
      unknown: {repo: it comes in a package}
      files: null
      unpinned: as above
      sources: *sources
  sources:
    - url: https://example.org/tiny
      says: layers
      covers: [architecture]
      read: "2026-11-30"
"""


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with Hub() as hub:
        hub.add_repository("lab/tiny-gguf", {"tiny.Q8.gguf": GGUF, "tiny.Q4.gguf": OTHER_GGUF})
        hub.add_repository("lab/tiny", SHARDS | SMALL | UNUSED)
        yield hub


@pytest.fixture(autouse=True)
def _direct(monkeypatch: pytest.MonkeyPatch, hub: Hub) -> None:
    """No proxy of this machine stands between, no fault of another test is left."""
    monkeypatch.setenv("NO_PROXY", "*")
    hub.heal()


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "more.yaml"
    path.write_text(ROWS)
    return path


Pin = Callable[..., int]


@pytest.fixture
def run(hub: Hub, rows: Path) -> Pin:
    def run(*arguments: str) -> int:
        return pin.main(["--file", str(rows), "--hub", hub.url, *arguments])

    return run


def files_in(path: Path, checkpoint: str) -> list[dict[str, Any]]:
    _, row = load_matrix(path).checkpoint(checkpoint)
    assert row.unpinned is None
    assert row.files is not None
    return [
        {
            "path": file.path,
            "bytes": file.bytes,
            "sha256": file.sha256,
            "sources": [(s.kind, s.repo, s.revision, s.path) for s in file.sources],
        }
        for file in row.files
    ]


def entry(repo: str, commit: str, path: str, data: bytes) -> dict[str, Any]:
    return {
        "path": path,
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "sources": [("hub", repo, commit, path)],
    }


def commit_of(hub: Hub, repo: str) -> str:
    with urllib.request.urlopen(f"{hub.url}/api/models/{repo}", timeout=10) as answer:
        return str(json.load(answer)["sha"])


def test_gguf_row_gets_the_file_that_include_picks(run: Pin, rows: Path, hub: Hub) -> None:
    assert run("tiny-q8", "--include", "*.Q8.gguf") == 0
    commit = commit_of(hub, "lab/tiny-gguf")
    assert files_in(rows, "tiny-q8") == [entry("lab/tiny-gguf", commit, "tiny.Q8.gguf", GGUF)]


def test_safetensors_row_gets_weights_and_what_an_engine_reads_beside_them(
    run: Pin, rows: Path, hub: Hub
) -> None:
    assert run("tiny-bf16") == 0
    commit = commit_of(hub, "lab/tiny")
    wanted = SMALL | SHARDS
    assert files_in(rows, "tiny-bf16") == [
        entry("lab/tiny", commit, path, wanted[path]) for path in sorted(wanted)
    ]


def test_large_files_are_not_downloaded(run: Pin, hub: Hub) -> None:
    hub.forget_requests()
    assert run("tiny-bf16") == 0
    assert not [request for request in hub.requests if "safetensors" in request.path]


def test_everything_else_in_the_file_stays_as_it_is(run: Pin, rows: Path) -> None:
    assert run("tiny-q8", "--include", "*.Q8.gguf") == 0
    assert run("tiny-bf16") == 0
    after = rows.read_text().splitlines()
    change = list(difflib.ndiff(ROWS.splitlines(), after))
    assert [line[2:] for line in change if line.startswith("- ")] == [
        "      files: null  # not yet",
        "      unpinned: nobody has looked",
        "      unpinned: nobody has looked",
        "      files: null",
    ]
    assert "      files:  # not yet" in after


def test_pinning_again_changes_nothing(run: Pin, rows: Path, capsys: Any) -> None:
    assert run("tiny-bf16") == 0
    pinned, stamp = rows.read_text(), rows.stat().st_mtime_ns
    capsys.readouterr()
    assert run("tiny-bf16") == 0
    assert "nothing to change" in capsys.readouterr().out
    assert (rows.read_text(), rows.stat().st_mtime_ns) == (pinned, stamp)


def test_a_new_commit_replaces_the_files_and_keeps_sources_of_other_kinds(
    hub: Hub, rows: Path
) -> None:
    with Hub() as second:
        second.add_repository("lab/tiny-gguf", {"tiny.gguf": GGUF})
        assert pin.main(["tiny-q8", "--file", str(rows), "--hub", second.url]) == 0
        first = commit_of(second, "lab/tiny-gguf")
        source = f"- {{kind: hub, repo: lab/tiny-gguf, revision: {first}, path: tiny.gguf}}"
        text = rows.read_text()
        assert source in text
        local = "- {kind: local, path: /srv/tiny.gguf}"
        rows.write_text(text.replace(source, f"{source}\n            {local}"))
        second.add_repository("lab/tiny-gguf", {"tiny.gguf": GGUF, "README.md": b"newer"})
        assert pin.main(["tiny-q8", "--file", str(rows), "--hub", second.url]) == 0
        newer = commit_of(second, "lab/tiny-gguf")
    assert newer != first
    (file,) = files_in(rows, "tiny-q8")
    assert [source[:3] for source in file["sources"]] == [
        ("hub", "lab/tiny-gguf", newer),
        ("local", None, None),
    ]


def test_dry_run_shows_the_change_and_writes_nothing(run: Pin, rows: Path, capsys: Any) -> None:
    assert run("tiny-q8", "--include", "*.Q8.gguf", "--dry-run") == 0
    shown = capsys.readouterr().out
    assert "-      unpinned: nobody has looked" in shown
    assert f"+          sha256: {hashlib.sha256(GGUF).hexdigest()}" in shown
    assert rows.read_text() == ROWS
    assert [path.name for path in rows.parent.iterdir()] == ["more.yaml"]


def test_gated_repository_needs_a_token_that_has_access(
    run: Pin, hub: Hub, rows: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.add_repository("lab/gated", SHARDS | SMALL, tokens=(TOKEN,))
    rows.write_text(ROWS.replace("repo: lab/tiny\n", "repo: lab/gated\n"))
    assert run("tiny-bf16") == 1
    assert "lab/gated: gated, a token with access is needed" in capsys.readouterr().err
    token = tmp_path / "token"
    token.write_text("hf_another\n")
    assert run("tiny-bf16", "--token-file", str(token)) == 1
    assert "the token has no access" in capsys.readouterr().err
    token.write_text(f"{TOKEN}\n")
    assert run("tiny-bf16", "--token-file", str(token)) == 0
    assert len(files_in(rows, "tiny-bf16")) == 4
    assert TOKEN not in rows.read_text() + "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["tiny-q9"], "checkpoint 'tiny-q9' is unknown in "),
        (["tiny-q9"], "tiny-q8"),
        (["tiny-local"], "tiny-local: has no repository on a hub: it comes in a package"),
        (["tiny-q8"], "--include GLOB needed, it holds 'tiny.Q4.gguf', 'tiny.Q8.gguf'"),
        (["tiny-q8", "--include", "*.Q5.gguf"], "--include '*.Q5.gguf' matches none of"),
        (["tiny-bf16", "--revision", "v9"], "lab/tiny: has no such revision"),
        (["tiny-bf16", "--include", "*.json"], "lab/tiny: no weights among 'config.json'"),
        (
            ["tiny-bf16", "--include", "*1-of*"],
            "10,000 to 10,000 bytes needed (10000 B published), found 5,000",
        ),
        (
            ["tiny-q8", "--include", "*.gguf"],
            "10,150 to 10,250 bytes needed (0.0102 MB published), found 20,480",
        ),
        (["tiny-bf16", "--token-file", "/nonexistent"], "--token-file /nonexistent: No such"),
    ],
)
def test_what_cannot_be_pinned_is_refused_in_one_line(
    run: Pin, rows: Path, capsys: Any, arguments: list[str], sentence: str
) -> None:
    assert run(*arguments) == 1
    said = capsys.readouterr().err
    assert sentence in said
    assert len(said.splitlines()) == 1
    assert rows.read_text() == ROWS


def test_hub_that_is_not_there_is_named(rows: Path, capsys: Any) -> None:
    with Hub() as gone:
        pass
    assert pin.main(["tiny-bf16", "--file", str(rows), "--hub", gone.url]) == 1
    assert f"pin: {gone.url} cannot be asked: " in capsys.readouterr().err


def test_repository_that_is_not_there_is_named(run: Pin, rows: Path, capsys: Any) -> None:
    rows.write_text(ROWS.replace("repo: lab/tiny\n", "repo: lab/typo\n"))
    assert run("tiny-bf16") == 1
    assert "lab/typo: not on http" in capsys.readouterr().err


def test_server_error_is_named(run: Pin, hub: Hub, capsys: Any) -> None:
    hub.fail("/api/models/*", status=503)
    assert run("tiny-bf16") == 1
    assert "answers 503" in capsys.readouterr().err


def test_small_file_that_is_not_the_listed_one_is_not_hashed(
    run: Pin, hub: Hub, rows: Path, capsys: Any
) -> None:
    hub.fail("*/config.json", wrong_bytes=True)
    assert run("tiny-bf16") == 1
    assert "'config.json' is not the file that the listing names" in capsys.readouterr().err
    assert rows.read_text() == ROWS


def test_file_that_the_loader_refuses_does_not_take_the_place_of_the_old_one(rows: Path) -> None:
    with pytest.raises(pin_rows.MatrixError, match=r"more\.yaml\[0\].*merits: unknown key"):
        pin_rows.replace_file(rows, ROWS.replace("  merit: 1", "  merits: 1"))
    assert rows.read_text() == ROWS
    assert [path.name for path in rows.parent.iterdir()] == ["more.yaml"]


def test_row_in_braces_is_not_edited(run: Pin, rows: Path, capsys: Any) -> None:
    data = yaml.safe_load(ROWS)
    data[0]["checkpoints"] = data[0]["checkpoints"][:1]
    text = json.dumps(data)
    rows.write_text(text)
    assert run("tiny-q8", "--include", "*.Q8.gguf") == 1
    assert "write one key a line" in capsys.readouterr().err
    assert rows.read_text() == text


def test_names_that_yaml_would_misread_are_quoted(run: Pin, rows: Path) -> None:
    odd = {"1.5": b"", "true": b"\0", "a: b, {c}.gguf": GGUF, "null": b"", "ü #.json": b"{}"}
    with Hub() as hub:
        hub.add_repository("lab/tiny-gguf", odd)
        words = ["tiny-q8", "--include", "*", "--file", str(rows), "--hub", hub.url]
        assert pin.main(words) == 0
    assert [file["path"] for file in files_in(rows, "tiny-q8")] == sorted(odd)


def test_row_without_a_published_size_takes_what_the_hub_lists(run: Pin, rows: Path) -> None:
    unsized = ROWS.replace('size: "10000 B"', "size: null").replace(
        "      repo: lab/tiny\n", "      repo: lab/tiny\n      unknown: {size: nobody prints it}\n"
    )
    rows.write_text(unsized)
    assert run("tiny-bf16", "--include", "*.safetensors") == 0
    assert load_matrix(rows).checkpoint("tiny-bf16")[1].weights == (10_000, 10_000)


@pytest.fixture
def matrix(tmp_path: Path) -> Path:
    return Path(shutil.copytree(MATRIX, tmp_path / "matrix"))


def test_row_of_our_own_is_found_in_its_file_and_read_among_the_others(
    matrix: Path, hub: Hub
) -> None:
    folder = matrix / "models"
    hub.add_repository("z-lab/Qwen3.6-27B-DFlash", {"model.safetensors": b"x" * 1000})
    words = ["z-lab/qwen3.6-27b-dflash", "--file", str(folder), "--hub", hub.url]
    assert pin.main(words) == 1
    path = folder / "qwen3.6.yaml"
    path.write_text(path.read_text().replace("size: 3.46 GB", "size: 1000 B"))
    before = {file.name: file.read_text() for file in folder.glob("*.yaml")}
    assert pin.main(words) == 0
    after = {file.name: file.read_text() for file in folder.iterdir() if file.name in before}
    assert [name for name in before if before[name] != after[name]] == ["qwen3.6.yaml"]
    assert load_matrix(directory=matrix).checkpoint("qwen3.6-27b-dflash")[1].max_bytes == 1000


def test_row_of_our_own_that_would_clash_with_another_file_is_refused(matrix: Path) -> None:
    path = matrix / "models" / "qwen3.yaml"
    text = path.read_text()
    with pytest.raises(pin_rows.MatrixError, match="name 'smollm2': two rows have it"):
        pin_rows.replace_file(path, text.replace("[Qwen/Qwen3-0.6B]", "[smollm2]", 1))
    assert path.read_text() == text


def test_every_unpinned_row_of_our_own_can_be_edited(matrix: Path) -> None:
    models = load_matrix().models
    rows = [row for model in models for row in model.checkpoints if row.files is None and row.repo]
    assert rows
    sizes = {row.id: size_interval(row.size)[0] if row.size else 7 for row in rows}
    files = sorted((matrix / "models").glob("*.yaml"))
    for path in files:
        for row in rows:
            text = path.read_text()
            if f"    - id: {row.id}\n" in text:
                found = pin_rows.target_in(path, text, row.id)
                data = pin.PinnedFile(path="w.gguf", bytes=sizes[row.id], sha256=f"{1:064x}")
                path.write_text(found.pinned([data], found.repo, f"{1:040x}"))
    pinned = load_matrix(directory=matrix)
    for row in rows:
        changed = pinned.checkpoint(row.id)[1]
        assert changed.unpinned is None
        assert changed.weights == (sizes[row.id], sizes[row.id])
    for path in files:
        old = (MATRIX / "models" / path.name).read_text().splitlines()
        new = path.read_text().splitlines()
        assert {line for line in old if "#" in line} <= set(new)
