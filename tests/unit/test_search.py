"""The search leaves out only what could not have been the best of its engine."""

import random
from dataclasses import replace

import pytest

from benchmarks.decide import sketches
from gpuwright.candidates import Opening, builds, openings
from gpuwright.fits_command import decide_all
from gpuwright.fitting import Candidate
from gpuwright.host import Host
from gpuwright.load import load_matrix
from gpuwright.pins import resolve_pins
from gpuwright.plan import Plan
from gpuwright.question import Question
from gpuwright.ranking import bound, rank
from gpuwright.search import found_of
from gpuwright.selection import decide
from gpuwright.site import Site
from gpuwright.sketch import read_sketch
from gpuwright.want import Want

MATRIX = load_matrix()
RIGS = sketches(MATRIX, 25, seed=4)
WORKLOADS = [row.id for row in MATRIX.workloads]


@pytest.mark.parametrize("index", range(len(RIGS)))
def test_what_is_not_looked_at_would_have_ranked_behind_the_best_of_its_engine(index):
    host = Host.from_document(read_sketch(RIGS[index], MATRIX)[0])
    draw = random.Random(index)
    for model in draw.sample(MATRIX.models, 4):
        want = Want.from_data({"model": model.id, "workload": draw.choice(WORKLOADS)})
        site = Site(host=host, want=want, pins=resolve_pins(want, MATRIX), matrix=MATRIX)
        running, _ = builds(site)
        found = found_of(site, running, model)
        best = {}
        for each, candidate in found.ranked:
            engine = candidate.combination.release.engine
            best[engine] = min(each, best.get(engine, each))
        passed = {each.candidate for each in found.passed(site.pins.workload)}
        for build in running:
            offload = any(each.layers_in_ram for _, each in found.ranked)
            for opening in openings(site, build, model, offload=offload):
                if not isinstance(opening, Opening):
                    continue
                answer = opening.answer(site)
                if not isinstance(answer, Candidate):
                    continue
                least = bound(site, opening.combination, opening.cards)
                ranked = rank(site, least, answer)
                assert least <= ranked
                assert ranked >= best[build[0].engine], (opening.label, opening.label in passed)


@pytest.mark.parametrize("gpus", ["none", ["RTX 3060 Ti"], ["RTX 3090", "RTX 4090"]])
@pytest.mark.parametrize("workload", ["chat", "long-context"])
def test_fits_lists_models_in_the_order_in_which_auto_takes_them(gpus, workload):
    want = Want.from_data({"workload": workload})
    host = Host.from_document(read_sketch({"gpus": gpus}, MATRIX)[0])
    plans, _ = decide_all(Question(host=host, matrix=MATRIX, assumed=()), want)
    assert len(plans) > 5
    left = list(MATRIX.models)
    for plan in plans:
        auto = decide(host, want, replace(MATRIX, models=tuple(left)))
        assert isinstance(auto, Plan)
        assert auto.model == plan.model
        left = [row for row in left if row.id != plan.model]
