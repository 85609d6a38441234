"""Prove a lock: install it by its hashes, import the engine, and ask its choice on every card.

What resolves is not what works: a library that a kernel package imports may have dropped a name
since, and then no attention backend is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from gpuwright.lock_rows import Proof
from gpuwright.records import Cell, Record, load_record, recorded
from gpuwright.versions import at_least
from tools.ask_engine import answers
from tools.engine_environment import CPU, EngineEnvironment
from tools.lock_resolve import LockError, Versions
from tools.record_text import outcome

TOOLCHAIN = "nvcc"


def prove(
    environment: EngineEnvironment,
    expected: Versions,
    capabilities: Sequence[str],
    date: str,
) -> Proof:
    """The proof of what is installed in `environment`; LockError says what is wrong."""
    _check_versions(environment, expected)
    record = _record(environment)
    told = environment.ask({"flags": True}, capability=capabilities[0])
    if record is not None:
        _check_flags(told["flags"], record)
    answers = _answers(environment, capabilities, record)
    return Proof(
        python=told["python"],
        date=date,
        platform=environment.platform(),
        flags=len(told["flags"]),
        answers=answers,
        recorded=record is not None,
        install_seconds=round(environment.seconds),
        installed_bytes=environment.bytes(),
    )


def _record(environment: EngineEnvironment) -> Record | None:
    release = (environment.engine, environment.release)
    return load_record(*release) if environment.cuda and release in recorded() else None


def _check_versions(environment: EngineEnvironment, expected: Versions) -> None:
    found = environment.installed()
    wrong = [
        f"{name}: {expected.get(name, 'nothing')} locked, {found.get(name, 'nothing')} installed"
        for name in sorted(expected.keys() | found.keys())
        if expected.get(name) != found.get(name)
    ]
    if wrong:
        raise LockError("; ".join(wrong))


def _check_flags(told: list[dict[str, object]], record: Record) -> None:
    found = {str(name) for row in told for name in row["names"]}  # type: ignore[attr-defined]
    known = {name for first, flag in record.flags.items() for name in (first, *flag.also)}
    if found != known:
        raise LockError(f"flags differ from the record's: {', '.join(sorted(found ^ known))}")


def _answers(
    environment: EngineEnvironment, capabilities: Sequence[str], record: Record | None
) -> dict[str, int]:
    """How many choices it made on each card, all of them the record's where it has the card."""
    table = record.table() if record else {}
    cells = asked_of(capabilities, table)
    for cell, told in answers(environment, cells).items():
        if cell in table:
            answer, found = table[cell], (*outcome(told), told.get("version"))
            if found != (answer.chosen, answer.constructs, answer.version):
                raise LockError(f"{cell}: recorded {answer.chosen}, found {told}")
        elif told["chosen"] is None or told.get("constructs") is False:
            raise LockError(f"{cell}: {told}")
    made = Counter(cell.capability for cell in cells)
    return {capability: made[capability] for capability in capabilities}


def asked_of(capabilities: Sequence[str], recorded: Collection[Cell]) -> list[Cell]:
    """All that is recorded of a card, else the one that is commonest."""
    known = [c for c in recorded if c.capability in capabilities and c.toolchain == TOOLCHAIN]
    unknown = set(capabilities) - {cell.capability for cell in known}
    return [*known, *(_plain(each) for each in capabilities if each in unknown)]


def _plain(capability: str) -> Cell:
    """Full attention with the commonest head, in what the card computes in."""
    wide = capability == CPU or at_least(capability, "8.0")
    return Cell(
        capability=capability,
        toolchain=TOOLCHAIN,
        dtype="bfloat16" if wide else "float16",
        kv="auto",
        head="128",
        sliding="no",
        sinks="no",
    )
