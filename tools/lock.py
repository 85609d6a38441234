"""Lock an engine's release and prove it: `python -m tools.lock vllm 0.33.0`.

Resolves to one wheel a package and Python, installs that by its hashes into a scratch environment
for each Python, imports the engine and asks it on every card that the release claims; only then are
the lock and its row written into gpuwright/matrix/locks. A lock that is there is kept to, unless
`--upgrade`.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gpuwright.load import load_matrix
from gpuwright.lock_rows import LOCKS, CompanionRow, ConstraintRow, LockRow, Proof
from gpuwright.refusals import MatrixError, WantError
from gpuwright.versions import parse_version, within
from tools.emulation import HERE, Machine
from tools.engine_environment import CPU, ENGINES, EngineEnvironment, absent_pythons, install
from tools.lock_proof import prove
from tools.lock_resolve import (
    LockError,
    LockInputs,
    Resolution,
    Versions,
    lock_text,
    locked_versions,
    lowest,
    moved_lines,
)
from tools.lock_row import Asked, row_of, row_text
from tools.package_index import PackageIndex, UvError, add_settings, index_of


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 done, 1 not done, 2 bad usage."""
    parser = argparse.ArgumentParser(prog="python -m tools.lock", description=__doc__)
    configure(parser)
    told = parser.parse_args(arguments)
    try:
        print(lock(told))
    except (LockError, UvError, WantError) as error:
        print(f"lock: {error}", file=sys.stderr)
        return 1
    except MatrixError as error:
        print("\n".join(f"lock: {fault}" for fault in error.faults), file=sys.stderr)
        return 1
    return 0


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("engine")
    parser.add_argument("release")
    parser.add_argument("--build-tag", help="default: the release's first")
    parser.add_argument("--architecture", default="x86_64", choices=("x86_64", "aarch64"))
    parser.add_argument(
        "--emulate",
        type=Path,
        metavar="ROOT",
        help="folder with the root of a machine of that architecture, whose Pythons and compiler "
        "qemu-user runs here; default: this machine",
    )
    pythons = parser.add_mutually_exclusive_group()
    pythons.add_argument("--python", nargs="+", help="minor versions; default: the release's")
    pythons.add_argument(
        "--add-python",
        nargs="+",
        help="minor versions that the present lock gets besides; what others install stays, and so "
        "do their proofs",
    )
    parser.add_argument("--package", help="the project's name; default: the engine's")
    parser.add_argument("--glibc", help="C library to begin at; default: the release's")
    parser.add_argument(
        "--not-for",
        action="append",
        default=[],
        metavar="WHAT=WHY",
        help="a Python or architecture that it leaves out; repeatable",
    )
    parser.add_argument("--upgrade", action="store_true", help="do not keep to the present lock")
    parser.add_argument("--keep", type=Path, help="versions to keep to: name==version a line")
    parser.add_argument("--scratch", type=Path, default=ENGINES / "lock")
    add_settings(parser)


def lock(told: argparse.Namespace) -> str:
    """Do it; one line that says what was done."""
    inputs, capabilities, cuda = inputs_of(told)
    index = index_of(told, pip_folders=cuda is None)
    _check_index(inputs, index)
    machine = Machine(root=told.emulate.absolute()) if told.emulate else HERE
    machine.check(inputs.architecture)
    check_pythons(told.add_python or inputs.pythons, machine)
    with scratch_folder(told.scratch) as scratch:
        inputs, resolution = lowest(inputs, index, scratch, base_of(inputs, told))
        asked = Asked(
            inputs=inputs,
            resolution=resolution,
            cuda=cuda,
            reasons=_reasons(told, inputs),
            kept=_kept(told, inputs, resolution) if told.add_python else {},
            machine=machine,
        )
        row = publish(asked, index, scratch, lambda _: capabilities)
    return f"{row.id}: {row.packages} packages, {row.download_bytes} bytes to download"


def publish(
    asked: Asked,
    index: PackageIndex,
    scratch: Path,
    claimed: Callable[[EngineEnvironment], Sequence[str]],
) -> LockRow:
    """Prove it on each Python and write lock and row; LockError, and nothing written, where it does
    not hold. `claimed` says, of the first environment, which cards the release is for."""
    check_companions(asked.inputs, asked.resolution, load_matrix().companions)
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    inputs, text = asked.inputs, lock_text(asked.inputs, asked.resolution, date)
    file = scratch / f"{inputs.id}.txt"
    file.write_text(text, encoding="utf-8")
    capabilities: Sequence[str] = ()
    proofs = []
    for python in inputs.pythons:
        if python in asked.kept:
            proofs.append(asked.kept[python])
            continue
        try:
            environment = install(
                inputs.engine,
                inputs.release,
                asked.cuda,
                scratch,
                file,
                python=python,
                index=index,
                machine=asked.machine,
            )
            capabilities = capabilities or claimed(environment)
            proofs.append(prove(environment, locked_versions(text, python), capabilities, date))
        except subprocess.CalledProcessError as error:
            raise LockError(
                f"{inputs.id}, Python {python}: its own code, asked, ended with status "
                f"{error.returncode}; the end of what it said stands above"
            ) from error
        print(f"{inputs.id}: {proofs[-1]}", file=sys.stderr, flush=True)
    row = row_of(asked, text, proofs, index)
    (LOCKS / row.filename).write_text(text, encoding="utf-8")
    (LOCKS / f"{row.id}.yaml").write_text(row_text(row), encoding="utf-8")
    return row


