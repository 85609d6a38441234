"""The systemd unit with its environment file, and the one decision to restart it."""

from deploys.operations import node as operations
from deploys.steps.planning import Work


def write(work: Work) -> None:
    """Secrets, unit and the record of what is served."""
    expected, changes = work.expected, work.changes
    operations.secrets_are_generated(
        name="The API key exists, for root alone",
        path=expected.environment_path,
        names=expected.secret_names,
        missing=changes.environment,
        mode=changes.environment_mode,
    )
    operations.unit_is_written(
        name="The unit is the plan's",
        path=expected.unit_path,
        text=expected.unit,
        reason=changes.unit,
        kept=changes.kept,
    )
    operations.file_holds(
        name="The node's record is the plan's",
        path=expected.record_path,
        text=expected.record,
        reason=changes.record,
    )


def run(work: Work) -> None:
    """Reload, enable and (re)start, each only when something asks for it."""
    unit = work.expected.unit_name
    operations.units_are_reloaded(
        name="systemd knows the unit as it is",
        reason=work.changes.reload,
    )
    operations.service_is_enabled(
        name="The service starts at boot",
        unit=unit,
        reason=work.changes.enable,
    )
    operations.service_runs(
        name="The service runs what the plan says",
        unit=unit,
        reason=work.changes.restart,
    )
