"""Hazard rows: each meets what it describes, and misses as soon as one condition is broken."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest

from gpuwright.hazard_rows import PARAMETERS, Compiler, HazardRow, When
from gpuwright.hazard_settings import settings_of
from gpuwright.hazards import Surroundings, hazards_of
from gpuwright.host import Gpu
from gpuwright.load import MATRIX as MATRIX_DIRECTORY
from gpuwright.load import load_matrix
from gpuwright.rows import Effect
from gpuwright.site import Combination, Drafting
from gpuwright.versions import at_least, within

MATRIX = load_matrix()
GIB = 2**30
BY_ID = {row.id: row for row in MATRIX.hazards}
NUMBERS = (1, 2, 3, 4, 5, 8, 9, 16, 300, 535, 580, 2048, 8192, 20480, 163841, 262144)
CAPABILITIES = ("6.1", "7.0", "7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0", "12.1")


def first(rows, fits=lambda row: True):
    return next(row for row in rows if fits(row))


def number_in(spec: str) -> int:
    return first(NUMBERS, lambda value: within(str(value), spec))


def number_outside(spec: str) -> int:
    return first(NUMBERS, lambda value: not within(str(value), spec))


def word_of(words: tuple[str, ...], other: str = "") -> str:
    return words[0] if words else other


def card(row, index, capability, nvlink, below):
    total = row.memory_mib * 2**20 if row is not None else 24 * GIB
    if below is not None:
        total = min(total, (below - 1) * 2**20)
    return Gpu(
        index=index,
        uuid=f"GPU-{index}",
        pci_id=(row.pci_ids or (None,))[0] if row is not None else None,
        name=row.name if row is not None else "a card without a row",
        compute_capability=capability,
        total_bytes=total,
        others_bytes=0,
        unexplained_bytes=0,
        nvlink=nvlink,
    )


def cards_for(when: When) -> tuple[Gpu, ...]:
    if when.device == "cpu":
        return ()
    row = first(
        MATRIX.gpus,
        lambda row: (
            (not when.kinds or row.kind in when.kinds)
            and (not when.gpus or row.id in when.gpus)
            and (when.unified_memory is None or row.unified_memory is when.unified_memory)
            and (not when.capabilities or within(row.compute_capability, when.capabilities))
        ),
    )
    count = max(number_in(when.cards or when.tensor_parallel), 2 if when.mixed_cards else 1)
    gpus = [
        card(row, index, row.compute_capability, when.nvlink is not False, when.card_below_mib)
        for index in range(count)
    ]
    gpus[-1] = replace(
        gpus[-1],
        lanes=number_in(when.pcie_lanes) if when.pcie_lanes else None,
        power_percent=number_in(when.power_percent) if when.power_percent else None,
        vgpu=when.vgpus[0] if when.vgpus else "none",
    )
    gpus[:-1] = [replace(gpu, lanes=16, power_percent=100) for gpu in gpus[:-1]]
    if when.mixed_cards:
        gpus[-1] = replace(gpus[-1], compute_capability="9.9")
    return tuple(gpus)


def drafting_of(tokens: int) -> Drafting:
    row = MATRIX.feature("mtp")
    return Drafting(row=row, support=row.engines["vllm"][0], tokens=tokens)


def release_fits(hazard: HazardRow, release) -> bool:
    when = hazard.when
    return (
        (not when.engines or release.engine in when.engines)
        and (hazard.introduced is None or at_least(release.release, hazard.introduced))
        and (hazard.fixed is None or not at_least(release.release, hazard.fixed))
        and (not when.kv_cache_dtypes or bool({*when.kv_cache_dtypes} & {*release.kv_cache_dtypes}))
        and any(tag_fits(when, tag) for tag in release.build_tags)
    )


def tag_fits(when: When, tag) -> bool:
    return (
        (not when.build_tags or tag.tag in when.build_tags)
        and (not when.cuda or tag.cuda in when.cuda)
        and tag.device == (when.device or "cuda")
    )


def model_fits(when: When, model) -> bool:
    kinds = {group.kind for group in model.architecture.groups}
    return (
        (not when.families or model.family in when.families)
        and (not when.models or model.id in when.models)
        and (not when.layers or bool(kinds & {*when.layers}))
    )


def met(hazard: HazardRow) -> tuple[Combination, Surroundings]:
    """What `hazard` is about, put together from the rows of the matrix."""
    when = hazard.when
    gpus = cards_for(when)
    for release in filter(lambda row: release_fits(hazard, row), MATRIX.releases):
        tag = first(release.build_tags, lambda tag: tag_fits(when, tag))
        dtypes = [name for name in when.kv_cache_dtypes if name in release.kv_cache_dtypes]
        backends = [
            row
            for row in MATRIX.backends(release.engine)
            if (not when.backends or row.backend in when.backends)
            and row.backend not in when.not_backends
        ]
        for model in filter(lambda row: model_fits(when, row), MATRIX.models):
            for checkpoint in model.weights:
                combination = Combination(
                    release=release,
                    tag=tag,
                    model=model,
                    checkpoint=checkpoint,
                    gpus=gpus,
                    backend=backends[0],
                    kv=MATRIX.kv_cache_dtype((dtypes or release.kv_cache_dtypes)[0]),
                    drafting=drafting_of(number_in(when.draft_tokens or ">=1"))
                    if when.speculative or when.draft_tokens
                    else None,
                    features=frozenset(when.features),
                )
                if (
                    checkpoint.format in release.formats
                    and (not when.quantizations or checkpoint.quantization in when.quantizations)
                    and (not when.formats or checkpoint.format in when.formats)
                    and (when.experts_misfit is None or combination.experts_misfit)
                    and (when.ram_misfit is None or checkpoint.max_bytes is not None)
                ):
                    return combination, surroundings_for(when)
    raise AssertionError(f"{hazard.id}: nothing in the matrix is like that")


def surroundings_for(when: When) -> Surroundings:
    return Surroundings(
        driver=str(number_in(when.drivers)) if when.drivers else "580",
        virtualization=word_of(when.virtualizations, "none"),
        cpu=word_of(when.cpus, "A CPU") + " with cores",
        ram_bytes=1 if when.ram_misfit else 2**50,
        compiler=when.compiler[0] if when.compiler else Compiler.PRESENT,
        max_model_len=number_in(when.max_model_len),
        max_num_seqs=number_in(when.max_num_seqs),
        max_num_batched_tokens=number_in(when.max_num_batched_tokens),
    )


def on(combination, gpus) -> Combination:
    return replace(combination, gpus=gpus)


def other_card(combination, fits: Callable[[Any], bool]) -> Combination:
    row = first(MATRIX.gpus, fits)
    return on(
        combination,
        tuple(
            replace(gpu, name=row.name, pci_id=(row.pci_ids or (None,))[0])
            for gpu in combination.gpus
        ),
    )


def without_words(when: When, key: str, words) -> Any:
    return first(words, lambda word: word not in getattr(when, key))


def break_of(name: str, when: When, met: Combination, around: Surroundings):
    """The same combination with the one condition `name` broken."""
    value = getattr(when, name)
    gpus = met.gpus
    match name:
        case "engines":
            release = first(MATRIX.releases, lambda row: row.engine not in value)
            return replace(met, release=release), around
        case "build_tags" | "cuda":
            tag = replace(met.tag, tag="another", cuda="99.0")
            return replace(met, tag=tag), around
        case "device":
            return replace(met, tag=replace(met.tag, device="none")), around
        case "backends":
            return replace(met, backend=replace(met.backend, backend="another")), around
        case "not_backends":
            return replace(met, backend=replace(met.backend, backend=value[0])), around
        case "kv_cache_dtypes":
            row = first(MATRIX.kv_cache_dtypes, lambda row: row.id not in value)
            return replace(met, kv=row), around
        case "quantizations":
            return replace(met, checkpoint=replace(met.checkpoint, quantization="other")), around
        case "formats":
            return replace(met, checkpoint=replace(met.checkpoint, format="other")), around
        case "families":
            return replace(met, model=replace(met.model, family="other")), around
        case "models":
            return replace(met, model=replace(met.model, id="other")), around
        case "layers":
            other = [group for group in met.model.architecture.groups if group.kind not in value]
            architecture = replace(met.model.architecture, groups=tuple(other))
            return replace(met, model=replace(met.model, architecture=architecture)), around
        case "experts_misfit":
            return replace(met, checkpoint=replace(met.checkpoint, group_size=0)), around
        case "speculative":
            return replace(met, drafting=None), around
        case "draft_tokens":
            return replace(met, drafting=drafting_of(number_outside(value))), around
        case "features":
            return replace(met, features=met.features - {*value}), around
        case "not_features":
            return replace(met, features=met.features | {value[0]}), around
        case "capabilities":
            capability = first(CAPABILITIES, lambda each: not within(each, value))
            return on(met, tuple(replace(g, compute_capability=capability) for g in gpus)), around
        case "kinds":
            return other_card(met, lambda row: row.kind not in value), around
        case "gpus":
            return other_card(met, lambda row: row.id not in value), around
        case "unified_memory":
            return other_card(met, lambda row: row.unified_memory is not value), around
        case "card_below_mib":
            return on(met, tuple(replace(gpu, total_bytes=value * 2**20) for gpu in gpus)), around
        case "cards" | "tensor_parallel":
            count = number_outside(value)
            return on(met, tuple(replace(gpus[0], index=n) for n in range(count))), around
        case "mixed_cards":
            return on(met, (gpus[0],) * len(gpus)), around
        case "nvlink":
            return on(met, tuple(replace(gpu, nvlink=not value) for gpu in gpus)), around
        case "pcie_lanes":
            lanes = number_outside(value)
            return on(met, tuple(replace(gpu, lanes=lanes) for gpu in gpus)), around
        case "power_percent":
            percent = number_outside(value)
            return on(met, tuple(replace(gpu, power_percent=percent) for gpu in gpus)), around
        case "vgpus":
            return on(met, tuple(replace(gpu, vgpu="none") for gpu in gpus)), around
        case "drivers":
            return met, replace(around, driver=str(number_outside(value)))
        case "virtualizations":
            return met, replace(around, virtualization="another")
        case "cpus":
            return met, replace(around, cpu="Another")
        case "compiler":
            return met, replace(around, compiler=without_words(when, "compiler", Compiler))
        case "ram_misfit":
            return met, replace(around, ram_bytes=2**50)
        case "max_model_len" | "max_num_seqs" | "max_num_batched_tokens":
            return met, replace(around, **{name: number_outside(value)})
    raise AssertionError(f"no way to break {name}")


def meets(hazard, combination, around):
    matrix = replace(MATRIX, hazards=(hazard,))
    return list(hazards_of(combination, matrix, around)) == [hazard]


each_hazard = pytest.mark.parametrize("hazard", MATRIX.hazards, ids=lambda hazard: hazard.id)


@each_hazard
def test_a_hazard_meets_what_it_describes_and_nothing_that_lacks_one_condition(hazard):
    combination, around = met(hazard)
    assert meets(hazard, combination, around)
    for name in hazard.when.named:
        broken = break_of(name, hazard.when, combination, around)
        assert not meets(hazard, *broken), name


@each_hazard
def test_a_hazard_lives_in_its_releases_alone(hazard):
    combination, around = met(hazard)
    release = combination.release
    if hazard.fixed is not None:
        later = replace(release, release=hazard.fixed)
        assert not meets(hazard, replace(combination, release=later), around)
    if hazard.introduced is not None:
        earlier = replace(release, release="0.0.1")
        assert not meets(hazard, replace(combination, release=earlier), around)
    assert not meets(replace(hazard, introduced="999999"), combination, around)
    assert not meets(replace(hazard, fixed=release.release), combination, around)


@each_hazard
def test_a_hazard_says_what_to_do_instead_or_only_warns(hazard):
    assert hazard.instead or hazard.effect is Effect.WARN


def test_there_are_at_least_forty_hazards():
    assert len(MATRIX.hazards) >= 40


def test_every_condition_and_parameter_is_documented():
    readme = (MATRIX_DIRECTORY / "hazards" / "README.md").read_text(encoding="utf-8")
    for each in fields(When):
        assert f"`{each.name}`" in readme, each.name
    for key in PARAMETERS:
        assert f"`{key}`" in readme, key


def test_what_is_not_known_meets_no_condition_on_it():
    for hazard in MATRIX.hazards:
        combination, _ = met(hazard)
        asks = {"drivers", "virtualizations", "cpus", "ram_misfit", "max_model_len"}
        if asks & {*hazard.when.named}:
            assert not meets(hazard, combination, Surroundings()), hazard.id


def test_of_several_ceilings_the_least_counts_and_a_pin_stays():
    rows = [
        BY_ID["unified-memory-share"],
        BY_ID["sglang-hybrid-graphs-on-small-cards"],
        BY_ID["pcie-custom-all-reduce"],
    ]
    assert settings_of(rows) == settings_of(reversed(rows))
    found = settings_of(rows, pinned=frozenset({"custom_all_reduce"}))
    assert found == {
        "gpu_memory_share_cap": 82,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 8192,
        "graph_batch_cap": 4,
    }
