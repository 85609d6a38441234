"""What the probe says of the driver that is installed, and what follows from it for people."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gpuwright.document import Reader

_OWNERS = re.compile(r"libcuda1|libnvidia-(?:[a-z0-9-]+-)?(?:cuda1|ml1)|libnvidia-compute(?:-.+)?")
"""Packages that own libcuda or NVML. Others may stand beside a driver that is no package."""


def _owns(package: object) -> bool:
    name = package.get("name") if isinstance(package, dict) else None
    return isinstance(name, str) and _OWNERS.fullmatch(name) is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class DriverState:
    """The document's `driver`, as far as it is used; None is unknown."""

    flavour: str | None = None
    """`open` or `proprietary`: which of NVIDIA's kernel modules is loaded."""
    module_version: str | None = None
    kernel: str | None = None
    kernel_ready: bool | None = None
    next_kernel: str | None = None
    next_kernel_ready: bool | None = None
    failed_builds: tuple[tuple[str, str], ...] = ()
    """(module with version, kernel) of what DKMS could not build."""
    secure_boot: bool | None = None
    mok_enrolled: bool | None = None
    nouveau: str | None = None
    switches: bool | None = None
    """NVSwitches are on the bus."""
    fabric_manager: bool | None = None
    """Their manager runs."""
    fabric_version: str | None = None
    packaged: bool | None = None
    """Its library came as a package of the distribution, or of a repository that the node has."""

    @classmethod
    def read(cls, root: Reader, kernel: str | None) -> DriverState:
        """Of a whole document; one that says nothing of a driver is all unknown."""
        entry = Reader(root.get("driver", dict, None) or {}, root.at("driver"), unknown=True)
        fabric = entry.child("fabric_manager")
        packages = entry.get("packages", list)
        builds = [one for one in entry.children("dkms") if one.get("state", str) == "failed"]
        return cls(
            flavour=entry.get("flavour", str),
            module_version=entry.get("module_version", str),
            kernel=kernel,
            kernel_ready=entry.get("kernel_ready", bool),
            next_kernel=entry.get("next_kernel", str),
            next_kernel_ready=entry.get("next_kernel_ready", bool),
            failed_builds=tuple(
                (
                    f"{one.get('module', str)} {one.get('version', str)}",
                    one.get("kernel", str) or "",
                )
                for one in builds
            ),
            secure_boot=entry.get("secure_boot", bool),
            mok_enrolled=entry.get("mok_enrolled", bool),
            nouveau=entry.get("nouveau", str),
            switches=fabric.get("needed", bool),
            fabric_manager=fabric.get("active", bool),
            fabric_version=fabric.get("version", str),
            packaged=None if packages is None else any(map(_owns, packages)),
        )

    def remedy(self) -> str | None:
        """What would let the driver load where it is not; None: nothing that is known."""
        if self.nouveau == "loaded":
            return (
                "nouveau kept out (`blacklist nouveau` in /etc/modprobe.d, the initramfs made "
                "anew), the NVIDIA driver installed, and a reboot"
            )
        for build, kernel in self.failed_builds:
            if kernel == self.kernel:
                return (
                    f"a module for the running kernel {kernel}, for which DKMS could not build "
                    f"{build}: that kernel's headers and its own compiler, then `dkms autoinstall`"
                )
        if self.kernel_ready is False and self.next_kernel_ready and self.kernel is not None:
            return (
                f"a reboot into {self.next_kernel}, which has the module that the running kernel "
                f"{self.kernel} lacks"
            )
        if self.kernel_ready is False and self.kernel is not None:
            return (
                f"the NVIDIA driver installed for the running kernel {self.kernel}, which has no "
                "module of it"
            )
        if self.kernel_ready and self.secure_boot and self.mok_enrolled is False:
            return (
                "the key that modules are signed with here enrolled (`mokutil --import`, then a "
                "reboot), or Secure Boot off: the kernel refuses the module that is installed"
            )
        if self.kernel_ready:
            return "`modprobe nvidia`, and what the kernel log says of it"
        return None

    def remarks(self) -> Iterator[str]:
        """What does not keep a plan from being, and will be noticed later."""
        if (
            self.next_kernel_ready is False
            and self.module_version is not None
            and self.next_kernel != self.kernel
        ):
            yield (
                f"the next boot takes kernel {self.next_kernel}, which has no NVIDIA module: the "
                "card is gone then"
            )
        if self.switches and self.fabric_manager is False:
            yield (
                "NVSwitches are on the bus and nvidia-fabricmanager does not run: CUDA starts on "
                "none of the cards until it does"
            )
        versions = {self.fabric_version, self.module_version}
        if self.switches and len(versions) == 2 and None not in versions:
            yield (
                f"nvidia-fabricmanager is {self.fabric_version}, the driver "
                f"{self.module_version}: it serves its own version alone"
            )
