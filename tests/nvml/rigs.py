"""Scenarios of the stand-in library, and how it is built.

The rigs are invented: their figures are those of the cards' data sheets.
"""

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from tools.standins import build_nvml

GIB = 1 << 30
MEMORY_3090 = 24 * GIB
SWITCH = -1
"""The far end of a link that leads to an NVLink switch."""


def card(number: int, *, bus: str = "", name: str = "NVIDIA GeForce RTX 3090") -> str:
    """The line of one RTX 3090 with all but 400 MiB free."""
    address = bus or f"00000000:{number + 1:02X}:00.0"
    free = MEMORY_3090 - (400 << 20)
    return device(number, address, "220410de", name, "8.6", MEMORY_3090, free)


def device(
    number: int, bus: str, identity: str, name: str, capability: str, total: int, free: int
) -> str:
    return f"device {uuid(number)}|{bus}|{identity}|{name}|{capability}|{total}|{free}"


def uuid(number: int) -> str:
    return f"GPU-00000000-0000-0000-0000-{number:012d}"


def says(number: int, **calls: int | Sequence[int]) -> list[str]:
    """What the card says to calls, which are named without `nvmlDeviceGet`."""
    lines = []
    for call, numbers in calls.items():
        shown = [numbers] if isinstance(numbers, int) else numbers
        lines.append(" ".join(map(str, ("value", f"nvmlDeviceGet{call}", number, *shown))))
    return lines


def at_rest(number: int, *, width: int = 16, limit_w: int = 350) -> list[str]:
    """All that a healthy RTX 3090 without a display says beside its name and memory."""
    return says(
        number,
        MinorNumber=number,
        DisplayMode=0,
        DisplayActive=0,
        PersistenceMode=1,
        PowerUsage=21_500,
        PowerManagementLimit=limit_w * 1000,
        PowerManagementDefaultLimit=350_000,
        PowerManagementLimitConstraints=(100_000, 350_000),
        CurrPcieLinkGeneration=1,
        MaxPcieLinkGeneration=4,
        CurrPcieLinkWidth=width,
        MaxPcieLinkWidth=16,
        VirtualizationMode=0,
        CurrentClocksThrottleReasons=1,
        Temperature=34,
        MemoryInfo_v2=330 << 20,
    )


def bridge(one: int, other: int, links: int = 4) -> list[str]:
    """An NVLink bridge between two cards."""
    pairs = ((one, other), (other, one))
    return [f"nvlink {a} {link} 1 {b}" for a, b in pairs for link in range(links)] + [
        f"p2p {one} {other} 0"
    ]


def scenario(*lines: str, driver: str = "580.95.05", cuda: int = 13000) -> str:
    return "\n".join([f"driver {driver}", f"cuda {cuda}", *lines]) + "\n"


def some_3090(cards: int, *more: str) -> str:
    """Healthy RTX 3090s, each in a slot of its own."""
    lines = [line for number in range(cards) for line in (card(number), *at_rest(number))]
    return scenario(*lines, *more)


ONE_3090 = scenario(card(0), "process 0 4242 1073741824")
TWO_3090 = scenario(card(0), card(1))
ONE_5090_OLD_DRIVER = scenario(
    device(
        0, "00000000:01:00.0", "2b8510de", "NVIDIA GeForce RTX 5090", "12.0", 32 * GIB, 31 * GIB
    ),
    driver="570.86.10",
    cuda=12080,
)
ONE_P40 = scenario(
    device(0, "00000000:01:00.0", "1b3810de", "Tesla P40", "6.1", 24 * GIB, 23 * GIB),
    driver="535.183.01",
    cuda=12020,
)
MISMATCH = scenario(card(0), "error nvmlInitWithFlags -1 18")
NOT_LOADED = scenario("error nvmlInitWithFlags -1 9")
LOST = scenario(card(0), card(1), "error nvmlDeviceGetHandleByIndex_v2 0 15")
HANG = scenario(card(0), "hang nvmlDeviceGetMemoryInfo")
CRASH = scenario(card(0), "crash nvmlDeviceGetMemoryInfo")
FORBIDDEN = scenario("error nvmlInitWithFlags -1 4")

