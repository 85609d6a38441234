"""From a combination on a node to what its memory plan is asked for."""

from __future__ import annotations

from gpuwright import model_rules
from gpuwright.adapters import adapter_bytes, lora_rank
from gpuwright.engine_rows import MemoryModel, ReleaseRow
from gpuwright.feature_choice import LORA, OFFLOAD, PREFIX_CACHING, VISION
from gpuwright.feature_rows import FeatureSupport, Grade
from gpuwright.features import support_of
from gpuwright.memory.lora import LoraRoom, unknown_shape
from gpuwright.memory.request import DraftMemory, MemoryRequest
from gpuwright.refusals import Needs, Reason
from gpuwright.rows import Scalar
from gpuwright.site import CardSet, Combination, Site, splits_tensors

MAX_SLOTS = 4
"""llama.cpp gives every slot its whole context, so few of them."""
SHARE_CAP = "gpu_memory_share_cap"
"""Percent of a card that a plan may take, where a hazard says so."""


def slots_of(site: Site, release: ReleaseRow, cards: CardSet) -> int:
    """Requests at once that the workload asks for, as far as the engine and the node can."""
    slots = site.pins.workload.max_num_seqs
    if not splits_tensors(release):
        slots = min(slots, MAX_SLOTS)
    if not cards.gpus:
        slots = min(slots, max(1, site.host.cpu_threads or 1))
    return slots


def memory_request(
    site: Site,
    combination: Combination,
    cards: CardSet,
    slots: int,
    settings: dict[str, Scalar],
) -> MemoryRequest | Reason:
    """What the memory plan of `combination` on `cards` is asked for; `slots` as `slots_of` says."""
    model, workload, host = combination.model, site.pins.workload, site.host
    devices = cards.devices
    if SHARE_CAP in settings:
        devices = tuple(each.capped(int(settings[SHARE_CAP])) for each in devices)
    if not devices:
        if site.ram is None:
            return Needs(subject="RAM", needed="a size", found="unknown")
        devices = (site.ram,)
    assert combination.kv is not None
    drafting, drafter = combination.drafting, None
    if drafting is not None and drafting.drafter is not None:
        rows = drafting.drafter.drafts
        drafter = DraftMemory(
            weights_bytes=drafting.drafter.max_bytes or 0,
            groups=rows.groups if rows is not None else None,
        )
    vision = VISION in combination.features
    projector = model_rules.projector(model, combination.release) if vision else None
    context = min(model.max_context_tokens, int(settings.get("max_model_len", 1 << 62)))
    lora = _lora(site, combination) if LORA in combination.features else None
    if lora is not None and not isinstance(lora, LoraRoom):
        return lora
    weights = combination.checkpoint.max_bytes
    assert weights is not None, "model_rules.published_size has refused it"
    terms = site.matrix.terms(combination.release)
    listed = [site.matrix.gpu(gpu) for gpu in cards.kinds]
    quantization = site.matrix.quantization(combination.checkpoint.quantization)
    shares_ram = any(row.unified_memory for row in listed if row is not None)
    ram = site.ram.available_bytes if site.ram is not None and not shares_ram else 0
    return MemoryRequest(
        architecture=model.architecture,
        kv=combination.kv,
        terms=terms,
        row=f"memory_terms {terms.id}" if terms is not None else combination.checkpoint.id,
        engine=combination.release.engine,
        weights_bytes=weights,
        host_bytes=combination.checkpoint.host_bytes,
        ram_bytes=host.memory_total_bytes or 0,
        devices=devices,
        on_gpu=bool(cards.gpus),
        model_context_tokens=context,
        target_context_tokens=min(workload.context_tokens, context),
        target_num_seqs=int(settings.get("max_num_seqs", slots)),
        max_num_batched_tokens=int(
            settings.get("max_num_batched_tokens", workload.max_num_batched_tokens)
        ),
        max_model_len=site.want.max_model_len,
        max_num_seqs=site.want.max_num_seqs,
        steps_may_shrink=site.want.max_num_batched_tokens is None,
        must_draft=site.pins.speculation is not None,
        draft_tokens=drafting.tokens if drafting is not None else 0,
        draft=drafter,
        prefix_caching=PREFIX_CACHING in combination.features,
        vision=vision,
        projector_bytes=(projector.max_bytes or 0) if projector is not None else 0,
        lora=lora,
        offload=_may_offload(site, combination),
        expert_bytes=combination.checkpoint.expert_bytes(model.architecture),
        output_bytes=model.architecture.output_bytes(quantization.output_bits),
        ram_available_bytes=ram,
        shares_ram=shares_ram,
    )


def _lora(site: Site, combination: Combination) -> LoraRoom | Reason:
    """What the engine keeps for the adapters of the want."""
    want, named, release = site.want, site.host.named, combination.release
    count, rank = len(want.lora or {}), lora_rank(want, named)
    model = combination.model
    if (want.served_model_name or model.name) in (want.lora or {}):
        return Needs(
            subject=f"lora {want.served_model_name or model.name}",
            needed="a name of its own",
            found="the one that the model itself answers to",
        )
    sort = release.memory_model
    held = adapter_bytes(want, named) if sort is MemoryModel.LLAMA_CPP else None
    if held is None and (reason := unknown_shape(model.architecture)) is not None:
        return reason
    if sort is MemoryModel.LLAMA_CPP:
        # Files that nobody has looked at may be of 32 bits.
        return LoraRoom(places=count, rank=rank, element_bytes=4, files_bytes=held)
    # Requests without an adapter take a place of SGLang's batch, too.
    every = sort is MemoryModel.SGLANG
    return LoraRoom(places=count + every, rank=rank, everywhere=every)


def _may_offload(site: Site, combination: Combination) -> bool:
    if not combination.offload:
        return False
    row = site.matrix.feature(OFFLOAD)
    answer = support_of(row, combination.release, combination.model, combination.capability)
    return isinstance(answer, FeatureSupport) and answer.grade is Grade.FULL
