"""Files on a node that a want names: whether they are there, and readable for who reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from gpuwright.document import Reader
from gpuwright.expected import digest_of
from gpuwright.layout import Layout
from gpuwright.places import hidden_from_services
from gpuwright.quoting import clipped
from gpuwright.refusals import Needs, Reason
from gpuwright.want import Want

FILES_VARIABLE = "GPUWRIGHT_FILES"
_MOST_TEMPLATE_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Adapter:
    """What an adapter says of itself; None where it does not."""

    format: str
    rank: int | None
    """The highest of its layers."""
    base: str | None
    """The model that it was made for, as its maker wrote it."""
    beyond: tuple[str, ...]
    """Settings by which it is more than two small matrices for each layer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedFile:
    """What is at a path. `barred` is what keeps its reader out; `resolved` has no links in it."""

    type: str | None
    bytes: int | None
    identity: str | None
    """Hex digits that are others when the file, or one of the directory, is."""
    resolved: str
    barred: str | None
    adapter: Adapter | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Naming:
    """A path that a want names: by which key, what must be there, and who reads it."""

    key: str
    path: str
    types: tuple[str, ...]
    served: bool
    """Whether the service itself reads it, else root."""
    ours: bool = False
    """We make it where it is not there, and what else lies in it does not matter."""

    @property
    def subject(self) -> str:
        return f"{self.key} {self.path}"


def namings(want: Want) -> Iterator[Naming]:
    """Every path of the want that must stand on the node before anything is done."""
    if want.chat_template is not None:
        yield Naming(key="chat_template", path=want.chat_template, types=("file",), served=True)
    for name, path in (want.lora or {}).items():
        yield Naming(key=f"lora {name}", path=path, types=("dir", "file"), served=True)
    if want.model_store != Layout().model_store and not hidden_from_services(want.model_store):
        # One below a home is shown to the service by itself, whoever may enter the home.
        yield Naming(
            key="model_store", path=want.model_store, types=("dir",), served=True, ours=True
        )
    if want.ca_bundle is not None:
        yield Naming(key="ca_bundle", path=want.ca_bundle, types=("file",), served=False)
    for key, folder in (
        ("python_offline", want.python_offline),
        ("python_mirror", want.python_mirror),
    ):
        if folder is not None and folder.startswith("/"):
            yield Naming(key=key, path=folder, types=("dir",), served=False)
    for place in want.python_find_links or ():
        if place.startswith("/"):
            types = ("dir", "file")
            yield Naming(key="python_find_links", path=place, types=types, served=False)


def read_named(root: Reader) -> dict[str, NamedFile | None] | None:
    """The section of a document; None altogether where nobody looked."""
    if root.get("named", dict, None) is None:
        return None
    return {
        path: None if entry is None else _file(Reader(entry.value, entry.path, unknown=True))
        for path, entry in root.entries("named")
    }


def _file(entry: Reader) -> NamedFile:
    told = entry.get("adapter", dict)
    return NamedFile(
        type=entry.get("type", str),
        bytes=entry.count("bytes"),
        identity=entry.get("identity", str, None),
        resolved=entry.get("resolved", str) or "",
        barred=entry.get("barred", str),
        adapter=None if told is None else _adapter(Reader(told, entry.at("adapter"), unknown=True)),
    )


def _adapter(told: Reader) -> Adapter:
    return Adapter(
        format=told.get("format", str) or "",
        rank=told.count("rank"),
        base=told.get("base", str),
        beyond=told.texts("beyond") or (),
    )


Files = dict[str, NamedFile | None]


def naming_reasons(want: Want, files: Files | None) -> Iterator[Reason]:
    """What is wrong with each path that the want names, whatever engine is chosen."""
    for naming in namings(want):
        if files is None or naming.path not in files:
            continue
        reason = _reason(naming, files[naming.path])
        if reason is not None:
            yield reason


def _reason(naming: Naming, found: NamedFile | None) -> Reason | None:
    wanted = " or ".join({"file": "a file", "dir": "a directory"}[each] for each in naming.types)
    if found is None:
        return (
            None if naming.ours else Needs(subject=naming.subject, needed=wanted, found="nothing")
        )
    hidden = hidden_from_services(found.resolved) if naming.served else None
    if hidden is not None:
        return Needs(
            subject=naming.subject,
            needed=f"a path that the service sees: all of {hidden} is hidden from it",
            found=f"a link to {clipped(found.resolved)}",
        )
    if found.barred is not None and not (naming.ours and _inside(found.barred, naming.path)):
        who = "the service's user" if naming.served else "root"
        return Needs(
            subject=naming.subject,
            needed=f"to be readable for {who}",
            found=f"{clipped(found.barred)} is not",
            help=_opening(naming, found) if naming.served else None,
        )
    if found.type not in naming.types:
        other = {"file": "a file", "dir": "a directory"}.get(found.type or "", "another kind")
        return Needs(subject=naming.subject, needed=wanted, found=other)
    if naming.key == "chat_template" and not 0 < (found.bytes or 0) <= _MOST_TEMPLATE_BYTES:
        return Needs(
            subject=naming.subject,
            needed=f"a template of 1 to {_MOST_TEMPLATE_BYTES:,} bytes",
            found=f"{found.bytes or 0:,} bytes",
        )
    return None


def read_at_start(want: Want) -> tuple[str, ...]:
    """Paths of the operator's own files that the service reads as it starts."""
    return tuple(each.path for each in namings(want) if each.served and not each.ours)


def files_environment(want: Want, files: Files | None) -> dict[str, str]:
    """What a unit says of the files that its service reads as it starts: it is another unit when
    one of them is another file, whatever its time, and the service is started anew."""
    found = {path: files.get(path) for path in read_at_start(want)} if files else {}
    told = {path: entry.identity for path, entry in found.items() if entry is not None}
    return {FILES_VARIABLE: digest_of(json.dumps(told, sort_keys=True))} if told else {}


def _inside(path: str, directory: str) -> bool:
    return path.startswith(f"{directory.rstrip('/')}/")


def _opening(naming: Naming, found: NamedFile) -> str:
    """The command that lets the service's user in."""
    assert found.barred is not None
    if _inside(naming.path, found.barred):
        return f"chmod o+x {found.barred}"
    folder = found.barred == naming.path and found.type == "dir"
    return f"chmod o+{'rx' if folder else 'r'} {found.barred}"


def unseen(want: Want, files: Files | None) -> Iterator[str]:
    """A sentence for each path that nobody looked at."""
    for naming in namings(want):
        if not naming.ours and (files is None or naming.path not in files):
            yield f"{naming.subject}: taken to be there and readable, as nobody has looked"
