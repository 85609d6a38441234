"""Plan the whole inventory in one pass: every host has a plan, or no host is touched."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyinfra.api import DeployError, HiddenValue, Host, State

from deploys.operations.llama_cpp import builds_directory, sum_of
from deploys.steps import gather
from deploys.steps.once import Run, Runs, once
from gpuwright.carry import NEEDED
from gpuwright.converge import Changes, changes
from gpuwright.expectation import (
    expectation,
    gate_spec,
    making_spec,
    probe_packages,
    probe_spec,
)
from gpuwright.expected import Expected
from gpuwright.explain import explain_plan, explain_refusal
from gpuwright.fetching import FetchSpecs, fetch_specs
from gpuwright.host import Host as Node
from gpuwright.load import load_matrix
from gpuwright.pins import read_checked
from gpuwright.plan import Plan
from gpuwright.quoting import counted
from gpuwright.refusals import HostError, MatrixError, Refusal, WantError
from gpuwright.rehearsals import rehearsal_spec
from gpuwright.running import obstacle, remarks
from gpuwright.selection import decide
from gpuwright.sharing import Need, Part, parts
from gpuwright.units import UnitError
from gpuwright.want import Want

TEMPLATES = Path(__file__).resolve().parents[2] / "templates"


@dataclass(frozen=True, kw_only=True)
class Share:
    """A node's part in the one build that equal nodes have."""

    part: Part = Part.NONE
    compiles: bool = False
    spec: Mapping[str, Any] | None = None
    packed: Path | None = None
    """On the control machine."""
    wanted: tuple[Path, ...] = ()
    """Packed builds of this run."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """One host with everything that the steps need to know of it."""

    plan: Plan
    expected: Expected
    changes: Changes
    remarks: tuple[str, ...]
    fetch: FetchSpecs
    token: HiddenValue | None
    """The hub's token, read from the operator's file; it goes to standard inputs only."""
    build: Mapping[str, Any] | None
    """Of an engine that is built from its source."""
    environment: Mapping[str, Any] | None
    """Of an engine that is installed from its lock."""
    rehearsal: Mapping[str, Any] | None
    gate: Mapping[str, Any]
    keep_engines: int
    share: Share = Share()


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """A host's plan before anybody asks whether it can be applied."""

    host: Host
    want: Want
    document: Mapping[str, Any]
    node: Node
    plan: Plan


class _NoPlanError(Exception):
    """A host has no plan, or none that can be applied: one sentence, and for explain all of it."""

    def __init__(self, sentence: str, explanation: str | None = None) -> None:
        super().__init__(sentence)
        self.explanation = explanation or f"refused: {sentence}"


_FAULTS = (_NoPlanError, WantError, HostError, MatrixError, UnitError)
_plans: Runs = Runs()
_works: Runs = Runs()


def explained() -> None:
    """Print what every host of the run would serve and why, or why not; once for all of them.

    DeployError at the end when some host has no plan. Nothing is changed.
    """
    once(_plans, _explain_all)


def work() -> Work:
    """What is to be done on the host in context, decided together with all others.

    DeployError names every host without a plan that can be applied, one line each, and every host
    gets the same one, so that no host is touched.
    """
    found: Work = once(_works, _work_all)
    return found


def _explain_all(state: State) -> Run:
    answers, faults = _answers(state)
    for host in sorted(state.inventory.get_active_hosts(), key=_name):
        if host in answers:
            text = explain_plan(answers[host].plan)
        else:
            fault = faults[_name(host)]
            text = fault.explanation if isinstance(fault, _NoPlanError) else f"refused: {fault}"
        for line in text.splitlines():
            host.log(line)
    return _sentence(state, faults) if faults else {}


def _work_all(state: State) -> Run:
    answers, faults = _answers(state)
    works: dict[Host, Work] = {}
    for host, answer in answers.items():
        try:
            works[host] = _work(answer)
        except _FAULTS as error:
            faults[_name(host)] = error
    works = _shared(works)
    if not faults:
        asked = {host: (work.fetch.preflight(), work.token) for host, work in works.items()}
        for name, sentence in gather.preflight(state, asked).items():
            faults[name] = _NoPlanError(sentence)
    if faults:
        return _sentence(state, faults)
    for host in sorted(works, key=_name):
        found = works[host]
        for line in explain_plan(found.plan, brief=True).splitlines():
            host.log(line)
        for line in found.remarks:
            host.log(f"  warning: {line}")
        for line in found.changes.reasons() or ("nothing to change",):
            host.log(f"  - {line}")
    return dict(works)


def _answers(state: State) -> tuple[dict[Host, _Answer], dict[str, Exception]]:
    """Every active host's plan, and for every host that has none why."""
    faults: dict[str, Exception] = {}
    for host in state.failed_hosts:
        if not _may_be_missing(host):
            faults[_name(host)] = _NoPlanError(
                "not reached over SSH (--data allow_unreachable=true goes on without it)"
            )
    wants: dict[Host, Want] = {}
    specs: dict[Host, dict[str, Any]] = {}
    for host in sorted(state.inventory.get_active_hosts(), key=_name):
        try:
            wants[host] = _want(host)
            specs[host] = probe_spec(
                wants[host], verify=_verify(host), packages=probe_packages(load_matrix())
            )
        except _FAULTS as error:
            faults[_name(host)] = error
    answers: dict[Host, _Answer] = {}
    for host, document in gather.documents(state, specs.items()).items():
        try:
            answers[host] = _answer(host, wants[host], document)
        except _FAULTS as error:
            faults[_name(host)] = error
    faults |= _same_machines(answers)
    return answers, faults


