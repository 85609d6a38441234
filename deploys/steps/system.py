"""What every service stands on: packages, the system user, directories."""

from deploys.operations import node as operations
from deploys.steps.planning import Work


def protect(work: Work) -> None:
    """Nobody but root may change what the service runs and reads."""
    operations.modes_are_put_back(
        name="Engine and model are root's alone to change",
        rows=work.changes.modes,
    )


def prepare(work: Work) -> None:
    """Packages, user and directories, as far as the plan needs them."""
    operations.packages_are_installed(
        name="Packages that the engine needs are installed",
        names=work.changes.packages,
        repository=work.expected.repository,
    )
    operations.user_exists(name="The service user exists", reason=work.changes.user)
    operations.directories_stand(
        name="Directories stand with their owners and modes",
        directories=work.changes.directories,
    )
