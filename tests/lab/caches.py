"""What nodes share so that nothing is fetched or compiled twice: packages, objects, sources.

apt locks its archive directory, so nodes cannot share one: each gets its own, filled with hard
links from the common pool before it boots, and its new packages are linked back when it stops.
"""

import os
from contextlib import suppress
from pathlib import Path

from tests.lab.machine import directory

ARCHIVES = "/var/cache/apt/archives"
CCACHE = "/var/cache/gpuwright/ccache"
SOURCES = "/var/cache/gpuwright/sources"


def shared(name: str) -> Path:
    """A directory that every node sees as one and the same."""
    path = directory() / "cache" / name
    path.mkdir(parents=True, exist_ok=True)
    return path


def seed_archives(suite: str, own: Path) -> None:
    """Give a node every package of the pool; apt replaces files and never changes one in place."""
    _link_packages(shared(f"archives/{suite}"), own)


def harvest_archives(suite: str, own: Path) -> None:
    """Put what a node downloaded into the pool. apt has checked and renamed it: it is whole."""
    if own.exists():
        _link_packages(own, shared(f"archives/{suite}"))


def _link_packages(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    have = {package.name for package in target.glob("*.deb")}
    for package in source.glob("*.deb"):
        if package.name not in have:
            # Two nodes may bring the same package, or one may be deleting it just now.
            with suppress(FileExistsError, FileNotFoundError):
                os.link(package, target / package.name)
