"""Bring in an engine's release in one command: `python -m tools.bump vllm 0.34.0`.

Locks and proves it, records what its own code answers, reads which cards its binaries hold code
for, writes the release's row from those and the row of the release before it, and shows which
golden plans change. Nothing is committed: the diff is what is reviewed, `git checkout .` undoes it.
"""

from __future__ import annotations

import argparse
import datetime
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from gpuwright.catalogue import nearest
from gpuwright.engine_rows import ReleaseRow
from gpuwright.launch_words import cache_word
from gpuwright.load import MATRIX, load_matrix
from gpuwright.records import RECORDS, Record, load_record, recorded
from gpuwright.refusals import WantError
from gpuwright.versions import parse_version
from tools.ask_engine import record
from tools.bump_row import insert_row, skeleton
from tools.engine_environment import (
    ENGINES,
    TOOLCHAINS,
    EngineEnvironment,
    absent_pythons,
)
from tools.lock import Asked, constraints_for, publish, scratch_folder
from tools.lock_resolve import LockError, LockInputs, Resolution, lowest
from tools.package_index import PackageIndex, UvError, add_settings, index_of
from tools.sm_scan import Targets, lines, scan

ROOT = MATRIX.parent.parent
OWN = {"vllm": ("vllm",), "sglang": ("sgl_kernel", "sglang")}
"""Engine -> the packages that hold its own binaries."""
RUNTIMES = ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 done, 1 not done, 2 bad usage."""
    parser = argparse.ArgumentParser(prog="python -m tools.bump", description=__doc__)
    parser.add_argument("engine", choices=sorted(TOOLCHAINS))
    parser.add_argument("release")
    parser.add_argument("--base", help="the release whose row is taken over; default: the nearest")
    parser.add_argument(
        "--python", nargs="+", help="minor versions; default: the base's that are on this machine"
    )
    parser.add_argument("--scratch", type=Path, default=ENGINES / "bump")
    add_settings(parser)
    told = parser.parse_args(arguments)
    try:
        bump(told)
    except (LockError, UvError, WantError) as error:
        print(f"bump: {error}", file=sys.stderr)
        return 1
    return 0


def bump(told: argparse.Namespace) -> None:
    base = base_of(told.engine, told.release, told.base)
    told.python, reasons = pythons_of(told.python, base, absent_pythons)
    index, seen = index_of(told), Seen()
    with scratch_folder(told.scratch) as scratch:
        inputs, resolution = _resolved(told, base, index, scratch)
        toolkit = toolkit_of(resolution)
        say(f"{inputs.id}: from {base.id}; C library {inputs.glibc}, CUDA {toolkit}")

        def claimed(environment: EngineEnvironment) -> Sequence[str]:
            record(environment, RECORDS)
            packages = next(environment.directory.glob("venv/lib/python*/site-packages"))
            seen.targets.update(scan(packages))
            return capabilities(told.engine, seen.targets)

        asked = Asked(inputs=inputs, resolution=resolution, cuda=toolkit, reasons=reasons)
        row = publish(asked, index, scratch, claimed)
    say("\n".join(lines(seen.targets)))
    claims = capabilities(told.engine, seen.targets)
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    text = skeleton(base, row, toolkit, claims, date)
    insert_row(MATRIX / "engines" / f"{told.engine}.yaml", base, told.release, text)
    say(f"{row.id}: {row.packages} packages, {row.download_bytes} bytes; code for {claims}")
    if (told.engine, base.release) in recorded():
        records = (load_record(told.engine, each) for each in (base.release, told.release))
        say("\n".join(flags_moved(*records)))
    say("\n".join(caches_moved(base, load_record(told.engine, told.release))))
    _show_what_changes(row.id)


class Seen:
    """What the binaries of the first environment hold."""

    def __init__(self) -> None:
        self.targets: dict[str, Targets] = {}


def base_of(engine: str, release: str, name: str | None) -> ReleaseRow:
    """The row that the new one is written from: of the newest release with CUDA below it, else of
    the oldest."""
    known = [row for row in load_matrix().releases if row.engine == engine]
    rows = [row for row in known if any(tag.cuda for tag in row.build_tags)]
    if any(row.release == release for row in known):
        raise LockError(f"{engine} {release}: its row stands already; `tools.lock` locks it anew")
    if name is not None:
        for row in rows:
            if row.release == name:
                return row
        near = nearest(name, [row.release for row in rows])
        raise LockError(f"--base {name}: {engine} has no such release{near}")
    rows.sort(key=lambda row: parse_version(row.release))
    older = [row for row in rows if parse_version(row.release) < parse_version(release)]
    return older[-1] if older else rows[0]


def pythons_of(
    told: Sequence[str] | None, base: ReleaseRow, absent: Callable[[Sequence[str]], Sequence[str]]
) -> tuple[list[str], dict[str, str]]:
    """Minor versions to lock for, and why not for the others; LockError where one that was told,
    or every one of the base's, is not on this machine."""
    missing = absent(told or base.python)
    pythons = [minor for minor in told or base.python if minor not in missing]
    if missing and (told or not pythons):
        raise LockError(f"Python {', '.join(missing)}: needed on PATH to prove a lock, found none")
    return pythons, dict.fromkeys(missing, "no interpreter of it was had to prove it with")