@contextlib.contextmanager
def scratch_folder(path: Path) -> Iterator[Path]:
    """The folder, and a cache beside it; both are gone afterwards, unless the cache was there."""
    scratch, cache = path.absolute(), path.absolute().parent / "cache"
    ours = [scratch] if cache.exists() else [scratch, cache]
    scratch.mkdir(parents=True, exist_ok=True)
    try:
        yield scratch
    finally:
        for directory in ours:
            shutil.rmtree(directory, ignore_errors=True)


def _check_index(inputs: LockInputs, index: PackageIndex) -> None:
    for row in load_matrix().locks:
        if row.id == inputs.id and row.index == "vendor" and not index.extra:
            raise LockError(
                f"{row.id}: {row.package}'s wheels stand on an index of its vendor, "
                "needed --index URL, found none"
            )


def inputs_of(told: argparse.Namespace) -> tuple[LockInputs, tuple[str, ...], str | None]:
    """What is asked for, the cards that it must answer on, and the toolkit of the build."""
    matrix = load_matrix()
    row = next(
        (r for r in matrix.releases if (r.engine, r.release) == (told.engine, told.release)), None
    )
    tags = row.build_tags if row else ()
    tag = next((tag for tag in tags if told.build_tag in (None, tag.tag)), None)
    name = told.build_tag or (tag.tag if tag else "")
    present = matrix.lock(told.engine, told.release, name, told.architecture)
    glibc = told.glibc or (row.glibc if row else None) or (present.glibc if present else None)
    pythons = told.python or (present and present.python) or (row and row.python)
    if told.add_python:
        if present is None or not present.python:
            raise LockError(
                f"{told.engine} {told.release}: nothing is locked that a Python could be added to"
            )
        pythons = sorted({*present.python, *told.add_python}, key=parse_version)
    if not (glibc and pythons and name):
        raise LockError(
            f"{told.engine} {told.release}: its row has no build tag, C library or Python; "
            "needed here or there: --build-tag, --glibc, --python"
        )
    inputs = LockInputs(
        engine=told.engine,
        release=told.release,
        build_tag=name,
        architecture=told.architecture,
        package=told.package or (present.package if present else told.engine),
        glibc=glibc,
        pythons=tuple(pythons),
        constraints=constraints_for(matrix.constraints, told.engine, told.release, name),
    )
    cuda = tag.cuda if tag else None
    return inputs, (tag.carried(told.architecture) if tag and cuda else (CPU,)), cuda


def check_companions(
    inputs: LockInputs, resolution: Resolution, rows: Sequence[CompanionRow]
) -> None:
    """LockError where packages were resolved that do not go together."""
    for python, wheels in resolution.items():
        versions = {name: wheel.version for name, wheel in wheels.items()}
        broken = [said for row in rows if (said := row.broken_by(versions))]
        if broken:
            raise LockError(f"{inputs.id}, Python {python}: {'; '.join(broken)}")


def check_pythons(pythons: Sequence[str], machine: Machine = HERE) -> None:
    """LockError where one of them is not on the machine: what is not run is not proven."""
    absent = absent_pythons(pythons, machine)
    if absent:
        where = f"in {machine.root}" if machine.root else "on PATH"
        raise LockError(f"Python {', '.join(absent)}: needed {where} to prove a lock, found none")


def _kept(told: argparse.Namespace, inputs: LockInputs, resolution: Resolution) -> dict[str, Proof]:
    """The present lock's proofs, which hold on: nothing that they are of is installed otherwise."""
    row = next(row for row in load_matrix().locks if row.id == inputs.id)
    text = (LOCKS / row.filename).read_text(encoding="utf-8")
    kept = {python: row.proof(python) for python in row.python if python not in told.add_python}
    for python in kept:
        moved = moved_lines(text, python, resolution[python])
        if moved or inputs.glibc != row.glibc:
            raise LockError(
                f"{inputs.id}: with Python {', '.join(told.add_python)} it needs other wheels on "
                f"{python} too: {', '.join(moved) or f'C library {inputs.glibc}'}"
            )
    return kept


def constraints_for(
    rows: Sequence[ConstraintRow], engine: str, release: str, tag: str
) -> tuple[ConstraintRow, ...]:
    return tuple(
        row
        for row in rows
        if row.engine == engine
        and within(release, row.releases)
        and (not row.build_tags or tag in row.build_tags)
    )


def base_of(inputs: LockInputs, told: argparse.Namespace) -> dict[str, Versions]:
    """The versions to keep to, by Python."""
    if told.keep is not None:
        text = told.keep.read_text(encoding="utf-8")
        return {inputs.pythons[0]: locked_versions(text, inputs.pythons[0])}
    present = LOCKS / f"{inputs.id}.txt"
    if told.upgrade or not present.exists():
        return {}
    text = present.read_text(encoding="utf-8")
    constrained = {row.package for row in inputs.constraints}
    return {
        python: {
            name: version
            for name, version in locked_versions(text, python).items()
            if name not in constrained
        }
        for python in inputs.pythons
    }


def _reasons(told: argparse.Namespace, inputs: LockInputs) -> dict[str, str]:
    """What the lock is not for, and why: as told, else as the present lock's row says."""
    reasons = {}
    for row in load_matrix().locks:
        if row.id == inputs.id:
            reasons = {what: why for what, why in row.not_for.items() if what not in inputs.pythons}
    return reasons | {what: why for what, _, why in (text.partition("=") for text in told.not_for)}


if __name__ == "__main__":
    sys.exit(main())
