"""Plans, refusals, nodes and the catalogue as text for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gpuwright.cards import Gpu
from gpuwright.catalogue import Matrix
from gpuwright.host import Host
from gpuwright.model_rows import Role
from gpuwright.plan import KV_CACHE, WEIGHTS, MemoryPlan, Plan, Rejection, shown_address
from gpuwright.quoting import counted
from gpuwright.refusals import Refusal, gib
from gpuwright.sizes import size_words
from gpuwright.unified import with_ram_as_memory

FULL_PERCENT, FULL_LANES = 100, 16
"""Of a card that is not held down: what needs no word."""
MANY = 100
"""Rejections of one model on one node that a person may still read."""


def explain_host(host: Host, matrix: Matrix) -> str:
    """What the node is: system, processor, memory, cards."""
    threads = counted(host.cpu_threads, "thread") if host.cpu_threads else "unknown threads"
    lines = [
        f"system   {host.os_name or host.os_id or 'unknown'}, {host.architecture or 'unknown'}, "
        f"glibc {host.glibc or 'unknown'}",
        f"CPU      {host.cpu_model or 'unknown'}, {threads}",
        f"RAM      {gib(host.memory_total_bytes) if host.memory_total_bytes else 'unknown'}",
    ]
    for gpu in with_ram_as_memory(host, matrix).gpus:
        row = matrix.gpu(gpu)
        size = gib(gpu.total_bytes) if gpu.total_bytes is not None else "unknown size"
        if row is not None and row.unified_memory:
            size += ", which is the RAM"
        held = f", {gib(gpu.others_bytes)} held by others" if gpu.others_bytes else ""
        lines.append(
            f"GPU {gpu.index}    {gpu.name}, capability {gpu.compute_capability or 'unknown'}, "
            f"{size}{held}, {'row ' + row.id if row else 'unlisted'}{_condition(gpu)}"
        )
    if not host.gpus or host.gpu_status != "ok":
        lines.append(f"GPU      {host.gpu_status}: {host.gpu_detail or 'none'}")
    if host.gpus:
        lines.append(f"driver   {host.driver_version or 'unknown'}")
    if len(host.gpus) > 1:
        lines.append(f"link     {_link(host)}")
    lines += [f"beside   {text}" for text in host.ignored]
    return "\n".join(lines)


def _condition(gpu: Gpu) -> str:
    """What is out of the ordinary with a card."""
    odd = []
    if gpu.failing:
        odd.append("failing" + (f" (Xid {', '.join(map(str, gpu.xids))})" if gpu.xids else ""))
    if gpu.mig is not None:
        odd.append(f"MIG on ({', '.join(gpu.mig) or 'no instance'})")
    if gpu.vgpu not in (None, "none"):
        odd.append(f"virtualized ({gpu.vgpu})")
    if gpu.display:
        odd.append("a desktop on it")
    if gpu.power_percent is not None and gpu.power_percent < FULL_PERCENT:
        odd.append(f"power held at {gpu.power_percent} %")
    if gpu.lanes is not None and gpu.lanes < FULL_LANES:
        odd.append(f"PCIe x{gpu.lanes}")
    return "".join(f", {text}" for text in odd)


def _link(host: Host) -> str:
    """What connects the cards; named are those of which not all are connected alike."""
    every = frozenset(gpu.index for gpu in host.gpus)
    if all(gpu.nvlink and gpu.linked in (None, every - {gpu.index}) for gpu in host.gpus):
        return "NVLink"
    pairs = sorted(
        (gpu.index, other) for gpu in host.gpus for other in gpu.linked or () if gpu.index < other
    )
    if pairs:
        return f"NVLink between GPU {', '.join(f'{a} and {b}' for a, b in pairs)}; else PCIe"
    if all(gpu.reached == every - {gpu.index} for gpu in host.gpus):
        return "PCIe, the cards reach each other's memory"
    return "PCIe"


def explain_plan(plan: Plan, *, brief: bool = False) -> str:
    """The plan with its memory, reasons and rivals; `brief` is a line each and no rivals."""
    cards = ", ".join(f"GPU {gpu.index} ({gpu.name})" for gpu in plan.gpus) or "the CPU"
    requests = "one request" if plan.max_num_seqs == 1 else f"{plan.max_num_seqs} requests"
    cached, whole = plan.figures.get("kv_cache_tokens"), plan.max_model_len * plan.max_num_seqs
    shared = f", which share {cached:,} tokens of cache" if cached and cached < whole else ""
    lines = [
        f"{plan.service}: {plan.model} ({plan.checkpoint}, {plan.quantization}) with {plan.engine} "
        f"{plan.release} {plan.build_tag} on {cards}",
        f"  serves     {plan.served_model_name} at {shown_address(plan.bind)}:{plan.port}",
        f"  context    {plan.max_model_len:,} tokens, {requests} at once{shared}",
        f"  attention  {plan.attention_backend}, {plan.kv_cache_dtype} cache"
        + (
            f", tensor parallel {plan.tensor_parallel_size}"
            if plan.tensor_parallel_size > 1
            else ""
        ),
    ]
    if plan.speculation is not None:
        drafter = f", drafter {plan.speculation.drafter}" if plan.speculation.drafter else ""
        lines.append(
            f"  drafts     {plan.speculation.tokens} by {plan.speculation.method}{drafter}"
        )
    if plan.projector is not None:
        lines.append(f"  images     by the projector {plan.projector}")
    if plan.not_applicable is not None:
        lines.append(f"  not applicable: {plan.not_applicable}")
    if brief:
        memory = plan.memory
        lines.append(
            f"  memory     {gib(memory.needed_bytes)} of {gib(memory.available_bytes)} "
            f"of {memory.where}"
        )
    else:
        lines += ["", f"memory of {plan.memory.where}", *_memory_table(plan.memory)]
        lines += section("memory of each card", _uneven(plan))
    lines += section("why", plan.reasons, brief=brief)
    lines += section("warnings", [each.sentence() for each in plan.warnings], brief=brief)
    lines += section("assumed", plan.assumed, brief=brief)
    if not brief:
        lines += section("why not", _rejections(plan.why_not))
    return "\n".join(lines)


def explain_refusal(refusal: Refusal) -> str:
    """The refusal with every candidate's reason and what would help."""
    lines = [f"refused: {refusal.summary}"]
    if refusal.why_not:
        lines += section("candidates", _rejections(refusal.why_not))
    else:
        lines += section("why", refusal.reasons)
    lines += section("what would help", refusal.remedies)
    return "\n".join(lines)


