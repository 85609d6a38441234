"""A new release's row: what was measured of it, the rest its neighbour's, in its place."""

import dataclasses
from collections import Counter

import pytest
import yaml

from gpuwright.engine_rows import ReleaseRow
from gpuwright.load import MATRIX, load_matrix
from gpuwright.records import load_record
from gpuwright.strict import read_row
from tools.bump import base_of, caches_moved, capabilities, flags_moved, pythons_of, toolkit_of
from tools.bump_row import insert_row, skeleton
from tools.lock_resolve import LockError, Wheel
from tools.sm_scan import Targets

ROWS = load_matrix()
LOCK = dataclasses.replace(
    ROWS.lock("vllm", "0.33.0", "cu130", "x86_64"),
    python=("3.11", "3.12"),
    not_for={"3.14": "was not had", "aarch64": "was not had either"},
)
CARDS = ("7.5", "8.0", "12.0")


def targets(*code):
    return Targets(code=Counter(code))


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_skeleton_is_a_row_with_what_was_measured(engine):
    bases = [row for row in ROWS.releases if row.engine == engine and row.build_tags[0].cuda]
    assert len(bases) > 1
    for base in bases:
        text = skeleton(base, LOCK, "13.0", CARDS, "2026-11-30")
        (data,) = yaml.safe_load(text)
        faults: list[str] = []
        row = read_row(ReleaseRow, data, "row", faults)
        assert faults == []
        assert (row.release, row.glibc) == ("0.33.0", LOCK.glibc)
        assert row.python == ("3.11", "3.12", "3.14")
        assert [(tag.tag, tag.cuda, tag.capabilities) for tag in row.build_tags] == [
            ("cu130", "13.0", CARDS)
        ]
        assert (row.auto_order, row.kv_cache_dtypes) == (base.auto_order, base.kv_cache_dtypes)
        assert row.environment == base.environment
        assert row.architectures == ("x86_64",)
        assert row.build_tags[0].capabilities_on == {}
        covered = {key for claim in row.sources for key in claim.covers}
        assert base.environment is None or "environment" in covered
        assert {claim.url for claim in row.sources} == {"pkg:pypi/vllm@0.33.0"}


@pytest.mark.parametrize(
    ("release", "order"),
    [
        ("0.34.0", ["0.34.0", "0.33.0", "0.19.1"]),
        ("0.32.1", ["0.33.0", "0.32.1", "0.19.1"]),
        ("0.18.0", ["0.33.0", "0.19.1", "0.18.0"]),
    ],
)
def test_a_row_stands_between_a_newer_and_an_older_one(release, order, tmp_path):
    path = tmp_path / "vllm.yaml"
    path.write_text(
        "# Releases\n"
        + "".join(f"- id: vllm-{n}\n  release: '{n}'\n" for n in ("0.33.0", "0.19.1"))
    )
    base = ROWS.engine_release("vllm", "0.33.0" if release == "0.34.0" else "0.19.1")
    insert_row(path, base, release, f"- id: vllm-{release}\n  release: '{release}'\n")
    assert [row["release"] for row in yaml.safe_load(path.read_text())] == order
    assert path.read_text().startswith("# Releases\n")


def test_the_base_is_the_newest_release_below():
    assert base_of("sglang", "0.5.22", None).release == "0.5.10.post1"
    assert base_of("vllm", "0.32.1", None).release == "0.19.1"
    assert base_of("sglang", "0.6.0", None).release == "0.5.23"
    assert base_of("sglang", "0.4.0", None).release == "0.5.10.post1"
    with pytest.raises(LockError, match="stands already"):
        base_of("sglang", "0.5.23", None)
    with pytest.raises(LockError, match=r"no such release; nearest: 0\.5\.23"):
        base_of("sglang", "0.6.0", "0.5.3")


def test_a_python_that_is_not_here_is_left_out_with_its_reason():
    base = ROWS.engine_release("vllm", "0.33.0")

    def absent(minors):
        return [minor for minor in minors if minor in ("3.13", "3.14")]

    pythons, reasons = pythons_of(None, base, absent)
    assert pythons == ["3.11", "3.12"]
    assert set(reasons) == {"3.13", "3.14"}
    assert pythons_of(["3.12"], base, absent) == (["3.12"], {})
    with pytest.raises(LockError, match=r"Python 3\.13: needed on PATH"):
        pythons_of(["3.12", "3.13"], base, absent)
    with pytest.raises(LockError, match=r"Python 3\.11, 3\.12, 3\.13, 3\.14: needed on PATH"):
        pythons_of(None, base, lambda minors: minors)


def test_options_that_went_and_came_are_told():
    old, new = (load_record("vllm", release) for release in ("0.19.1", "0.33.0"))
    gone, came = flags_moved(old, new)
    assert gone.startswith("  options gone since 0.19.1: --")
    for name in gone.partition(": ")[2].split(", "):
        assert any(name in (first, *flag.also) for first, flag in old.flags.items())
        assert not any(name in (first, *flag.also) for first, flag in new.flags.items())
    assert came != gone
    assert flags_moved(new, new) == [
        "  options gone since 0.33.0: none",
        "  options new since 0.33.0: none",
    ]


def test_caches_that_a_row_lacks_or_has_too_many_are_told():
    old, new = (ROWS.engine_release("vllm", release) for release in ("0.19.1", "0.33.0"))
    more, gone = caches_moved(old, load_record("vllm", "0.33.0"))
    assert more.startswith("  KV cache types that it names, and vllm-0.19.1 has not: ")
    assert set(more.partition(": ")[2].split(", ")) == {*new.kv_cache_dtypes} - {
        *old.kv_cache_dtypes
    }
    assert gone.endswith("vllm-0.19.1 that it does not name: none")
    more, gone = caches_moved(new, load_record("vllm", "0.19.1"))
    assert more.endswith(": none")
    assert "turboquant_4bit_nc" in gone


def test_a_card_counts_where_the_engine_and_torch_have_code_for_it():
    found = {
        "sgl_kernel/a.so": targets("8.0", "10.3"),
        "sgl_kernel/b.so": targets("12.0"),
        "torch/lib/c.so": targets("7.5", "8.0", "12.0"),
        "other/d.so": targets("9.0"),
    }
    assert capabilities("sglang", found) == ("8.0", "12.0")


def test_the_toolkit_is_that_of_the_runtime_which_is_installed():
    def wheel(name, version):
        return {name: Wheel(name=name, version=version, sha256="a" * 64, bytes=1, local=False)}

    assert toolkit_of({"3.11": wheel("nvidia-cuda-runtime", "13.0.96")}) == "13.0"
    assert toolkit_of({"3.11": wheel("nvidia-cuda-runtime-cu12", "12.8.90")}) == "12.8"
    with pytest.raises(LockError):
        toolkit_of({"3.11": wheel("six", "1.17.0")})


def test_engine_files_are_split_at_their_rows():
    for path in (MATRIX / "engines").glob("*.yaml"):
        text = path.read_text(encoding="utf-8")
        assert text.count("\n- id: ") == len(yaml.safe_load(text))
