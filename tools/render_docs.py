"""docs/matrix/: pages rendered from the matrix and from what is decided by it.

`python -m tools.render_docs` writes those that differ, and removes what no row speaks of any more;
with `--check` it writes nothing and fails where a page is not what the rows say.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from gpuwright.catalogue import Matrix
from gpuwright.load import load_matrix
from tools.pages import (
    attention,
    engines,
    features,
    fit,
    gpus,
    hazards,
    models,
    recommendations,
    workloads,
)

DIRECTORY = Path(__file__).parent.parent / "docs" / "matrix"

PAGES: dict[str, Callable[[Matrix], str]] = {
    "engines.md": engines.render,
    "features.md": features.render,
    "attention.md": attention.render,
    "models.md": models.render,
    "fit.md": fit.render,
    "hazards.md": hazards.render,
    "gpus.md": gpus.render,
    "recommendations.md": recommendations.render,
    "workloads.md": workloads.render,
}


def stale(directory: Path = DIRECTORY) -> dict[str, str | None]:
    """Names of the pages that differ, each with what it should say; None: it should not be."""
    matrix = load_matrix()
    wanted = {name: render(matrix) for name, render in PAGES.items()}
    found = {path.name: path.read_text(encoding="utf-8") for path in directory.glob("*")}
    changed: dict[str, str | None] = {
        name: text for name, text in wanted.items() if found.get(name) != text
    }
    return changed | dict.fromkeys(sorted(set(found) - set(wanted)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, fail on a difference")
    arguments = parser.parse_args()
    DIRECTORY.mkdir(exist_ok=True)
    pages = stale()
    for name, text in pages.items():
        path = DIRECTORY / name
        if arguments.check:
            print(f"{path.relative_to(DIRECTORY.parent.parent)} is not what the rows say")
        elif text is None:
            path.unlink()
            print(f"removed {name}")
        else:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {name}")
    return int(arguments.check and bool(pages))


if __name__ == "__main__":
    sys.exit(main())
