"""The lab's fixtures, for the tests beside it."""

from tests.lab.fixtures import boot_node, hub, lab

__all__ = ["boot_node", "hub", "lab"]
