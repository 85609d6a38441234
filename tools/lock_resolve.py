"""Resolve an engine's release to exactly one wheel a package and Python, and write it as a lock."""

from __future__ import annotations

import dataclasses
import hashlib
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

from gpuwright.lock_rows import ConstraintRow
from tools.package_index import PackageIndex, UvError, bytes_at, uv

_OLD_NAMES = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
_FLOORS = (17, 28, *range(31, 41))
"""C libraries that uv knows as platforms: 2.17 and so on."""
_UNREACHED = "Failed to fetch"
Versions = dict[str, str]
"""Name of a package -> its version."""


class LockError(Exception):
    """There is no such lock; the text says which line of it, and why."""


class UnreachedError(LockError):
    """An index did not answer: nothing is known of what it has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LockInputs:
    """What is asked for."""

    engine: str
    release: str
    build_tag: str
    architecture: str
    package: str
    glibc: str
    pythons: tuple[str, ...]
    constraints: tuple[ConstraintRow, ...]

    @property
    def id(self) -> str:
        return f"{self.engine}-{self.release}-{self.build_tag}-{self.architecture}"

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.release}"

    @property
    def pins(self) -> list[str]:
        return [f"{row.package}{row.specifier}" for row in self.constraints if row.specifier]

    @property
    def left_out(self) -> list[str]:
        return [row.package for row in self.constraints if row.left_out]


@dataclass(frozen=True, kw_only=True, slots=True)
class Wheel:
    """The file that one Python installs of a package."""

    name: str
    version: str
    sha256: str
    bytes: int
    local: bool
    """It is in a folder, not in an index."""


Resolution = dict[str, dict[str, Wheel]]
"""Python -> name of a package -> its wheel."""


def lowest(
    inputs: LockInputs, index: PackageIndex, scratch: Path, base: dict[str, Versions]
) -> tuple[LockInputs, Resolution]:
    """As `resolve`, for the oldest C library from the inputs' on that has wheels for everything:
    the engine's own wheel may well be for an older one than a library that it needs."""
    first: LockError | None = None
    for minor in _FLOORS:
        if minor < int(inputs.glibc.split(".")[1]):
            continue
        tried = dataclasses.replace(inputs, glibc=f"2.{minor}")
        try:
            return tried, resolve(tried, index, scratch, base)
        except UnreachedError:
            raise
        except LockError as error:
            first = first or error
    raise first or LockError(f"{inputs.id}: C library {inputs.glibc} is newer than any known here")


def resolve(
    inputs: LockInputs, index: PackageIndex, scratch: Path, base: dict[str, Versions]
) -> Resolution:
    """What each Python would install; versions of `base` (by Python) are kept to.

    A Python that `base` does not have prefers the versions of the one before it. LockError where
    nothing fits, or where only a source would do: nothing is built on a node.
    """
    found: Resolution = {}
    out = scratch / "pylock.toml"
    out.unlink(missing_ok=True)
    for python in inputs.pythons:
        pins = [*inputs.pins, *(f"{n}=={v}" for n, v in base.get(python, {}).items())]
        options = [
            *("--constraints", str(_listed(scratch / "constraints.txt", pins))),
            *("--excludes", str(_listed(scratch / "left-out.txt", inputs.left_out))),
            *("--python-version", python, "--no-build", "--format", "pylock.toml"),
            *("--python-platform", _uv_platform(inputs)),
        ]
        asked = _listed(scratch / "asked.txt", [inputs.requirement])
        try:
            uv("pip", "compile", "-q", *options, "-o", str(out), str(asked), index=index)
        except UvError as error:
            kind = UnreachedError if _UNREACHED in str(error) else LockError
            raise kind(f"{inputs.id}, Python {python}: {error}") from error
        with out.open("rb") as file:
            packages = tomllib.load(file)["packages"]
        wheels = list(_wheels(inputs, python, packages, index))
        found[python] = {wheel.name: wheel for wheel in wheels}
    return found