def flags_moved(base: Record, new: Record) -> list[str]:
    """Options of the server that went and came between two records."""
    before, after = (
        {name for first, flag in record.flags.items() for name in (first, *flag.also)}
        for record in (base, new)
    )
    return [
        f"  options {what} since {base.release}: {', '.join(sorted(names)) or 'none'}"
        for what, names in (("gone", before - after), ("new", after - before))
    ]


def caches_moved(base: ReleaseRow, record: Record) -> list[str]:
    """KV cache types in which the row that is taken over and the engine's own record differ."""
    named = record.axes.kv
    words = {row.id: cache_word(base.engine, row.id) for row in load_matrix().kv_cache_dtypes}
    known = base.kv_cache_dtypes
    more = [each for each, word in words.items() if word in named and each not in known]
    gone = [each for each in known if words[each] not in named]
    return [
        f"  KV cache types that it names, and {base.id} has not: {', '.join(more) or 'none'}",
        f"  KV cache types of {base.id} that it does not name: {', '.join(gone) or 'none'}",
    ]


def capabilities(engine: str, targets: dict[str, Targets]) -> tuple[str, ...]:
    """Cards that both the engine's own binaries and torch's hold machine code for."""
    own, torch = set[str](), set[str]()
    for name, found in targets.items():
        package = name.partition("/")[0]
        if package in OWN[engine]:
            own |= found.code.keys()
        elif package == "torch":
            torch |= found.code.keys()
    return tuple(sorted(own & torch, key=parse_version))


def toolkit_of(resolution: Resolution) -> str:
    """The toolkit whose runtime is installed: "13.0"."""
    wheels = next(iter(resolution.values()))
    for name in RUNTIMES:
        if name in wheels:
            return ".".join(wheels[name].version.split(".")[:2])
    raise LockError(f"none of {', '.join(RUNTIMES)} is needed by it")


def _resolved(
    told: argparse.Namespace, base: ReleaseRow, index: PackageIndex, scratch: Path
) -> tuple[LockInputs, Resolution]:
    matrix = load_matrix()

    def inputs(tag: str) -> LockInputs:
        return LockInputs(
            engine=told.engine,
            release=told.release,
            build_tag=tag,
            architecture="x86_64",
            package=told.engine,
            glibc=base.glibc or "2.28",
            pythons=tuple(told.python),
            constraints=constraints_for(matrix.constraints, told.engine, told.release, tag),
        )

    asked, resolution = lowest(
        inputs(next(tag.tag for tag in base.build_tags if tag.cuda)), index, scratch, {}
    )
    tag = f"cu{toolkit_of(resolution).replace('.', '')}"
    if tag != asked.build_tag:
        asked, resolution = lowest(inputs(tag), index, scratch, {})
    return asked, resolution


def _show_what_changes(row: str) -> None:
    """Golden plans anew as a diff, and whether our rows choose what the engine chose."""
    python = sys.executable
    tests = [f"tests/unit/test_{name}.py" for name in ("load", "records", "flags", "locks")]
    failed = []
    for words in (
        [python, "-m", "tools.golden"],
        [python, "-m", "pytest", "-q", *tests],
        ["git", "--no-pager", "diff", "--", "tests/plans"],
        ["git", "status", "--short"],
    ):
        say(f"$ {' '.join(words)}")
        if subprocess.run(words, cwd=ROOT, check=False).returncode != 0:
            failed.append(" ".join(words[1:3]))
    if failed:
        raise LockError(
            f"{row} is locked and recorded; its row needs what {' and '.join(failed)} say above"
        )


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
