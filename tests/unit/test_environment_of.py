"""The environment that an engine is asked in comes from the lock of the machine that asks."""

import pytest

from gpuwright.load import load_matrix
from gpuwright.lock_rows import LOCKS
from tools import ask_engine

LOCKED = [
    row for row in load_matrix().locks if row.sha256 is not None and row.build_tag.startswith("cu")
]


@pytest.mark.parametrize("row", LOCKED, ids=lambda row: row.id)
def test_it_is_made_from_the_lock_of_the_machine(row, monkeypatch):
    monkeypatch.setattr(ask_engine.platform, "machine", lambda: row.architecture)
    monkeypatch.setattr(ask_engine, "install", lambda *words, **_: words[4])
    assert ask_engine.environment_of(row.engine, row.release) == LOCKS / row.filename


def test_without_a_lock_for_the_machine_there_is_none(monkeypatch):
    monkeypatch.setattr(ask_engine.platform, "machine", lambda: "riscv64")
    with pytest.raises(LookupError, match=r"vllm 0\.33\.0: no lock"):
        ask_engine.environment_of("vllm", "0.33.0")
