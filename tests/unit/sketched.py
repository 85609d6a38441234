"""Deciding on sketched nodes: cards by name, and whatever else a test says of the node."""

from gpuwright.host import Host
from gpuwright.load import load_matrix
from gpuwright.plan import Plan
from gpuwright.refusals import Refusal
from gpuwright.selection import decide
from gpuwright.sketch import read_sketch
from gpuwright.want import Want


def decided_on(gpus, data, **sketch):
    matrix, want = load_matrix(), Want.from_data(data)
    document, _ = read_sketch({"gpus": gpus, **sketch}, matrix, want.layout)
    return decide(Host.from_document(document), want, matrix)


def planned_on(gpus, data, **sketch):
    plan = decided_on(gpus, data, **sketch)
    assert isinstance(plan, Plan), plan.sentence()
    return plan


def refused_on(gpus, data, **sketch):
    refusal = decided_on(gpus, data, **sketch)
    assert isinstance(refusal, Refusal), refusal
    return refusal
