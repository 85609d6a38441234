"""The engine, built from its pinned source or installed from its lock, in a directory named by its
content."""

from deploys.operations import downloads, environments, llama_cpp
from deploys.steps.planning import Work
from gpuwright.sharing import Part


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
        share = work.share
        llama_cpp.engine_is_built(
            name="The engine is built and proven",
            reason=work.changes.build if share.compiles else None,
            spec=work.build,
        )
        llama_cpp.engine_is_handed_over(
            name="The engine is handed over to equal nodes",
            spec=share.spec if share.part is Part.GIVES else None,
            packed=share.packed,
            wanted=share.wanted,
            keep=work.keep_engines,
        )
        llama_cpp.engine_is_taken_over(
            name="The engine is taken over from an equal node",
            reason=work.changes.build if share.part is Part.TAKES else None,
            spec=share.spec,
            packed=share.packed,
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