def _same_machines(answers: Mapping[Host, _Answer]) -> dict[str, Exception]:
    """Entries that are one and the same machine: they would be planned as if each were alone."""
    seen: dict[str, Host] = {}
    faults: dict[str, Exception] = {}
    for host, answer in answers.items():
        identity = answer.document["os"].get("identity")
        if identity is None:
            continue
        first = seen.setdefault(identity, host)
        if first is not host:
            for one, other in ((host, first), (first, host)):
                faults[_name(one)] = _NoPlanError(
                    f"is the same machine as {_name(other)}: one entry of a machine in a run; "
                    "several services come from several inventories, one run after the other"
                )
    return faults


def _answer(host: Host, want: Want, document: Mapping[str, Any]) -> _Answer:
    if "schema" not in document:
        raise _NoPlanError(str(document.get("error") or "the probe gave no answer"))
    node = Node.from_document(document)
    result = decide(node, want, load_matrix(want.extra_models))
    if isinstance(result, Refusal):
        raise _NoPlanError(result.sentence(), explain_refusal(result))
    return _Answer(host=host, want=want, document=document, node=node, plan=result)


def _work(answer: _Answer) -> Work:
    want, plan, document = answer.want, answer.plan, answer.document
    if document.get("by") == "shell":
        raise _NoPlanError(f"{NEEDED}, found one that does not run")
    if plan.not_applicable:
        raise _NoPlanError(
            f"{plan.engine} {plan.release} ({plan.build_tag}): {plan.not_applicable}"
        )
    wanted = expectation(
        want=want,
        node=answer.node,
        plan=plan,
        matrix=load_matrix(want.extra_models),
        templates=TEMPLATES,
    )
    if found := obstacle(wanted.expected, document):
        raise _NoPlanError(found)
    todo = changes(wanted.expected, document)
    verify = _verify(answer.host)
    fetch = fetch_specs(
        want=want,
        expected=wanted.expected,
        archives=wanted.making.files,
        changes=todo,
        verify=verify,
    )
    making = making_spec(wanted, want, verify=verify)
    return Work(
        plan=plan,
        expected=wanted.expected,
        changes=todo,
        remarks=remarks(wanted.expected, document),
        fetch=fetch,
        token=_hidden(want.hub_token()) if fetch.needs_token else None,
        build=None if wanted.expected.installed else making,
        environment=making if wanted.expected.installed else None,
        rehearsal=rehearsal_spec(wanted.expected, wanted.start, wanted.serve, wanted.cards)
        if wanted.expected.installed
        else None,
        gate=gate_spec(wanted),
        keep_engines=want.keep_engines,
    )


def _shared(works: Mapping[Host, Work]) -> dict[Host, Work]:
    """The same with each build made once: who takes it over fetches and installs nothing for it."""
    built = {host: work for host, work in works.items() if work.build is not None}
    needs = [
        Need(
            host=_name(host),
            engine_dir=work.expected.engine_dir,
            stands=work.changes.build is None,
        )
        for host, work in built.items()
    ]
    packed = {each.engine_dir: _packed(each.engine_dir) for each in needs}
    kept = [name for name, path in packed.items() if path.exists() and sum_of(path).exists()]
    found = parts(needs, kept)
    shared = dict(works)
    for host, work in built.items():
        part, compiles = found[_name(host)]
        assert work.build is not None
        name = packed[work.expected.engine_dir].name
        share = Share(
            part=part,
            compiles=compiles,
            spec={**work.build, "packed": f"{work.build['work_dir']}.{name}"},
            packed=packed[work.expected.engine_dir],
            wanted=tuple(sorted(set(packed.values()))),
        )
        changes = work.changes
        fetch = work.fetch
        if part is Part.TAKES:
            fetch = replace(fetch, archive=None)
            unneeded = set(work.expected.build_packages) - set(work.expected.runtime_packages)
            left = tuple(each for each in changes.packages if each not in unneeded)
            reason = f"take over from an equal node: {changes.build}"
            changes = replace(changes, packages=left, build=reason)
        shared[host] = replace(work, share=share, changes=changes, fetch=fetch)
    return shared


def _packed(engine_dir: str) -> Path:
    return builds_directory() / f"{engine_dir.rsplit('/', 1)[-1]}.tar"


def _hidden(token: str | None) -> HiddenValue | None:
    return None if token is None else HiddenValue(token)


def _want(host: Host) -> Want:
    data = host.data.get("gpuwright")
    if data is None:
        raise WantError("gpuwright: missing from the host's data; {'model': 'auto'} will do")
    return read_checked(data)[0]


def _verify(host: Host) -> str:
    verify = host.data.get("verify") or "quick"
    if verify not in ("quick", "full"):
        raise WantError(f"verify: {verify!r}, needed quick or full")
    return str(verify)


def _may_be_missing(host: Host) -> bool:
    """Whether the operator goes on without this host when it cannot be reached."""
    word = host.data.get("allow_unreachable")
    if word is not None and not isinstance(word, bool):
        raise DeployError(f"allow_unreachable: {word!r}, needed true or false")
    return bool(word)


def _name(host: Host) -> str:
    return str(host.name)


def _sentence(state: State, faults: Mapping[str, Exception]) -> str:
    count = len(state.inventory.get_active_hosts()) + len(state.failed_hosts)
    lines = [f"{name}: {text}" for name, text in sorted(faults.items())]
    if count == 1:
        return f"{lines[0]} (nothing was touched)"
    hosts = counted(len(lines), "host")
    return "\n".join([f"{hosts} of {count} cannot be served, so no host was touched:", *lines])
