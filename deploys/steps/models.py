"""The files of the model, and of what is served with it, in the store, verified."""

from deploys.operations import downloads
from deploys.steps.planning import Work


def fetch(work: Work) -> None:
    """Download what is missing or wrong; a good file is never touched."""
    downloads.files_are_fetched(
        name="The model's files are present and verified",
        reason=work.changes.fetch,
        spec=work.fetch.models,
        token=work.token,
    )
