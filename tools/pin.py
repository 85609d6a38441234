"""Record what a checkpoint's repository holds, from its hub: `python -m tools.pin CHECKPOINT`.

Commit, files, sizes and hashes are the hub's own words, or those of bytes read here; none is
invented. A file that the strict loader would refuse never takes the place of the old one.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path

from gpuwright.load import MATRIX
from gpuwright.refusals import MatrixError
from gpuwright.sizes import size_interval
from tools.pin_hub import HubError, Listing, PinnedFile, files_of, listing
from tools.pin_rows import RowError, Target, replace_file, target

HUB = "https://huggingface.co"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", help="id or alias of a checkpoint row")
    parser.add_argument(
        "--file",
        type=Path,
        default=MATRIX / "models",
        help="file with its row, or a directory of files: ours (default)",
    )
    parser.add_argument("--hub", default=HUB, help=f"a Hugging Face compatible hub ({HUB})")
    parser.add_argument("--revision", default="main", help="branch, tag or commit (main)")
    parser.add_argument(
        "--include",
        action="append",
        default=[],
        metavar="GLOB",
        help="files to record; may be given again (default: what the format needs)",
    )
    parser.add_argument("--token-file", type=Path, help="file that holds the hub's token")
    parser.add_argument("--dry-run", action="store_true", help="show the change, write nothing")


def pin(arguments: argparse.Namespace) -> list[str]:
    """Do it; lines that say what was done. HubError, RowError, MatrixError: why not."""
    row = target(arguments.file, arguments.checkpoint)
    token = _token(arguments.token_file)
    found: Listing = listing(arguments.hub, row.repo, arguments.revision, token)
    files = files_of(found, row.format, arguments.include)
    _check_size(row, files)
    before, after = row.text, row.pinned(files, found.repo, found.commit)
    if before == after:
        return [f"{row.id}: nothing to change, {found.repo} is at {found.commit}"]
    if arguments.dry_run:
        name = str(row.path)
        diff = difflib.unified_diff(before.splitlines(), after.splitlines(), name, name, "", "")
        return [line.rstrip("\n") for line in diff]
    replace_file(row.path, after)
    total = sum(file.bytes for file in files)
    return [
        f"{row.id}: {len(files)} files of {found.repo} at {found.commit}, {total:,} bytes",
        *(f"  {file.path}: {file.bytes:,} bytes, sha256 {file.sha256}" for file in files),
    ]


def _token(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        token = path.expanduser().read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise HubError(
            f"--token-file {path}: {getattr(error, 'strerror', 'is not text')}"
        ) from None
    if not token or not token.isprintable() or " " in token:
        raise HubError(f"--token-file {path}: needs one token")
    return token


def _check_size(row: Target, files: list[PinnedFile]) -> None:
    """Too many files are as wrong as too few: two quantizations in one row would pass a minimum.

    A row whose size was never published has nothing to be compared with.
    """
    if row.size is None:
        return
    least, most = size_interval(row.size)
    weights = sum(file.bytes for file in files if file.is_weights)
    if not least <= weights <= most:
        names = ", ".join(file.path for file in files if file.is_weights) or "no file"
        raise RowError(
            f"{row.id}: weights of {least:,} to {most:,} bytes needed ({row.size} published), "
            f"found {weights:,} in {names}; --include picks files, or the row's size is wrong"
        )


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0 done, 1 not done, 2 bad usage."""
    parser = argparse.ArgumentParser(prog="python -m tools.pin", description=__doc__)
    configure(parser)
    arguments = parser.parse_args(argv)
    try:
        lines = pin(arguments)
    except (HubError, RowError) as error:
        print(f"pin: {error}", file=sys.stderr)
        return 1
    except MatrixError as error:
        for fault in error.faults:
            print(f"pin: {fault}", file=sys.stderr)
        return 1
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
