"""From a plan to everything that must stand on its node, and what the probe must look at."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gpuwright.builds import Build, build_of, build_spec
from gpuwright.catalogue import Matrix
from gpuwright.environments import Environment, environment_of, environment_spec
from gpuwright.expected import Expected
from gpuwright.host import Host
from gpuwright.launch import Launch, launch, model_path_of
from gpuwright.launch_environment import CudaCompiler
from gpuwright.layout import ARCHIVES, SYSTEM, TOOLKIT, Layout
from gpuwright.named_files import files_environment, namings, read_at_start
from gpuwright.plan import Plan
from gpuwright.rehearsals import cards_asked
from gpuwright.rows import DistroRow
from gpuwright.units import render_unit
from gpuwright.versions import within
from gpuwright.want import Want

# Starting is reading the model once from a slow disk, and then some.
_SLOWEST_DISK_BYTES_PER_SECOND = 100 << 20
_SHORTEST_START_SECONDS = 120
_COMPILING_BYTES_PER_JOB = 3 << 30
_KERNEL_SECONDS = 2400
"""What one compiler alone may take for all that a first start needs. Measured for 8.6, in seconds
of a processor (tests/engines/compile_kernels.py): of FlashInfer pages up to 30, decoding 35,
prefill 97, sampling 114, of SGLang's own one 8. With three kinds of attention and twenty of
SGLang's own that is 700: the rest is for slow processors, and counts only while one compiles."""
_COMPILING_SECONDS = 480
"""What an engine may take beside that which imports some thousand modules and compiles kernels."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """What must stand on the node, and how its engine is made."""

    expected: Expected
    making: Build | Environment
    start: Launch
    serve: tuple[str, ...]
    """The server's command below the engine's directory, where the release has one of its own."""
    cards: dict[str, Any] | None
    """What its environment is asked about the plan's cards."""


def probe_spec(want: Want, *, verify: str, packages: Iterable[str]) -> dict[str, Any]:
    """What the probe has to look at for a want: known before there is a plan, so that one round
    trip is enough. `packages` are all that any plan could ask for."""
    layout = want.layout
    return {
        "layout": asdict(layout),
        "service": want.service,
        "bind": want.bind,
        "port": want.port,
        "packages": sorted(packages),
        "named": {each.path: each.served for each in namings(want)},
        "disks": [layout.model_store, layout.engines, layout.cache, ARCHIVES, SYSTEM],
        "verify": verify,
    }


def probe_packages(matrix: Matrix) -> frozenset[str]:
    """Every package that some plan on some distribution could need."""
    return frozenset(
        package
        for distro in matrix.distros
        for package in (
            *distro.older_compilers,
            *distro.build_packages,
            *distro.runtime_packages,
            *distro.libraries.values(),
            *distro.kernel_packages,
            distro.python_headers,
        )
    ) | frozenset(
        package
        for row in matrix.toolkits
        for package in (*row.build_packages, *row.runtime_packages, *row.kernel_packages)
    )


def start_timeout_seconds(want: Want, plan: Plan, *, compiles: bool = False) -> int:
    """How long a start may take: the operator's word, else by the size of what is read."""
    if want.start_timeout_seconds is not None:
        return want.start_timeout_seconds
    whole = sum(file.bytes for each in plan.checkpoints for file in each.files)
    reading = whole // _SLOWEST_DISK_BYTES_PER_SECOND
    return _SHORTEST_START_SECONDS + reading + (_COMPILING_SECONDS if compiles else 0)


def compiler_seconds(want: Want, compiler: CudaCompiler | None) -> int:
    """How much longer a start may take while compilers are seen at work, by how many may be at
    once; none where the operator has said how long a start may take, or nothing is compiled."""
    if compiler is None or want.start_timeout_seconds is not None:
        return 0
    return _KERNEL_SECONDS // compiler.jobs


