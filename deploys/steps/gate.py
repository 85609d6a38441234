"""Nothing is served until the model has answered."""

from deploys.operations import gates
from deploys.steps.planning import Work


def answer(work: Work) -> None:
    """Wait with a deadline for health, the model's name and a real completion."""
    gates.model_answers(
        name="The model answers",
        reason=work.changes.gate,
        spec=work.gate,
    )
