"""Base trees are built once, and again only when they must be; without a lab skipping is said."""

import time
from pathlib import Path

import pytest

from tests.lab import base, fixtures, machine
from tests.lab.machine import LabError, write_json


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Trees that were built, each an empty directory with a stamp as the real build's last act."""
    trees: list[Path] = []

    def build(suite: str, tree: Path) -> Path:
        tree = tree.with_name(f"{suite}-{len(trees)}")
        tree.mkdir(parents=True)
        stamp(tree, time.time())
        trees.append(tree)
        return tree

    monkeypatch.setenv("GPUWRIGHT_LAB_DIR", str(tmp_path))
    monkeypatch.setattr(base, "_build", build)
    return trees


def stamp(tree: Path, when: float, recipe: int = base.RECIPE) -> None:
    write_json(tree.with_suffix(".json"), {"recipe": recipe, "suite": "bookworm", "built": when})


def test_a_tree_is_built_once(built: list[Path]) -> None:
    assert base.ensure("bookworm") == base.ensure("bookworm")
    assert len(built) == 1


def test_a_tree_of_fifteen_days_is_built_anew_and_goes(built: list[Path]) -> None:
    old = base.ensure("bookworm")
    stamp(old, time.time() - 15 * 24 * 3600)
    assert base.ensure("bookworm") != old
    assert not old.exists()
    assert not old.with_suffix(".json").exists()


def test_an_old_tree_stays_while_a_node_lies_upon_it(built: list[Path]) -> None:
    old = base.ensure("bookworm")
    stamp(old, time.time() - 15 * 24 * 3600)
    assert base.ensure("bookworm", in_use=[old]) != old
    assert old.exists()


def test_a_build_that_was_broken_off_is_done_again(built: list[Path]) -> None:
    broken = base.ensure("bookworm")
    broken.with_suffix(".json").unlink()
    assert base.ensure("bookworm") != broken
    assert not broken.exists()


def test_a_changed_recipe_makes_a_new_tree(built: list[Path]) -> None:
    old = base.ensure("bookworm")
    stamp(old, time.time(), recipe=base.RECIPE - 1)
    assert base.ensure("bookworm") != old


def test_an_unknown_suite_is_refused_by_name() -> None:
    with pytest.raises(LabError, match="bookworm, trixie, bullseye, not 'sid'"):
        base.ensure("sid")


def test_a_mirror_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "apt_uris", lambda: ["http://a/debian", "http://a/debian-security/"])
    assert base.mirrors() == ("http://a/debian", "http://a/debian-security/")
    monkeypatch.setenv("GPUWRIGHT_LAB_MIRROR", "http://b/debian")
    assert base.mirrors() == ("http://b/debian", "http://a/debian-security/")


def test_without_root_there_is_no_lab(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.os, "geteuid", lambda: 1000)
    assert machine.available.__wrapped__() == (False, "the lab needs root")


def test_without_namespaces_there_is_no_lab(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*argv: str | Path) -> None:
        raise LabError("unshare: Operation not permitted")

    monkeypatch.setenv("GPUWRIGHT_LAB_DIR", str(tmp_path))
    monkeypatch.setattr(machine.os, "geteuid", lambda: 0)
    monkeypatch.setattr(machine, "cgroup_roots", lambda: [tmp_path])
    monkeypatch.setattr(machine, "missing_packages", list)
    monkeypatch.setattr(machine, "run", refuse)
    ok, reason = machine.available.__wrapped__()
    assert not ok
    assert reason.endswith("unshare: Operation not permitted")
    assert "\n" not in reason


def test_a_missing_lab_skips_and_under_ci_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="the lab needs root"):
        fixtures.do_without_lab("the lab needs root")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="the lab needs root"):
        fixtures.do_without_lab("the lab needs root")
