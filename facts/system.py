"""What kind of system a node is; each fact can be asked for alone."""

from facts.node import Section


class Os(Section):
    """Distribution, release, kernel and architecture."""

    section = "os"


class Glibc(Section):
    """Version of the C library, which decides what wheels can run."""

    section = "glibc"


class Python(Section):
    """Version and path of the node's python3."""

    section = "python"


class Cpu(Section):
    """Model, threads and instruction set flags."""

    section = "cpu"


class Memory(Section):
    """Total and available memory in bytes."""

    section = "memory"


class Systemd(Section):
    """Version, and whether PID 1 is systemd."""

    section = "systemd"


class Virtualization(Section):
    """none, kvm, lxc, systemd-nspawn, wsl, docker, ..."""

    section = "virtualization"
