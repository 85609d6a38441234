"""The engine, built from its pinned source into a directory named by its content."""

from deploys.operations import downloads, llama_cpp
from deploys.steps.planning import Work


def build(work: Work) -> None:
    """Fetch the source and build it; an existing key is never built twice."""
    downloads.files_are_fetched(
        name="The engine's source is present and verified",
        reason=work.changes.build,
        spec=work.fetch.archive,
        token=None,
    )
    llama_cpp.engine_is_built(
        name="The engine is built and proven",
        reason=work.changes.build,
        spec=work.build,
    )
