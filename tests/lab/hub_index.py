"""A Python package index over a folder of files: PEP 503 pages and their PEP 691 JSON form."""

import html
import json
import re
from pathlib import Path
from urllib.parse import quote

from tests.lab.hub_content import Answer, Content

JSON_TYPE = "application/vnd.pypi.simple.v1+json"


def project_of(filename: str) -> str | None:
    """Normalised project name of a wheel or a source archive (PEP 427, PEP 625), else None."""
    if filename.endswith(".whl"):
        name = filename.split("-")[0]
    elif match := re.fullmatch(r"(.+)-[^-]+\.(tar\.gz|zip)", filename):
        name = match[1]
    else:
        return None
    return re.sub(r"[-_.]+", "-", name).lower()


class Index:
    """The folder is read at every request, so files may come and go."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.yanked: dict[str, str] = {}
        """File -> why, as an index says of a release that was withdrawn."""
        self._contents: dict[tuple[str, int, int], Content] = {}

    def answer(self, path: str, accept: str) -> Answer | None:
        """What is at `path` ("simple/", "simple/NAME/", "packages/FILE"); None if nothing."""
        first, _, rest = path.partition("/")
        if first == "packages":
            if project_of(rest) is None or not (self.folder / rest).is_file():
                return None
            content = self._content(rest)
            return Answer(content=content, etag=content.sha256)
        if first != "simple":
            return None
        as_json = JSON_TYPE in accept
        files = sorted(entry.name for entry in self.folder.iterdir() if project_of(entry.name))
        if not rest:
            return _page(
                as_json, _names(as_json, sorted({project_of(name) or "" for name in files}))
            )
        files = [name for name in files if project_of(name) == rest.rstrip("/")]
        return _page(as_json, self._files(as_json, rest.rstrip("/"), files)) if files else None

    def _files(self, as_json: bool, project: str, names: list[str]) -> str:
        if as_json:
            rows = [
                {
                    "filename": name,
                    "url": f"../../packages/{quote(name)}",
                    "hashes": {"sha256": self._content(name).sha256},
                    "size": self._content(name).size,
                    "yanked": self.yanked.get(name, False),
                }
                for name in names
            ]
            return json.dumps({"meta": {"api-version": "1.0"}, "name": project, "files": rows})
        links = (
            f'<a href="../../packages/{quote(name)}#sha256={self._content(name).sha256}">'
            f"{html.escape(name)}</a><br>"
            for name in names
        )
        return f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>"

    def _content(self, name: str) -> Content:
        status = (self.folder / name).stat()
        key = (name, status.st_size, status.st_mtime_ns)
        if key not in self._contents:
            self._contents[key] = Content(self.folder / name)
        return self._contents[key]


def _names(as_json: bool, projects: list[str]) -> str:
    if as_json:
        rows = [{"name": name} for name in projects]
        return json.dumps({"meta": {"api-version": "1.0"}, "projects": rows})
    links = (f'<a href="{name}/">{name}</a><br>' for name in projects)
    return f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>"


def _page(as_json: bool, text: str) -> Answer:
    kind = JSON_TYPE if as_json else "text/html; charset=utf-8"
    return Answer(headers={"Content-Type": kind}, content=Content(text.encode()))
