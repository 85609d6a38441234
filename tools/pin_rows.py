"""Write a checkpoint's files into its row, editing the text: comments and order stay."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpuwright.load import load_matrix
from gpuwright.quoting import nearest
from gpuwright.refusals import MatrixError, WantError
from tools.pin_hub import PinnedFile

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/+-]*", re.ASCII)


class RowError(Exception):
    """The row cannot be pinned; the text says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """One checkpoint's row in the text of its file."""

    path: Path
    id: str
    repo: str
    format: str
    size: str | None
    text: str
    node: yaml.MappingNode
    data: dict[str, Any]

    def pinned(self, files: Iterable[PinnedFile], repo: str, revision: str) -> str:
        """The whole text with these files in the row and without its `unpinned`.

        Sources of other kinds stay with a file that has not changed. RowError where more than
        that would change.
        """
        wanted = [self._file(file, repo, revision) for file in files]
        if wanted == self.data["files"] and "unpinned" not in self.data:
            return self.text
        lines = self.text.splitlines(keepends=True)
        entries = {key.value: (key, value) for key, value in self.node.value}
        edits = [(*_span(*entries["files"]), _rendered(wanted, entries["files"], lines))]
        if "unpinned" in entries:
            edits.append((*_span(*entries["unpinned"]), []))
        for first, last, replacement in sorted(edits, reverse=True):
            lines[first : last + 1] = replacement
        after = "".join(lines)
        self._check(after, wanted)
        return after

    def _file(self, file: PinnedFile, repo: str, revision: str) -> dict[str, Any]:
        source = {"kind": "hub", "repo": repo, "revision": revision, "path": file.path}
        kept = [
            other
            for row in self.data["files"] or ()
            if (row["path"], row["sha256"]) == (file.path, file.sha256)
            for other in row["sources"]
            if other["kind"] != "hub"
        ]
        return {
            "path": file.path,
            "bytes": file.bytes,
            "sha256": file.sha256,
            "sources": [source, *kept],
        }

    def _check(self, after: str, wanted: list[dict[str, Any]]) -> None:
        """The edit changed what it was meant to change, and nothing else in the file."""
        before = _data(self.text)
        row = next(row for row in _checkpoint_rows(before) if row.get("id") == self.id)
        row["files"] = wanted
        row.pop("unpinned", None)
        try:
            changed = _data(after)
        except yaml.YAMLError:
            changed = None
        if changed != before:
            raise RowError(f"{self.id}: the row is written in a way that cannot be edited safely")


def target(path: Path, name: str) -> Target:
    """The row of checkpoint `name` in the file at `path`, or in one of that directory's files.

    RowError: there is none (with the nearest), or it has no repository. MatrixError: the file is
    faulty as it stands.
    """
    known: list[str] = []
    for file in sorted(path.glob("*.yaml")) if path.is_dir() else [path]:
        _load(file)
        text = file.read_text(encoding="utf-8")
        rows = list(_checkpoint_rows(_data(text)))
        if any(_is_called(row, name) for row in rows):
            return target_in(file, text, name)
        known += [row["id"] for row in rows]
    raise RowError(f"checkpoint {name!r} is unknown in {path}{nearest(name, known)}")


def target_in(path: Path, text: str, name: str) -> Target:
    """As `target`, in a file whose text is sound and has the row."""
    row = next(row for row in _checkpoint_rows(_data(text)) if _is_called(row, name))
    if row["repo"] is None:
        why = (row.get("unknown") or {}).get("repo") or row.get("unpinned") or "it names none"
        raise RowError(f"{row['id']}: has no repository on a hub: {why}")
    return Target(
        path=path,
        id=row["id"],
        repo=row["repo"],
        format=row["format"],
        size=row["size"],
        text=text,
        node=_node(text, row["id"]),
        data=row,
    )


def _is_called(row: dict[str, Any], name: str) -> bool:
    names = (row["id"], *row.get("aliases", ()))
    return name.casefold() in (word.casefold() for word in names)


def _data(text: str) -> Any:
    return _LOADER(text).get_single_data()


