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


class Pythons(Section):
    """Every Python 3 with its version, and whether its headers are there."""

    section = "pythons"


class Cpu(Section):
    """Model, sockets, cores, threads and instruction set flags."""

    section = "cpu"


class Memory(Section):
    """Total, available and swap in bytes, and what a container may use."""

    section = "memory"


class Numa(Section):
    """NUMA nodes with the cards that are near each."""

    section = "numa"


class Iommu(Section):
    """off, on or passthrough."""

    section = "iommu"


class Filesystems(Section):
    """What is mounted where, how, and the room on it."""

    section = "filesystems"


class Ports(Section):
    """TCP ports that are listened on, and by whom."""

    section = "ports"


class Addresses(Section):
    """Addresses of the node that a service can be bound to, beside loopback."""

    section = "addresses"


class Systemd(Section):
    """Version, and whether PID 1 is systemd."""

    section = "systemd"


class Virtualization(Section):
    """none, kvm, lxc, systemd-nspawn, wsl, docker, ..."""

    section = "virtualization"


class Firewall(Section):
    """Which program keeps the packet filter."""

    section = "firewall"


class Clock(Section):
    """The time, its zone, and whether it follows a time server."""

    section = "clock"


class Settings(Section):
    """Proxies, package mirrors and the Python index that are set, without any secret."""

    section = "settings"
