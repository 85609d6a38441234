"""Deciding on the rigs of tests/hosts, with a change to the node where a test needs one."""

import copy

from gpuwright.host import Host
from gpuwright.load import load_matrix
from gpuwright.plan import Plan
from gpuwright.refusals import Refusal
from gpuwright.selection import decide
from gpuwright.want import Want
from tools.golden import document

GIB = 2**30


def decided(rig, data=None, change=None):
    node = copy.deepcopy(document(rig))
    if change is not None:
        change(node)
    return decide(Host.from_document(node), Want.from_data(data or {}), load_matrix())


def planned(rig, data=None, change=None):
    plan = decided(rig, data, change)
    assert isinstance(plan, Plan), plan.sentence()
    return plan


def refused(rig, data=None, change=None):
    refusal = decided(rig, data, change)
    assert isinstance(refusal, Refusal)
    return refusal


def setting(*path, to):
    def change(node):
        at = node
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = to

    return change


def why_not(decision, candidate):
    found = [each.reason for each in decision.why_not if each.candidate == candidate]
    assert len(found) == 1, [each.candidate for each in decision.why_not]
    return found[0]


def warnings_of(plan):
    return [warning.sentence() for warning in plan.warnings]