def lock_text(inputs: LockInputs, resolution: Resolution, date: str) -> str:
    """The lock's file: one line a package and set of Pythons, each with its files' hashes."""
    pythons = list(resolution)
    version = uv("--version").split()[1]
    asked = [inputs.requirement, *inputs.pins, *(f"without {name}" for name in inputs.left_out)]
    lines = [
        f"# {inputs.engine} {inputs.release}, build {inputs.build_tag}, {inputs.architecture}, "
        f"C library {inputs.glibc} or newer, Python {', '.join(pythons)}",
        f"# From: {'; '.join(asked)}",
        f"# By: tools/lock.py with uv {version} on {date}. Install: uv pip sync --require-hashes",
    ]
    for name in sorted({name for wheels in resolution.values() for name in wheels}):
        versions: dict[str, list[str]] = {}
        for python in pythons:
            if name in resolution[python]:
                versions.setdefault(resolution[python][name].version, []).append(python)
        for number, minors in versions.items():
            hashes = sorted({resolution[python][name].sha256 for python in minors})
            marker = " or ".join(f'python_version == "{python}"' for python in minors)
            only = f" ; {marker}" if minors != pythons else ""
            lines.append(f"{name}=={number}{only} \\")
            lines += [f"    --hash=sha256:{each} \\" for each in hashes]
            lines[-1] = lines[-1].removesuffix(" \\")
    return "".join(f"{line}\n" for line in lines)


def locked_versions(text: str, python: str) -> Versions:
    """What a lock's text installs on a minor version of Python."""
    found: Versions = {}
    for line in text.replace("\\\n", "").splitlines():
        words = line.partition(" --hash")[0].strip()
        if not words or words.startswith(("#", "-")):
            continue
        requirement = Requirement(words)
        environment = {"python_version": python}
        if requirement.marker is None or requirement.marker.evaluate(environment):
            (pin,) = requirement.specifier
            found[canonicalize_name(requirement.name)] = pin.version
    return found


def moved_lines(text: str, python: str, wheels: dict[str, Wheel]) -> list[str]:
    """Of what a Python would install, and of what a lock's text installs there, the rest: packages
    with another version, or another wheel of it."""
    before = locked_versions(text, python)
    after = {name: wheel.version for name, wheel in wheels.items()}
    other = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    other |= {name for name, wheel in wheels.items() if wheel.sha256 not in text}
    return sorted(other)


def download_bytes(resolution: Resolution) -> int:
    """All wheels, for the Python that needs most."""
    return max(sum(wheel.bytes for wheel in wheels.values()) for wheels in resolution.values())


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _wheels(
    inputs: LockInputs, python: str, packages: Sequence[dict[str, Any]], index: PackageIndex
) -> Iterator[Wheel]:
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "platform_machine": inputs.architecture,
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    order = {tag: number for number, tag in enumerate(_tags(inputs, python))}
    for package in packages:
        if "marker" in package and not Marker(package["marker"]).evaluate(environment):
            continue
        ranked = sorted(
            (rank, entry["url"], entry)
            for entry in package.get("wheels", ())
            if (rank := _rank(entry["url"], order)) is not None
        )
        if not ranked:
            raise LockError(
                f"{package['name']}=={package['version']}: no wheel for Python {python}, "
                f"{inputs.architecture}, C library {inputs.glibc}"
            )
        _, url, entry = ranked[0]
        local = urlsplit(url).scheme == "file"
        size = entry.get("size") or (
            Path(unquote(urlsplit(url).path)).stat().st_size if local else bytes_at(url, index)
        )
        yield Wheel(
            name=canonicalize_name(package["name"]),
            version=package["version"],
            sha256=entry["hashes"]["sha256"],
            bytes=size,
            local=local,
        )


def _rank(url: str, order: dict[Tag, int]) -> tuple[int, int] | None:
    """Smaller is better: the nearest tag, then the newest build; None where none fits."""
    filename = unquote(urlsplit(url).path).rpartition("/")[2]
    _, _, build, tags = parse_wheel_filename(filename)
    ranks = [order[tag] for tag in tags if tag in order]
    return (min(ranks), -build[0] if build else 0) if ranks else None


def _tags(inputs: LockInputs, python: str) -> Iterator[Tag]:
    """What the oldest node that the lock is for can load, best first."""
    version = tuple(int(part) for part in python.split("."))
    minor = int(inputs.glibc.split(".")[1])
    platforms = []
    for number in range(minor, 4, -1):
        platforms.append(f"manylinux_2_{number}_{inputs.architecture}")
        if number in _OLD_NAMES:
            platforms.append(f"{_OLD_NAMES[number]}_{inputs.architecture}")
    platforms.append(f"linux_{inputs.architecture}")
    yield from cpython_tags(version, platforms=platforms)
    interpreter = f"cp{version[0]}{version[1]}"
    yield from compatible_tags(version, interpreter=interpreter, platforms=platforms)


def _uv_platform(inputs: LockInputs) -> str:
    return f"{inputs.architecture}-manylinux_{inputs.glibc.replace('.', '_')}"


def _listed(path: Path, lines: Sequence[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path