def expectation(*, want: Want, node: Host, plan: Plan, matrix: Matrix, templates: Path) -> Wanted:
    """The expected state of the node for `plan`; only for plans that can be applied."""
    layout = want.layout
    release = matrix.engine_release(plan.engine, plan.release)
    distro = matrix.distro(node)
    making: Build | Environment
    engine_files: tuple[str, ...]
    if release.build is not None:
        making = build_of(
            want=want, plan=plan, release=release, distro=distro, node=node, matrix=matrix
        )
        engine_files = making.programs
        needed = making.packages
    else:
        making = environment_of(
            want=want, plan=plan, release=release, distro=distro, node=node, matrix=matrix
        )
        engine_files = ("pyvenv.cfg", "requirements.txt")
        needed = ()
    if isinstance(making, Environment):
        libraries = _packages_beside(making, distro)
    else:
        libraries = making.runtime_packages
    installed = isinstance(making, Environment)
    engine_dir = layout.engine_dir(plan.engine, plan.release, making.key)
    serve = release.environment.serve if release.environment is not None else ()
    compiler = cuda_compiler(making, engine_dir, node, layout)
    start = launch(plan, layout, model_path_of(plan, layout), engine_dir, serve, compiler)
    named = files_environment(want, node.named)
    start = replace(start, environment=start.environment | named)
    backends = (
        row for row in matrix.backends(plan.engine) if row.backend == plan.attention_backend
    )
    backend = next((row for row in backends if within(plan.release, row.releases)), None)
    cards = cards_asked(release, plan, backend, compiles=compiler is not None)
    expected = Expected(
        layout=layout,
        plan=plan,
        engine_dir=engine_dir,
        engine_files=engine_files,
        installed=installed,
        unit=render_unit(
            plan=plan,
            launch=start,
            layout=layout,
            engine_dir=engine_dir,
            templates=templates,
            systemd_version=node.systemd_version or 0,
        ),
        secret_names=start.secret_names,
        named_files=read_at_start(want),
        build_packages=needed,
        runtime_packages=(*distro.runtime_packages, *libraries),
        repository=making.toolchain.repository if making.toolchain else None,
        start_timeout_seconds=start_timeout_seconds(want, plan, compiles=start.compiles),
        compiler_seconds=compiler_seconds(want, compiler),
    )
    return Wanted(expected=expected, making=making, start=start, serve=serve, cards=cards)


def cuda_compiler(
    making: Build | Environment, engine_dir: str, node: Host, layout: Layout
) -> CudaCompiler | None:
    """What an environment compiles kernels with, its own or the node's, with as many jobs as there
    are threads, and memory for: a power of two, so that no other kernel's view of the RAM changes a
    unit."""
    if not isinstance(making, Environment):
        return None
    by_memory = (node.memory_total_bytes or 0) // _COMPILING_BYTES_PER_JOB
    most = max(1, min(node.cpu_threads or 1, by_memory))
    jobs = 1 << (most.bit_length() - 1)
    if making.row.toolkit is not None:
        return CudaCompiler(toolkit=f"{engine_dir}/{TOOLKIT}", jobs=jobs)
    found = making.toolchain
    if found is None:
        return None
    host = f"/usr/bin/{found.compiler}"
    return CudaCompiler(toolkit=found.directory(layout), jobs=jobs, host=host)


def _packages_beside(environment: Environment, distro: DistroRow) -> tuple[str, ...]:
    """What of the distribution an environment needs as it runs."""
    row = environment.row
    packages = tuple(distro.libraries[name] for name in row.libraries)
    if row.compiles:
        packages += distro.kernel_packages
        # One that is brought to the node has its headers.
        packages += () if environment.python.headers else (distro.python_headers,)
    if environment.toolchain is not None:
        packages += environment.toolchain_packages
    return packages


def making_spec(wanted: Wanted, want: Want, *, verify: str) -> dict[str, Any]:
    """The spec of the carried program that makes the engine: environment or build."""
    if isinstance(wanted.making, Environment):
        return environment_spec(wanted.making, want, wanted.expected.engine_dir, verify=verify)
    return build_spec(wanted.expected, wanted.making, want, verify=verify)


def gate_spec(wanted: Wanted) -> dict[str, Any]:
    """The carried gate program's spec."""
    expected = wanted.expected
    plan = expected.plan
    return {
        "unit": expected.unit_name,
        "bind": plan.bind,
        "port": plan.port,
        "served_model_name": plan.served_model_name,
        "env_file": expected.environment_path,
        "deadline_seconds": expected.start_timeout_seconds,
        "compiler_seconds": expected.compiler_seconds,
        "prompt": "What is the capital of France? Answer in one sentence.",
        "gpu_uuids": [gpu.uuid for gpu in plan.gpus],
        "kept": [expected.unit_path, expected.record_path],
    }
