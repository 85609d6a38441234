"""What GPUs a node has and how they are: `pyinfra INVENTORY fact facts.gpu.Gpus --json`."""

from facts.node import Section


class Gpus(Section):
    """Status (ok, no_gpu, no_driver, driver_mismatch, gpu_lost, unreadable), driver, devices."""

    section = "gpus"