def replace_file(path: Path, text: str) -> None:
    """Put `text` in the place of the file, after the strict loader has read it there.

    MatrixError: it would be refused, and the file stays as it was.
    """
    path = path.resolve()
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".pin-") as folder:
        beside = Path(folder) / path.name
        beside.write_text(text, encoding="utf-8")
        shutil.copymode(path, beside)
        try:
            _load(beside, siblings=path.parent)
        except MatrixError as error:
            here = [fault.replace(str(beside), str(path)) for fault in error.faults]
            raise MatrixError(*here) from None
        with beside.open("rb") as written:
            os.fsync(written.fileno())
        beside.replace(path)


def _load(path: Path, siblings: Path | None = None) -> None:
    """Read the file strictly in its place: among the rows of its matrix, or after ours."""
    folder = siblings or path.parent
    if folder.name != "models" or not (folder.parent / "engines").is_dir():
        try:
            load_matrix(path)
        except WantError as error:
            faults = [fault.removeprefix("extra_models: ") for fault in error.faults]
            raise MatrixError(*faults) from None
        return
    with tempfile.TemporaryDirectory() as name:
        matrix = Path(name)
        (matrix / "models").mkdir()
        for entry in (*folder.parent.glob("[!.]*"), *folder.glob("*.yaml")):
            if entry != folder and entry.name != path.name:
                place = matrix if entry.parent == folder.parent else matrix / "models"
                (place / entry.name).symlink_to(entry.resolve())
        (matrix / "models" / path.name).symlink_to(path.resolve())
        load_matrix(directory=matrix)


def _checkpoint_rows(models: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for model in models:
        yield from model["checkpoints"]


def _node(text: str, checkpoint: str) -> yaml.MappingNode:
    """The row's node, which knows where it stands in the text."""
    root: Any = yaml.compose(text, Loader=_LOADER)
    for model in root.value:
        for key, rows in model.value:
            if key.value != "checkpoints":
                continue
            for row in rows.value:
                words = {key.value: value.value for key, value in row.value}
                if words.get("id") == checkpoint and not row.flow_style:
                    node: yaml.MappingNode = row
                    return node
    raise RowError(f"{checkpoint}: its row is written in braces; write one key a line")


def _span(key: yaml.Node, value: yaml.Node) -> tuple[int, int]:
    """First and last line of an entry, without comments and blank lines after it."""
    return key.start_mark.line, max(key.end_mark.line, _last_line(value))


def _last_line(node: Any) -> int:
    # A block ends for PyYAML where the next token starts, so its last leaf tells.
    if isinstance(node, yaml.ScalarNode) or node.flow_style or not node.value:
        line: int = node.end_mark.line
        return line
    last = node.value[-1]
    return _last_line(last[1] if isinstance(last, tuple) else last)


def _rendered(
    files: list[dict[str, Any]], entry: tuple[yaml.Node, yaml.Node], lines: list[str]
) -> list[str]:
    """Lines of the `files` entry, indented as its key; a comment behind `null` stays behind it."""
    key, value = entry
    indent = " " * key.start_mark.column
    comment = ""
    if isinstance(value, yaml.ScalarNode):
        comment = lines[value.end_mark.line][value.end_mark.column :].rstrip()
    rendered = [f"{indent}files:{comment}"]
    for file in files:
        rendered += [
            f"{indent}  - path: {_scalar(file['path'])}",
            f"{indent}    bytes: {file['bytes']}",
            f"{indent}    sha256: {_scalar(file['sha256'])}",
            f"{indent}    sources:",
        ]
        for source in file["sources"]:
            words = ", ".join(f"{name}: {_scalar(word)}" for name, word in source.items())
            rendered.append(f"{indent}      - {{{words}}}")
    return [f"{line}\n" for line in rendered]


def _scalar(value: str | int) -> str:
    """A value as YAML reads it back; text that looks like something else is quoted."""
    if isinstance(value, str) and (not _PLAIN.fullmatch(value) or yaml.safe_load(value) != value):
        return json.dumps(value)
    return str(value)
