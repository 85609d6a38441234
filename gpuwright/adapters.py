"""LoRA adapters that a want names: their rank, their size, and which engine can use them."""

from __future__ import annotations

from collections.abc import Iterator

from gpuwright.engine_rows import ReleaseRow
from gpuwright.model_rows import ModelRow
from gpuwright.named_files import Files, NamedFile
from gpuwright.refusals import Needs, Reason
from gpuwright.remedies import Remedy
from gpuwright.values import LORA_RANKS
from gpuwright.want import Want

_LORA_RANK = 16
"""vLLM's own bound where nobody says one: an adapter of a higher rank is refused by it."""
_GGUF, _PEFT = "gguf", "peft"
_FORMS = {
    _GGUF: "a GGUF file",
    _PEFT: "a directory with adapter_config.json and adapter_model",
}
_NEITHER = f"neither {_FORMS[_GGUF]} nor {_FORMS[_PEFT]}"


def _adapters(want: Want, files: Files | None) -> Iterator[tuple[str, str, NamedFile]]:
    """Name, path and file of each adapter that was looked at and is there."""
    for name, path in (want.lora or {}).items():
        found = (files or {}).get(path)
        if found is not None:
            yield name, path, found


def rank_reasons(want: Want, files: Files | None) -> Iterator[Reason]:
    """Adapters of a higher rank than is pinned."""
    for name, path, found in _adapters(want, files):
        rank = found.adapter.rank if found.adapter is not None else None
        most = want.max_lora_rank
        if rank is None or most is None or rank <= most:
            continue
        fitting = next((each for each in LORA_RANKS if each >= rank), None)
        yield Needs(
            subject=f"lora {name} {path}",
            needed=f"max_lora_rank of at least {rank}",
            found=str(most),
            help=None
            if fitting is None
            else Remedy(words=f"`max_lora_rank: {fitting}`", want=(("max_lora_rank", fitting),)),
        )


def lora_rank(want: Want, files: Files | None) -> int:
    """The rank that engines are told: the pin, or the lowest that holds every adapter."""
    if want.max_lora_rank is not None:
        return want.max_lora_rank
    ranks = [
        found.adapter.rank or 0
        for _, _, found in _adapters(want, files)
        if found.adapter is not None
    ]
    highest = max(ranks, default=0) or _LORA_RANK
    return next((each for each in LORA_RANKS if each >= highest), LORA_RANKS[-1])


def adapter_reason(want: Want, files: Files | None, release: ReleaseRow) -> Reason | None:
    """Why `release` cannot use an adapter as it is; None where it can, or nobody looked."""
    form = _GGUF if _GGUF in release.formats else _PEFT
    for name, path, found in _adapters(want, files):
        subject = f"lora {name} {path} under {release.engine}"
        adapter = found.adapter
        if adapter is None or adapter.format != form:
            held = _NEITHER if adapter is None else _FORMS.get(adapter.format, _NEITHER)
            return Needs(subject=subject, needed=_FORMS[form], found=held, row=release.id)
        if adapter.beyond:
            return Needs(
                subject=subject,
                needed="an adapter of two matrices for each layer",
                found=f"{', '.join(adapter.beyond)} in its configuration",
                row=release.id,
            )
        if form == _PEFT and adapter.rank is None:
            return Needs(
                subject=subject,
                needed="a rank in its adapter_config.json",
                found="none",
                row=release.id,
            )
        if (adapter.rank or 0) > LORA_RANKS[-1]:
            return Needs(
                subject=subject,
                needed=f"a rank of at most {LORA_RANKS[-1]}",
                found=str(adapter.rank),
                row=release.id,
            )
    return None


def of_other_models(want: Want, files: Files | None, model: ModelRow) -> Iterator[str]:
    """A sentence for each adapter that says it was made for another model."""
    repos = [each.repo or "" for each in model.checkpoints]
    known = {each.lower() for each in (model.id, model.name, *model.aliases, *repos)}
    # By the hub, or by a directory of that name.
    names = {each.rpartition("/")[2] for each in known}
    for name, _, found in _adapters(want, files):
        base = found.adapter.base if found.adapter is not None else None
        said = (base or "").lower().rstrip("/")
        if base and said not in known and said.rpartition("/")[2] not in names:
            yield f"lora {name}: made for {base}, served on {model.id}"


def adapter_bytes(want: Want, files: Files | None) -> int | None:
    """Bytes of all adapters' files; None where one was not looked at."""
    sizes = [found.bytes for _, _, found in _adapters(want, files)]
    if len(sizes) < len(want.lora or {}) or None in sizes:
        return None
    return sum(size or 0 for size in sizes)
