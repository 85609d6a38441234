"""Look at every node of the run and say what is wrong with it; nothing is changed or saved."""

from pyinfra.api import State

from deploys.steps import saving
from deploys.steps.once import Run, Runs, once
from gpuwright.doctor import as_text, diagnose, verdict
from gpuwright.findings import unseen
from gpuwright.load import load_findings, load_matrix
from gpuwright.refusals import HostError

_runs: Runs = Runs()


def told() -> None:
    """Print every host's findings, once for all of them.

    DeployError at the end names each host that cannot serve, or could not be looked at.
    """
    once(_runs, _tell_all)


def _tell_all(state: State) -> Run:
    documents, faults = saving.seen(state)
    rows, matrix = load_findings(), load_matrix()
    for host, document in documents.items():
        try:
            found = diagnose(document, rows, matrix)
        except HostError as error:
            faults[str(host.name)] = str(error)
            continue
        for line in as_text(found, unseen(document, rows)).splitlines():
            host.log(line)
        if verdict(found) == "blocked":
            faults[str(host.name)] = found[0].says[0]
    return saving.listed("that cannot serve", faults, state) if faults else {}
