"""Rows about attention backends: what each computes, on which cards, and what it needs there."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from gpuwright.rows import Claim, Device
from gpuwright.versions import within


class Toolchain(StrEnum):
    """What stands beside an engine on its node, each with all that is before it."""

    NONE = "none"
    NVCC = "nvcc"
    """A CUDA compiler and ninja on the service's PATH."""
    PREBUILT = "prebuilt"
    """Kernels that the vendor builds, downloaded beforehand or over the network."""

    def has(self, needed: "Toolchain") -> bool:
        order = list(Toolchain)
        return order.index(self) >= order.index(needed)


class Latent(StrEnum):
    """Whether a backend computes latent attention (MLA)."""

    NO = "no"
    ONLY = "only"
    TOO = "too"

    def serves(self, mla: bool) -> bool:
        return self is Latent.TOO or (self is Latent.ONLY) == mla


@dataclass(frozen=True, kw_only=True, slots=True)
class AutoOrder:
    """The order in which an engine tries attention backends; the first rule that fits counts."""

    order: tuple[str, ...]
    capabilities: str = ""
    families: tuple[str, ...] = ()
    mla: bool | None = None
    """Where said, the rule is for models with latent attention alone, or without alone."""
    sinks: bool | None = None
    """The same of attention sinks."""
    toolchain: Toolchain = Toolchain.NONE
    """The least that stands beside the engine where the rule holds."""
    device: Device = Device.CUDA


@dataclass(frozen=True, kw_only=True, slots=True)
class KvRule:
    dtypes: tuple[str, ...]
    capabilities: str = ""
    devices: tuple[Device, ...] = ()
    """Where named, the rule holds on these alone."""
    sinks: bool = True
    toolchain: Toolchain = Toolchain.NONE

    def meets(self, capability: str | None) -> bool:
        """Whether the rule holds on this card; None: the CPU, which is in every range."""
        device = Device.CPU if capability is None else Device.CUDA
        if self.devices and device not in self.devices:
            return False
        return capability is None or within(capability, self.capabilities)


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadRule:
    """Head sizes a backend computes: those listed, or multiples up to a maximum."""

    sizes: tuple[int, ...] = ()
    multiple_of: int = 1
    minimum: int = 1
    maximum: int | None = None
    capabilities: str = ""
    kv_cache_dtypes: tuple[str, ...] = ()
    """Where named, the rule holds for these alone."""

    def admits(self, size: int) -> bool:
        if self.sizes:
            return size in self.sizes
        above = self.maximum is not None and size > self.maximum
        return size % self.multiple_of == 0 and size >= self.minimum and not above

    def meets(self, capability: str | None, kv: str) -> bool:
        """Whether the rule is about this card and cache; on the CPU only general ones are."""
        if self.kv_cache_dtypes and kv not in self.kv_cache_dtypes:
            return False
        if not self.capabilities:
            return True
        return capability is not None and within(capability, self.capabilities)

    def words(self) -> str:
        if self.sizes:
            return ", ".join(str(size) for size in self.sizes)
        limit = f" up to {self.maximum}" if self.maximum is not None else f" from {self.minimum}"
        return f"in steps of {self.multiple_of}{limit}"


@dataclass(frozen=True, kw_only=True, slots=True)
class SinkRule:
    """Where a backend computes attention sinks."""

    capabilities: str = ""
    toolchain: Toolchain = Toolchain.NONE


@dataclass(frozen=True, kw_only=True, slots=True)
class VersionRule:
    """Which version of its kernels a backend runs; the first rule that fits counts."""

    version: int
    capabilities: str = ""
    sizes: tuple[int, ...] = ()
    maximum: int | None = None
    sinks: bool = True

    def meets(self, capability: str, size: int) -> bool:
        return (
            within(capability, self.capabilities)
            and (not self.sizes or size in self.sizes)
            and (self.maximum is None or size <= self.maximum)
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class AttentionBackendRow:
    id: str
    engine: str
    backend: str
    aliases: tuple[str, ...]
    releases: str
    devices: tuple[Device, ...]
    capabilities: str
    kv: tuple[KvRule, ...]
    heads: tuple[HeadRule, ...]
    sources: tuple[Claim, ...]
    latent: Latent = Latent.NO
    latent_capabilities: str = ""
    """The cards with latent attention, where they are fewer."""
    families: tuple[str, ...] = ()
    """The only families of models that it is for; empty: all."""
    sliding: bool = True
    sinks: tuple[SinkRule, ...] = ()
    versions: tuple[VersionRule, ...] = ()
    toolchain: Toolchain = Toolchain.NONE
    needs: str | None = None
    """What its toolchain is, in words."""

    def faults(self) -> Iterator[str]:
        if (self.toolchain is Toolchain.NONE) != (self.needs is None):
            yield ".needs: stands exactly where toolchain does"

    def version(self, capability: str | None, size: int) -> VersionRule | None:
        """The rule of the kernels that run on this card; None where they have no versions."""
        if capability is None:
            return None
        return next((rule for rule in self.versions if rule.meets(capability, size)), None)
