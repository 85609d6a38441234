"""Hazard rows: each meets something that the matrix can plan, and its range is kept."""

import itertools
from dataclasses import replace

import pytest

from gpuwright.hazards import hazards_of
from gpuwright.host import Gpu
from gpuwright.load import load_matrix
from gpuwright.site import Combination

MATRIX = load_matrix()
CAPABILITIES = ("7.5", "8.6", "8.9", "9.0", "12.0")


def card(capability, nvlink):
    return Gpu(
        index=0,
        uuid="GPU-0",
        pci_id=None,
        name="card",
        compute_capability=capability,
        total_bytes=24 * 2**30,
        others_bytes=0,
        unexplained_bytes=0,
        nvlink=nvlink,
    )


def combinations(hazard):
    """Everything of the matrix that the hazard's engine, model and format leave open."""
    when = hazard.when
    devices = [
        (card(c, link),) * n for c in CAPABILITIES for link in (True, None) for n in (1, 2, 4)
    ]
    for release, model in itertools.product(MATRIX.releases, MATRIX.models):
        if when.engines and release.engine not in when.engines:
            continue
        for checkpoint, tag, gpus, backend, dtype in itertools.product(
            model.checkpoints,
            release.build_tags,
            devices,
            MATRIX.backends(release.engine),
            release.kv_cache_dtypes,
        ):
            if checkpoint.format in release.formats:
                yield Combination(
                    release=release,
                    tag=tag,
                    model=model,
                    checkpoint=checkpoint,
                    gpus=gpus,
                    backend=backend,
                    kv=MATRIX.kv_cache_dtype(dtype),
                )


def meets(hazard, combination):
    matrix = replace(MATRIX, hazards=(hazard,))
    speculative = hazard.when.speculative is True
    return list(hazards_of(combination, matrix, speculative=speculative)) == [hazard]


@pytest.mark.parametrize("hazard", MATRIX.hazards, ids=lambda hazard: hazard.id)
def test_a_hazard_meets_something_and_not_everything(hazard):
    first = next((each for each in combinations(hazard) if meets(hazard, each)), None)
    assert first is not None
    other = next(row for row in MATRIX.releases if row.engine not in hazard.when.engines)
    assert not hazard.when.engines or not meets(hazard, replace(first, release=other))


def fixture():
    hazard = next(row for row in MATRIX.hazards if row.id == "vllm-below-ampere")
    return hazard, next(each for each in combinations(hazard) if meets(hazard, each))


def test_a_hazard_ends_with_the_release_that_fixes_it():
    hazard, met = fixture()
    fixed = replace(hazard, fixed=met.release.release)
    assert not meets(fixed, met)
    assert meets(replace(hazard, fixed="99.0"), met)


def test_a_hazard_begins_with_the_release_that_introduces_it():
    hazard, met = fixture()
    assert not meets(replace(hazard, introduced="99.0"), met)
    assert meets(replace(hazard, introduced=met.release.release), met)


def test_a_hazard_ends_where_its_capabilities_do():
    hazard, met = fixture()
    assert not meets(hazard, met.on((card("8.6", None),)))