BRIDGED_3090 = some_3090(2, *bridge(0, 1))
TWO_BRIDGES = some_3090(4, *bridge(0, 1), *bridge(2, 3))
PATCHED_3090 = some_3090(2, "p2p 0 1 0", "topology 0 1 30")
"""Two cards whose driver was changed to let them reach each other's memory."""
DESKTOP_3090 = scenario(
    card(0),
    *says(0, DisplayMode=1, DisplayActive=1, VirtualizationMode=0),
    "graphics 0 1200 419430400",
    "process 0 4242 1073741824",
    "graphics 0 4242 1073741824",
)
MIG_A100 = scenario(
    device(0, "00000000:41:00.0", "20b510de", "NVIDIA A100-PCIE-80GB", "8.0", 80 * GIB, 79 * GIB),
    *says(0, MigMode=(1, 1), MaxMigDeviceCount=7, EccMode=(1, 1), TotalEccErrors=0),
    *says(0, RemappedRows=(0, 0, 0, 0), VirtualizationMode=0, DisplayActive=0),
    f"instance 0 MIG-00000000-0000-0000-0000-000000000001|NVIDIA A100-PCIE-80GB MIG 3g.40gb"
    f"|{40 * GIB}",
    f"instance 0 MIG-00000000-0000-0000-0000-000000000002|NVIDIA A100-PCIE-80GB MIG 2g.20gb"
    f"|{20 * GIB}",
)
VGPU_GUEST = scenario(
    device(0, "00000000:02:00.0", "223510de", "NVIDIA A40-24Q", "8.6", 24 * GIB, 23 * GIB),
    *says(0, VirtualizationMode=2, EccMode=(0, 0)),
    driver="550.163.01",
    cuda=12040,
)
HOSTILE = scenario(
    card(0, name="RTX\\x1b]0;x\\x07 $(reboot) \\xe2\\x80\\xae\\xff"),
    card(1, name="RTX\\x00hidden"),
    *says(0, PowerUsage=0xFFFFFFFF, Temperature=0xFFFFFFFF, CurrPcieLinkWidth=0xFFFFFFFF),
    *says(0, VirtualizationMode=77, MigMode=(9, 9), EccMode=(7, 0), TotalEccErrors=(1 << 64) - 1),
    *says(0, CurrentClocksThrottleReasons=(1 << 64) - 1, DisplayActive=3),
    *says(0, PowerManagementLimitConstraints=(0xFFFFFFFF, 0), MaxMigDeviceCount=0xFFFFFFFF),
    "p2p 0 1 99",
    "topology 0 1 -7",
    "process 0 4294967295 18446744073709551615",
)
SWITCHED_H100 = scenario(
    *(
        device(
            n,
            f"00000000:{0x18 + n:02X}:00.0",
            "233010de",
            "NVIDIA H100 80GB HBM3",
            "9.0",
            80 * GIB,
            79 * GIB,
        )
        for n in range(2)
    ),
    *(f"nvlink {n} {link} 1 {SWITCH}" for n in range(2) for link in range(18)),
    "p2p 0 1 0",
)
WORN = some_3090(
    3,
    *says(0, RemappedRows=(0, 2, 1, 1)),
    *says(1, CurrentClocksThrottleReasons=0x44),
    *says(2, TotalEccErrors=3, RetiredPagesPendingStatus=1),
)


def everything() -> str:
    """One of everything that the document can say: for the page that names its keys."""
    all_of_them = says(-1, MigMode=(1, 1), MaxMigDeviceCount=2, CurrentClocksThrottleReasons=4)
    return scenario(
        *(card(number) for number in range(3)),
        *all_of_them,
        f"instance 0 MIG-1|A slice|{GIB}",
        f"instance 1 MIG-2|A slice|{GIB}",
        *(f"process {n} 4242 1073741824" for n in range(2)),
        *(f"p2p {one} {other} 0" for one, other in combinations(range(3), 2)),
        "error nvmlDeviceGetHandleByIndex_v2 2 15",
    )


def build(directory: Path, *, version: str = "580.95.05") -> Path:
    """Compile the library into `directory` under its two names; the directory.

    Of an old `version`, it lacks what came later.
    """
    return build_nvml(directory, f"-DDRIVER={version.partition('.')[0]}", version=version)


def told_3090(number: int, **changed: object) -> dict[str, Any]:
    """All that is told of a healthy RTX 3090 where no kernel log is to be read.

    `at_rest` is what the driver said of it.
    """
    return {
        "index": number,
        "minor": number,
        "uuid": uuid(number),
        "pci_address": f"0000:{number + 1:02x}:00.0",
        "pci_id": "10de:2204",
        "name": "NVIDIA GeForce RTX 3090",
        "compute_capability": "8.6",
        "memory_total_bytes": MEMORY_3090,
        "memory_free_bytes": MEMORY_3090 - (400 << 20),
        "memory_reserved_bytes": 330 << 20,
        "processes": [],
        "display_attached": False,
        "display_active": False,
        "mig": {"enabled": None, "pending": None, "instances": None},
        "vgpu": "none",
        "ecc": {"enabled": None, "pending": None, "uncorrected": None},
        "repair": {"pending": None, "failed": None},
        "persistence": True,
        "power": {
            "draw_w": 21.5,
            "limit_w": 350.0,
            "default_w": 350.0,
            "min_w": 100.0,
            "max_w": 350.0,
        },
        "pcie": {"generation": 1, "generation_max": 4, "width": 16, "width_max": 16},
        "throttle": [],
        "temperature_c": 34,
        "nvlink": False,
        "xids": None,
        "health": "ok",
        **changed,
    }
