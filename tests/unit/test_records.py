"""Our rows choose the backend that each engine's own code chose, cell by cell.

Where they do not, a row of records/differences.yaml says why we know better.
"""

from functools import lru_cache

import pytest

from gpuwright.attention import Asked, chosen
from gpuwright.attention_rows import AttentionBackendRow, Toolchain
from gpuwright.launch_words import backend_word, cache_word
from gpuwright.load import load_matrix
from gpuwright.records import Cell, load_differences, load_record, recorded, with_answers
from gpuwright.versions import at_least, within

MATRIX = load_matrix()
NONE = "none"


def activations(capability: str, dtype: str) -> str:
    """The engine's word for what the activations are in, which a 16-bit cache shares."""
    if dtype in ("bf16", "f16"):
        return {"bf16": "bfloat16", "f16": "float16"}[dtype]
    return "bfloat16" if at_least(capability, "8.0") else "float16"


@lru_cache
def table(engine, release):
    return load_record(engine, release).table()


def cells(engine, release):
    """The recorded cells that a plan can come to, each with our name of its cache."""
    words = {
        cache_word(engine, dtype): dtype
        for dtype in MATRIX.engine_release(engine, release).kv_cache_dtypes
    }
    for cell in table(engine, release):
        dtype = words.get(cell.kv)
        if dtype is not None and cell.dtype == activations(cell.capability, dtype):
            yield cell, dtype


def ours(engine, release, cell: Cell, dtype):
    row = MATRIX.engine_release(engine, release)
    heads = () if cell.head == "mla" else (int(cell.head),)
    asked = Asked(
        capability=cell.capability,
        kv=dtype,
        head_sizes=heads,
        mla=cell.head == "mla",
        sliding=cell.sliding == "yes",
        sinks=cell.sinks == "yes",
        toolchain=Toolchain(cell.toolchain),
    )
    answer = chosen(row, MATRIX.backends(engine), [asked])
    if not isinstance(answer, AttentionBackendRow):
        return NONE, None
    version = next((answer.version(cell.capability, size) for size in heads), None)
    return backend_word(engine, answer.backend), version.version if version else None


def theirs(engine, release, cell):
    answer = table(engine, release)[cell]
    if answer.constructs == "no":
        return NONE, None
    # Backends of latent attention tell the version of what computes their prompts: not chosen here.
    return answer.chosen, answer.version if cell.head != "mla" else None


def differences(engine, release):
    return [
        row for row in load_differences() if row.engine == engine and within(release, row.releases)
    ]


@pytest.mark.parametrize(("engine", "release"), with_answers())
def test_our_rows_choose_what_the_engine_chose_or_say_why_not(engine, release):
    known, used, wrong, asked = differences(engine, release), set(), [], 0
    for cell, dtype in cells(engine, release):
        asked += 1
        we, they = ours(engine, release, cell, dtype), theirs(engine, release, cell)
        if we == they:
            continue
        listed = [
            row
            for row in known
            if (row.ours, row.theirs) == (we[0], they[0])
            and any(block.covers(cell) for block in row.cells)
        ]
        used.update(id(row) for row in listed)
        if not listed:
            wrong.append(f"{cell}: ours {we}, theirs {they}")
    assert asked > 1000
    assert not wrong, f"{len(wrong)} of {asked}:\n" + "\n".join(wrong[:40])
    assert [row.because for row in known if id(row) not in used] == []


def test_every_difference_is_of_a_release_with_a_record():
    for row in load_differences():
        assert any(e == row.engine and within(r, row.releases) for e, r in recorded())
