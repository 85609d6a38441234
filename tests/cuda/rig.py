"""Builds for cards on a machine without any: a plan's own spec, moved below a directory of ours."""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpuwright.builds import Build, build_spec
from gpuwright.converge import Changes
from gpuwright.expectation import expectation
from gpuwright.fetching import fetch_specs
from gpuwright.host import Host
from gpuwright.load import load_matrix
from gpuwright.plan import Plan
from gpuwright.selection import decide
from gpuwright.sketch import read_sketch
from gpuwright.want import Want

TEMPLATES = Path(__file__).parents[2] / "templates"
_DRIVER_CALLS = (
    "cuGetErrorString",
    "cuMemAddressFree",
    "cuMemAddressReserve",
    "cuMemCreate",
    "cuMemGetAllocationGranularity",
    "cuMemMap",
    "cuMemRelease",
    "cuMemSetAccess",
    "cuMemUnmap",
)

_DRIVER = """
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetAttribute(int *value, int name, int device) { *value = 0; return 0; }
"""


@dataclass(frozen=True, kw_only=True)
class Specs:
    """What the carried programs are told for one plan."""

    fetch: dict[str, Any]
    build: dict[str, Any]
    build_packages: tuple[str, ...]
    runtime_packages: tuple[str, ...]
    repository: str | None


def planned(gpus: list[str], *, sketch: Mapping[str, Any] | None = None, **want_too: Any) -> Specs:
    """Of a plan of llama.cpp for all of `gpus`, unless `want_too` says another engine, as a node
    is told them; `sketch` says more of the node."""
    matrix = load_matrix()
    every = [str(index) for index in range(len(gpus))]
    wanted_model = {"model": "SmolLM2-135M-Instruct", "engine": "llama.cpp", "gpus": every}
    want = Want.from_data(wanted_model | want_too)
    document, _ = read_sketch({"gpus": gpus, **(sketch or {})}, matrix, want.layout)
    node = Host.from_document(document)
    plan = decide(node, want, matrix)
    assert isinstance(plan, Plan), plan.sentence()
    wanted = expectation(want=want, node=node, plan=plan, matrix=matrix, templates=TEMPLATES)
    fetch = fetch_specs(
        want=want,
        expected=wanted.expected,
        archives=wanted.making.files,
        changes=Changes(build="the test"),
        verify="quick",
    ).archive
    assert isinstance(wanted.making, Build)
    build = build_spec(wanted.expected, wanted.making, want, verify="quick")
    return Specs(
        fetch=fetch,
        build=build,
        build_packages=wanted.expected.build_packages,
        runtime_packages=wanted.expected.runtime_packages,
        repository=wanted.expected.repository,
    )


def specs(gpus: list[str], place: Path, shared: Path, **asked: Any) -> Specs:
    """What `planned` tells, for this machine: the engine below `place`, sources and toolkit below
    `shared`."""
    told = planned(gpus, **asked)
    driver = str(stub_driver(place))
    # Where there is no driver, its stand-in lies beside the binary, as the toolkit's libraries do.
    libraries = [*told.build["libraries"], driver]
    build = told.build | {"driver_library": [driver], "libraries": libraries}
    build |= {"devices": 0, "jobs": 2}
    moved = (
        ("/opt/gpuwright/toolkits", shared / "toolkits"),
        ("/var/cache/gpuwright/sources", shared / "sources"),
        ("/var/cache/gpuwright/ccache", shared / "ccache"),
        ("/var/cache/gpuwright", place / "cache"),
        ("/opt/gpuwright", place / "opt"),
        ("/run/gpuwright", place / "run"),
    )

    def relocated(spec: Any) -> Any:
        text = json.dumps(spec)
        for found, instead in moved:
            text = text.replace(found, str(instead))
        return json.loads(text)

    (shared / "toolkits").mkdir(parents=True, exist_ok=True)
    (place / "opt" / "engines").mkdir(parents=True, exist_ok=True)
    return replace(told, fetch=relocated(told.fetch), build=relocated(build))


def stub_driver(place: Path) -> Path:
    """A driver's library that has a card to name, and no memory on it: all else fails."""
    source = _DRIVER + "".join(f"int {name}(void) {{ return 100; }}\n" for name in _DRIVER_CALLS)
    (place / "driver").mkdir(parents=True, exist_ok=True)
    path = place / "driver" / "libcuda.so.1"
    command = ["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-x", "c", "-", "-o"]
    subprocess.run([*command, str(path)], input=source, text=True, check=True)
    return path
