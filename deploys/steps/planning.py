"""Plan the whole inventory in one pass: every host has a plan, or no host is touched."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from gevent.lock import RLock
from pyinfra.api import DeployError, Host, State
from pyinfra.context import ctx_host, ctx_state

from deploys.steps import gather
from gpuwright.converge import Changes, Expected, changes
from gpuwright.expectation import build_spec, expectation, gate_spec, probe_packages, probe_spec
from gpuwright.explain import explain_plan
from gpuwright.fetching import FetchSpecs, fetch_specs
from gpuwright.host import Host as Node
from gpuwright.load import load_matrix
from gpuwright.plan import Plan
from gpuwright.refusals import HostError, MatrixError, Refusal, WantError
from gpuwright.selection import decide
from gpuwright.want import Want

TEMPLATES = Path(__file__).resolve().parents[2] / "templates"


@dataclass(frozen=True, kw_only=True)
class Work:
    """One host with everything that the steps need to know of it."""

    want: Want
    plan: Plan
    expected: Expected
    changes: Changes
    fetch: FetchSpecs
    build: Mapping[str, Any]
    gate: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """A host's plan before anybody asks whether it can be applied."""

    host: Host
    want: Want
    document: Mapping[str, Any]
    node: Node
    plan: Plan


class _NoPlanError(Exception):
    """A host has no plan, or none that can be applied; the text says why."""


_Run = dict[Host, Any] | str
_lock = RLock()
_plans: WeakKeyDictionary[State, _Run] = WeakKeyDictionary()
_works: WeakKeyDictionary[State, _Run] = WeakKeyDictionary()


def plan_only() -> Plan:
    """The plan of the host in context, whether or not this version can apply it."""
    answer: _Answer = _of_host(_plans, _plan_all)
    return answer.plan


def work() -> Work:
    """What is to be done on the host in context, decided together with all others.

    DeployError names every host without a plan that can be applied, one line each, and every host
    gets the same one, so that no host is touched.
    """
    found: Work = _of_host(_works, _work_all)
    return found


def _of_host(runs: WeakKeyDictionary[State, _Run], make: Callable[[State], _Run]) -> Any:
    """Made once per run, by the first greenlet that asks; the others wait for it."""
    state, host = ctx_state.get(), ctx_host.get()
    with _lock:
        if state not in runs:
            runs[state] = make(state)
        run = runs[state]
    if isinstance(run, str):
        raise DeployError(run)
    return run[host]


def _plan_all(state: State) -> _Run:
    answers, faults = _answers(state)
    return _sentence(state, faults) if faults else dict(answers)


def _work_all(state: State) -> _Run:
    answers, faults = _answers(state)
    works: dict[Host, Work] = {}
    for host, answer in answers.items():
        try:
            works[host] = _work(answer)
        except (_NoPlanError, WantError, MatrixError) as error:
            faults[_name(host)] = str(error)
    if not faults:
        asked = {host: work.fetch.preflight() for host, work in works.items()}
        faults = gather.preflight(state, asked)
    if faults:
        return _sentence(state, faults)
    for host in sorted(works, key=_name):
        for line in explain_plan(works[host].plan, brief=True).splitlines():
            host.log(line)
        for line in works[host].changes.reasons() or ("nothing to change",):
            host.log(f"  - {line}")
    return dict(works)


def _answers(state: State) -> tuple[dict[Host, _Answer], dict[str, str]]:
    """Every active host's plan, and a sentence for every host that has none."""
    hosts = sorted(state.inventory.get_active_hosts(), key=_name)
    faults: dict[str, str] = {}
    if not _allow_unreachable(hosts):
        for host in state.failed_hosts:
            faults[_name(host)] = (
                "not reached over SSH (--data allow_unreachable=true goes on without it)"
            )
    wants: dict[Host, Want] = {}
    specs: dict[Host, dict[str, Any]] = {}
    for host in hosts:
        try:
            wants[host] = _want(host)
            specs[host] = probe_spec(
                wants[host], verify=_verify(host), packages=probe_packages(load_matrix())
            )
        except (WantError, MatrixError) as error:
            faults[_name(host)] = str(error)
    answers: dict[Host, _Answer] = {}
    for host, document in gather.documents(state, specs.items()).items():
        try:
            answers[host] = _answer(host, wants[host], document)
        except (_NoPlanError, WantError, HostError, MatrixError) as error:
            faults[_name(host)] = str(error)
    return answers, faults


def _answer(host: Host, want: Want, document: Mapping[str, Any]) -> _Answer:
    if "schema" not in document:
        raise _NoPlanError(str(document.get("error") or "the probe gave no answer"))
    node = Node.from_document(document)
    matrix = load_matrix(want.extra_models)
    result = decide(node, want, matrix)
    if isinstance(result, Refusal):
        raise _NoPlanError(result.sentence())
    return _Answer(host=host, want=want, document=document, node=node, plan=result)


def _work(answer: _Answer) -> Work:
    want, plan = answer.want, answer.plan
    if plan.not_applicable:
        raise _NoPlanError(
            f"{plan.engine} {plan.release} ({plan.build_tag}): {plan.not_applicable}"
        )
    matrix = load_matrix(want.extra_models)
    wanted = expectation(want=want, node=answer.node, plan=plan, matrix=matrix, templates=TEMPLATES)
    todo = changes(wanted.expected, answer.document)
    verify = _verify(answer.host)
    return Work(
        want=want,
        plan=plan,
        expected=wanted.expected,
        changes=todo,
        fetch=fetch_specs(
            want=want,
            expected=wanted.expected,
            archive=wanted.build.archive,
            changes=todo,
            verify=verify,
        ),
        build=build_spec(wanted, verify=verify),
        gate=gate_spec(wanted),
    )


def _want(host: Host) -> Want:
    data = host.data.get("gpuwright")
    if data is None:
        raise WantError("gpuwright: missing from the host's data; {'model': 'auto'} will do")
    return Want.from_data(data)


def _verify(host: Host) -> str:
    verify = host.data.get("verify") or "quick"
    if verify not in ("quick", "full"):
        raise WantError(f"verify: {verify!r}, needed quick or full")
    return str(verify)


def _allow_unreachable(hosts: Iterable[Host]) -> bool:
    """Whether the operator goes on without hosts that cannot be reached: --data, so for all."""
    said = {host.data.get("allow_unreachable") for host in hosts} - {None}
    for word in said:
        if not isinstance(word, bool):
            raise DeployError(f"allow_unreachable: {word!r}, needed true or false")
    return True in said


def _name(host: Host) -> str:
    return str(host.name)


def _sentence(state: State, faults: Mapping[str, str]) -> str:
    count = len(state.inventory.get_active_hosts()) + len(state.failed_hosts)
    lines = [f"{name}: {text}" for name, text in sorted(faults.items())]
    if count == 1:
        return f"{lines[0]} (nothing was touched)"
    hosts = "host" if len(lines) == 1 else "hosts"
    return "\n".join(
        [f"{len(lines)} {hosts} of {count} cannot be served, so no host was touched:", *lines]
    )
