"""Build llama.cpp on one node, and copy it to those of which the same is wanted."""

import contextlib
import os
from collections.abc import Collection, Generator, Iterable, Mapping
from pathlib import Path
from typing import Any

from pyinfra import host
from pyinfra.api import FunctionCommand, Host, QuoteString, State, StringCommand, operation

from deploys.operations.programs import connection, program, run_program
from gpuwright.onnode.retire import old_ones
from gpuwright.onnode.storage import sha256_of


@operation()
def engine_is_built(
    reason: str | None, spec: Mapping[str, Any] | None
) -> Generator[FunctionCommand]:
    """Build out of tree into a directory named by the content key, prove it, then rename it in."""
    if not reason or spec is None:
        host.noop("a proven build of this key stands")
        return
    yield program("build", spec)


@operation()
def engine_is_handed_over(
    spec: Mapping[str, Any] | None, packed: Path | None, wanted: Collection[Path], keep: int
) -> Generator[FunctionCommand]:
    """Bring the build that stands here to the control machine, where others need it; of builds
    there that are not `wanted` in this run the newest `keep` of each engine stay."""
    if spec is None or packed is None:
        host.noop("no other node needs this build from here")
        return
    yield FunctionCommand(_fetch, (dict(spec), packed, frozenset(wanted), keep), {})


@operation()
def engine_is_taken_over(
    reason: str | None, spec: Mapping[str, Any] | None, packed: Path | None
) -> Generator[FunctionCommand]:
    """Put the build that another node has made into place, once it is proven here."""
    if not reason or spec is None or packed is None:
        host.noop("no build is taken over from another node")
        return
    yield FunctionCommand(_bring, (dict(spec), packed), {})


def _fetch(
    state: State,
    host: Host,
    spec: dict[str, Any],
    packed: Path,
    wanted: frozenset[Path],
    keep: int,
) -> bool:
    result = run_program(host, "share", spec)
    if result is None:
        return False
    packed.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = packed.with_suffix(".partial")
    if not host.get_file(spec["packed"], str(partial), **connection(host)):
        return False
    remove = StringCommand("rm", "-f", "--", QuoteString(str(spec["packed"])))
    host.run_shell_command(remove, **connection(host))
    found = sha256_of(str(partial))
    if found != result["sha256"]:
        host.log_styled(f"{partial}: sha256 is {found[:16]}..., not the node's", fg="red")
        return False
    partial.replace(packed)
    sum_of(packed).write_text(found + "\n")
    for path in old_builds(packed.parent.glob("*.tar"), wanted, keep):
        path.unlink(missing_ok=True)
        sum_of(path).unlink(missing_ok=True)
    return True


def _bring(state: State, host: Host, spec: dict[str, Any], packed: Path) -> bool:
    try:
        wanted = sum_of(packed).read_text().strip()
        found = sha256_of(str(packed))
    except OSError:
        host.log_styled(
            "the node that makes this build has not handed it over: see there, then run again",
            fg="red",
        )
        return False
    if found != wanted:
        packed.unlink(missing_ok=True)
        host.log_styled(f"{packed}: sha256 is {found[:16]}..., run again to have it anew", fg="red")
        return False
    packed.touch()  # the newest in use is the last to be removed
    remote = spec["packed"]
    if not host.put_file(str(packed), remote, **connection(host)):
        return False
    return (
        run_program(host, "build", spec | {"packed": {"path": remote, "sha256": wanted}})
        is not None
    )


def old_builds(packed: Iterable[Path], wanted: Collection[Path], keep: int) -> list[Path]:
    """Of packed builds that are not `wanted` all but the newest `keep` of each engine."""
    made: dict[str, tuple[int, Path]] = {}
    for path in packed:
        if path not in wanted:
            with contextlib.suppress(FileNotFoundError):  # another run was quicker
                made[path.name] = path.stat().st_mtime_ns, path
    old = old_ones([(when, name) for name, (when, _) in made.items()], keep)
    return [made[name][1] for name in old]


def sum_of(packed: Path) -> Path:
    """The file that says the sha256 of a packed build; it is written last."""
    return packed.with_suffix(".sha256")


def builds_directory() -> Path:
    """Where the control machine keeps builds that it has handed on."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "gpuwright" / "builds"
