"""Every flag that a golden plan's command has is one that its release takes, with a legal value."""

import pytest

from gpuwright.launch import launch
from gpuwright.layout import Layout
from gpuwright.plan import Plan
from gpuwright.records import load_record, recorded
from tools.golden import decision, rigs, wants_of

RECORDED = recorded()


def faults(engine, release, arguments):
    """What is wrong with the flags of a command, in its order."""
    record, found, rest = load_record(engine, release), [], list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            continue
        name, _, inline = word.partition("=")
        flag = record.flag(name)
        if flag is None:
            found.append(f"{name}: {engine} {release} has no such flag")
            continue
        if flag.takes == "0":
            continue
        values = [inline] if inline else []
        while rest and not inline and not rest[0].startswith("-"):
            values.append(rest.pop(0))
        if flag.takes == "1" and len(values) != 1:
            found.append(f"{name}: takes one value, has {len(values)}")
        if flag.values:
            found += [
                f"{name}: {value} is not legal" for value in values if value not in flag.values
            ]
    return found


def commands():
    for rig in rigs():
        for want in wants_of(rig):
            plan = decision(rig, want)
            if isinstance(plan, Plan) and (plan.engine, plan.release) in RECORDED:
                argv = launch(plan, Layout(), "/models/m", "/opt/engine").argv
                yield plan.engine, plan.release, argv[3:]


def test_every_flag_of_a_golden_plan_is_legal_in_its_release():
    checked = [faults(*command) for command in commands()]
    assert len(checked) > 10
    assert [fault for found in checked for fault in found] == []


@pytest.mark.parametrize(("engine", "release"), RECORDED)
def test_the_checks_own_flags_are_found_wanting(engine, release):
    assert faults(engine, release, ["--no-such-flag", "x"])
    assert faults(engine, release, ["--kv-cache-dtype", "int2"])
    assert faults(engine, release, ["--kv-cache-dtype"])


REMOVED = {
    ("vllm", "0.33.0"): ["--swap-space", "--use-v2-block-manager"],
    ("vllm", "0.19.1"): ["--swap-space", "--use-v2-block-manager"],
    ("sglang", "0.5.10.post1"): ["--mamba-radix-cache-strategy"],
    ("sglang", "0.5.23"): ["--mamba-scheduler-strategy"],
}


@pytest.mark.parametrize(
    ("engine", "release", "flag"),
    [(*release, flag) for release, flags in REMOVED.items() for flag in flags],
)
def test_a_flag_that_a_release_removed_is_caught(engine, release, flag):
    assert faults(engine, release, [flag, "1"])
