"""The engine, built from its pinned source or installed from its lock, in a directory named by its
content."""

from deploys.operations import downloads, environments, llama_cpp
from deploys.steps.planning import Work


def make(work: Work) -> None:
    """Fetch what it is made of or with, and make it; an existing key is never made twice."""
    name = "The installer" if work.environment else "The engine's source"
    downloads.files_are_fetched(
        name=f"{name} is present and verified",
        reason=work.changes.build,
        spec=work.fetch.archive,
        token=None,
    )
    if work.environment is None:
        llama_cpp.engine_is_built(
            name="The engine is built and proven",
            reason=work.changes.build,
            spec=work.build,
        )
    else:
        environments.engine_is_installed(
            name="The engine is installed from its lock and proven",
            reason=work.changes.build,
            spec=work.environment,
        )


def rehearse(work: Work) -> None:
    """Let the engine itself judge the plan, with the model's own configuration."""
    if work.rehearsal is not None:
        environments.plan_is_taken(
            name="The engine takes the plan",
            reason=work.changes.rehearse,
            spec=work.rehearsal,
        )
