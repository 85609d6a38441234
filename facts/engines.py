"""What gpuwright keeps on a node: `pyinfra INVENTORY fact facts.engines.Engines --json`."""

from facts.node import Section


class Engines(Section):
    """Engines with their keys, and whether they are whole."""

    section = "ours"
    part = "engines"


class Models(Section):
    """Checkpoints, and whether they are whole."""

    section = "ours"
    part = "models"


class Services(Section):
    """Units, whether they run and start at boot, and the plan that each was made by."""

    section = "ours"
    part = "services"


class Plans(Section):
    """The last plan that was applied for each service."""

    section = "ours"
    part = "plans"
