"""What a source tree, a compiler and ninja tell a build, and what they are to be called with."""

from __future__ import annotations

import os
import re

from gpuwright.onnode.outcome import NodeError, clean


def driver_library(places: list[str]) -> list[str]:
    """The argument that names the driver's own library, which no toolkit of wheels brings.

    NodeError: none of `places` has it. Without it no binary reaches a card.
    """
    if not places:
        return []
    for path in places:
        if os.path.isfile(path):
            return [f"-DCUDA_cuda_driver_LIBRARY={path}"]
    raise NodeError(
        f"the driver's library {os.path.basename(places[0])} is not on this node",
        "install the part of the driver that computes (libcuda1, libnvidia-compute-...)",
    )


def source_directory(source: str, subdir: str) -> str:
    """The named directory in the tree, or the one nearest to its top with a CMakeLists.txt.

    A name counts from the archive's single top directory, as the archive's own name changes with
    every release. NodeError: there is none.
    """
    tops = os.listdir(source)
    root = f"{source}/{tops[0]}" if len(tops) == 1 else source
    if subdir:
        named = os.path.normpath(f"{root}/{subdir}")
        if named.startswith(source + "/") and os.path.isfile(f"{named}/CMakeLists.txt"):
            return named
        raise NodeError(f"the source archive has no {subdir}/CMakeLists.txt")
    level = [root]
    while level:
        for place in level:
            if os.path.isfile(f"{place}/CMakeLists.txt"):
                return place
        level = [
            entry.path
            for place in level
            for entry in sorted(os.scandir(place), key=lambda one: one.name)
            if entry.is_dir(follow_symlinks=False)
        ]
    raise NodeError("the source archive has no CMakeLists.txt")


def c_compiler(cxx: str) -> str:
    """The C compiler that belongs to a C++ compiler: g++-12 and gcc-12, clang++ and clang."""
    head, slash, name = cxx.rpartition("/")
    return (
        head + slash + name.replace("clang++", "clang").replace("g++", "gcc").replace("c++", "cc")
    )


def steps(line: str) -> tuple[int, int] | None:
    """How far ninja is, from one of its lines."""
    match = re.match(r"\[(\d+)/(\d+)\] ", line)
    return (int(match.group(1)), int(match.group(2))) if match else None


def first_error(lines: list[str]) -> str | None:
    """The first line that names an error, as compilers, cmake and linkers write them."""
    for number, line in enumerate(lines):
        if re.search(r"\b(?:fatal )?error\b ?:|undefined reference|CMake Error", line, re.I):
            after = next((one.strip() for one in lines[number + 1 :] if one.strip()), "")
            joined = f"{line.strip()} {after}" if line.startswith("CMake Error at") else line
            return clean(joined.strip(), 300)
        if "Killed signal terminated" in line:
            return "a compiler was killed, most likely for want of memory"
    return None
