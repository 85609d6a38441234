"""Every flag that a plan's command has is one that its release takes, with a legal value."""

import pytest

from gpuwright.flag_lint import lint
from gpuwright.host import Host
from gpuwright.launch import launch
from gpuwright.layout import Layout
from gpuwright.load import load_matrix
from gpuwright.plan import Plan
from gpuwright.records import Flag, load_record, recorded, with_answers
from gpuwright.selection import decide
from gpuwright.want import Want
from tools.golden import WANTS, document, rigs, wants_of

RECORDED = recorded()
LINES = {
    "vllm": ("0.19.1", "0.33.0"),
    "sglang": ("0.5.10.post1", "0.5.23"),
}
"""Engine -> an older and a newer release of it with records."""


REMOVED = {
    # Drafts got options of their own (--spec-draft-n-max), mapping files a word of --load-mode.
    ("llama.cpp", "b11434"): ("--draft-max", "--draft-min", "--mlock", "--no-mmap"),
    ("sglang", "0.5.23"): ("--mamba-scheduler-strategy",),
}
"""Options that guides still name and a release has no more."""


def flags(engine, release):
    return load_record(engine, release).flags


def names(engine, release):
    return {name for first, flag in flags(engine, release).items() for name in (first, *flag.also)}


def options(argv):
    """What follows the program's own words: `python -m sglang.launch_server`."""
    return argv[next(i for i, word in enumerate(argv) if word.startswith("--")) :]


def plans():
    """Golden plans, and what the same wants plan where each recorded release is pinned."""
    matrix = load_matrix()
    # The last releases for CUDA 12 compile with a toolkit that few of the rigs can have.
    toolkit = {"cuda_repository": True}
    pinned = [{"engine": engine, "release": release} | toolkit for engine, release in RECORDED]
    for rig in rigs():
        host = Host.from_document(document(rig))
        for want in wants_of(rig):
            for pins in ({}, *pinned):
                plan = decide(host, Want.from_data(WANTS[want] | pins), matrix)
                if isinstance(plan, Plan) and (plan.engine, plan.release) in RECORDED:
                    yield plan


def test_every_flag_of_a_plan_is_legal_in_its_release():
    checked, wrong = dict.fromkeys(RECORDED, 0), set()
    for plan in plans():
        argv = launch(plan, Layout(), "/models/m", "/opt/engine").argv
        wrong.update(lint(options(argv), flags(plan.engine, plan.release)))
        checked[plan.engine, plan.release] += 1
    assert wrong == set()
    assert all(count > 10 for count in checked.values()), checked


@pytest.mark.parametrize("engine", LINES)
def test_a_flag_that_a_newer_release_removed_is_caught_there(engine):
    older, newer = LINES[engine]
    removed = names(engine, older) - names(engine, newer)
    assert removed
    for name in removed:
        flag = load_record(engine, older).flag(name)
        words = [name] if flag.takes in ("0", "?", "*") else [name, (*flag.values, "1")[0]]
        assert lint(words, flags(engine, older)) == []
        (fault,) = lint(words, flags(engine, newer))
        assert fault.startswith(f"{name}: no such flag")


@pytest.mark.parametrize("engine", LINES)
def test_a_value_that_a_newer_release_removed_is_caught_there(engine):
    older, newer = LINES[engine]
    removed = [
        (name, value)
        for name, flag in flags(engine, older).items()
        if (after := load_record(engine, newer).flag(name)) is not None and after.values
        for value in flag.values
        if value not in after.values
    ]
    assert removed
    for name, value in removed:
        assert lint([name, value], flags(engine, older)) == []
        assert any(repr(value) in fault for fault in lint([name, value], flags(engine, newer)))


@pytest.mark.parametrize("release", REMOVED)
def test_a_flag_of_old_guides_is_caught(release):
    for name in REMOVED[release]:
        (fault,) = lint([name, "1"], flags(*release))
        assert fault.startswith(f"{name}: no such flag")


@pytest.mark.parametrize("engine", LINES)
def test_a_flag_that_an_older_release_does_not_have_yet_is_caught_there(engine):
    older, newer = LINES[engine]
    added = names(engine, newer) - names(engine, older)
    assert added
    assert all(lint([name], flags(engine, older)) for name in added)


@pytest.mark.parametrize(("engine", "release"), with_answers())
def test_the_checks_own_flags_are_found_wanting(engine, release):
    known = flags(engine, release)
    assert lint(["--no-such-flag", "x"], known)
    assert lint(["--kv-cache-dtype", "int2"], known)
    assert lint(["--kv-cache-dtype"], known)
    assert lint(["--kv-cache-dtype", "auto", "auto"], known)
    assert lint(["--kv-cache-dtype=auto"], known) == []


TABLE = {
    "--many": Flag(takes="*"),
    "--maybe": Flag(takes="?", values=("a", "b")),
    "--number": Flag(),
    "--on": Flag(also=("--no-on", "-o"), takes="0"),
}


@pytest.mark.parametrize(
    ("arguments", "faults"),
    [
        (["--many"], []),
        (["--many", "x", "y"], []),
        (["--maybe", "--on"], []),
        (["--maybe", "c"], ["--maybe: 'c' is not legal; legal: a, b"]),
        (["--maybe", "a", "b"], ["--maybe: takes ? values, found 2"]),
        (["--number", "-1"], []),
        (["--number=-1"], []),
        (["--number"], ["--number: takes 1 values, found 0"]),
        (["--no-on", "-o"], []),
        (["--on", "yes"], ["--on: takes 0 values, found 1"]),
        (["--numb", "1"], ["--numb: no such flag; nearest: --number"]),
        (["model", "--on"], []),
    ],
)
def test_how_many_words_a_flag_takes_and_which(arguments, faults):
    assert lint(arguments, TABLE) == faults
