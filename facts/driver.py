"""The NVIDIA driver as it is installed: `pyinfra INVENTORY fact facts.driver.Driver --json`."""

from facts.node import Section


class Driver(Section):
    """Module, libraries, DKMS, Secure Boot, nouveau, daemons, and the packages that bring it."""

    section = "driver"
    beside = ("gpus",)