def _memory_table(memory: MemoryPlan) -> Iterator[str]:
    for term in memory.terms:
        note = f"  {term.note}" if term.note else ""
        yield f"  {term.name:<18}{term.bytes / 2**30:>8.2f} GiB{note}"
    yield f"  {'needed':<18}{memory.needed_bytes / 2**30:>8.2f} GiB"
    yield f"  {'can be had':<18}{memory.available_bytes / 2**30:>8.2f} GiB"
    yield f"  {'stays free':<18}{memory.margin_bytes / 2**30:>8.2f} GiB"


def _uneven(plan: Plan) -> list[str]:
    """A line for each card, where they do not all hold the same."""
    if len({each.needed_bytes for each in plan.devices}) < 2:
        return []
    return [
        f"{each.where}: {gib(each.bytes_of(WEIGHTS))} of weights, "
        f"{gib(each.bytes_of(KV_CACHE))} of cache, {gib(each.margin_bytes)} of "
        f"{gib(each.available_bytes)} stay free"
        for each in plan.devices
    ]


def rivals(rejections: Iterable[Rejection]) -> dict[str, Rejection]:
    """Of each release and build one that lost: the best of those that fit, else the first."""
    found: dict[str, Rejection] = {}
    for each in rejections:
        name = each.candidate.split(",")[0]
        if name not in found or (_fits(each) and not _fits(found[name])):
            found[name] = each
    return found


def _fits(rejection: Rejection) -> bool:
    return rejection.reason.startswith("fits")


def _rejections(rejections: Sequence[Rejection]) -> Sequence[str]:
    """A line each; where they are too many to read, one for each release and build."""
    shown = rejections if len(rejections) <= MANY else tuple(rivals(rejections).values())
    lines = [
        f"{each.candidate}: {each.reason}" + (f" [{each.row}]" if each.row else "")
        for each in shown
    ]
    if len(shown) < len(rejections):
        lines.append(f"{len(rejections) - len(shown)} more: --json lists them")
    return lines


def section(title: str, entries: Sequence[str], *, brief: bool = False) -> list[str]:
    """Lines of a titled list, after a blank one; none where there are no entries."""
    if not entries:
        return []
    if brief:
        return [f"  {title}: {entry}" for entry in entries]
    return ["", title, *(f"  - {entry}" for entry in entries)]


def list_models(matrix: Matrix) -> str:
    """The catalogue's models with their checkpoints."""
    lines = []
    for model in matrix.models:
        lines.append(
            f"{model.id}  ({model.name}, context {model.max_context_tokens:,}, {model.licence})"
        )
        for row in model.checkpoints:
            size = size_words(*row.weights) if row.weights is not None else "size unknown"
            role = "" if row.role is Role.WEIGHTS else f"{row.role}, "
            engines = ", ".join(row.engines) or "no engine of ours"
            pinned = "pinned" if row.files is not None else "plans only, not pinned"
            lines.append(
                f"  {row.id:<36} {row.quantization:<9} {size:>16}  {engines}  ({role}{pinned})"
            )
    return "\n".join(lines)
