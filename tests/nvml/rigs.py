"""Scenarios of the stand-in library, and how it is built.

The rigs are invented: their figures are those of the cards' data sheets.
"""

from collections.abc import Sequence
from pathlib import Path

from tools.standins import build_nvml

MEMORY_3090 = 24 << 30


def card(number: int, *, bus: str = "", name: str = "NVIDIA GeForce RTX 3090") -> str:
    """The line of one RTX 3090 with all but 400 MiB free."""
    address = bus or f"00000000:{number + 1:02X}:00.0"
    free = MEMORY_3090 - (400 << 20)
    return (
        f"device GPU-00000000-0000-0000-0000-{number:012d}|{address}|220410de|{name}"
        f"|8.6|{MEMORY_3090}|{free}"
    )


def uuid(number: int) -> str:
    return f"GPU-00000000-0000-0000-0000-{number:012d}"


def scenario(*lines: str, driver: str = "580.95.05", cuda: int = 13000) -> str:
    return "\n".join([f"driver {driver}", f"cuda {cuda}", *lines]) + "\n"


ONE_3090 = scenario(card(0), "process 0 4242 1073741824")
TWO_3090 = scenario(card(0), card(1))
MISMATCH = scenario(card(0), "error nvmlInitWithFlags -1 18")
NOT_LOADED = scenario("error nvmlInitWithFlags -1 9")
LOST = scenario(card(0), card(1), "error nvmlDeviceGetHandleByIndex_v2 0 15")
HANG = scenario(card(0), "hang nvmlDeviceGetMemoryInfo")
FORBIDDEN = scenario("error nvmlInitWithFlags -1 4")


def build(directory: Path, *, version: str = "580.95.05", flags: Sequence[str] = ()) -> Path:
    """Compile the library into `directory` under its two names; the directory."""
    return build_nvml(directory, *flags, version=version)
