"""What GPUs a node has and how they are: `pyinfra INVENTORY fact facts.gpu.Gpus --json`."""

from facts.node import Section


class Gpus(Section):
    """Status (ok, no_gpu, no_driver, driver_mismatch, gpu_lost, unreadable), driver, devices."""

    section = "gpus"


class Pairs(Section):
    """How each two cards are connected: NVLinks, peer access, what lies between."""

    section = "gpus"
    part = "pairs"


class Controllers(Section):
    """Display and 3D controllers of every vendor, whatever drives them."""

    section = "gpus"
    part = "pci"
