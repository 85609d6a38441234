"""The lab: throwaway Debian servers on this machine, and a model hub they can reach."""

from tests.lab.hub import Hub
from tests.lab.lab import Lab
from tests.lab.machine import LabError
from tests.lab.node import Node, RemoteError

__all__ = ["Hub", "Lab", "LabError", "Node", "RemoteError"]
