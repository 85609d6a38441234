"""A model hub on this machine that speaks the Hugging Face protocol, with faults on demand.

The hub at one address, its CDN at another, as on the net; also plain files and a package index.
"""

import fnmatch
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from tests.lab.hub_content import Answer, Content, Fault
from tests.lab.hub_index import Index
from tests.lab.hub_server import Ledger, Listener, Request

LFS = ("*.gguf", "*.safetensors", "*.bin", "*.pt")


@dataclass(frozen=True, kw_only=True, slots=True)
class Repository:
    """One revision of a model; gated to the holders of `tokens` where there are any."""

    id: str
    commit: str
    files: Mapping[str, Content]
    tokens: frozenset[str]

    def is_lfs(self, path: str) -> bool:
        return any(fnmatch.fnmatchcase(path, pattern) for pattern in LFS)


class Hub:
    """Listens at once: hub, files and index at `url`, big files at `cdn_url` on another host.

    cdn_address is an own address so that clients tell the two apart as they would on the net.
    """

    def __init__(self, address: str = "127.0.0.1", cdn_address: str = "127.0.0.2") -> None:
        self._ledger = Ledger()
        self._repositories: dict[str, Repository] = {}
        self._blobs: dict[str, Content] = {}
        self._files: dict[str, Content] = {}
        self._index: Index | None = None
        self._hub = Listener("hub", (address, 0), self._ledger, self._answer)
        self._cdn = Listener("cdn", (cdn_address, 0), self._ledger, self._answer_cdn)
        self.url, self.cdn_url = self._hub.url, self._cdn.url
        self.index_url = f"{self.url}/simple"

    def add_repository(
        self, repo_id: str, files: Mapping[str, bytes | Path], tokens: tuple[str, ...] = ()
    ) -> Repository:
        """A model repository; with tokens it is gated: 401 without one, 403 with another."""
        contents = {path: Content(source) for path, source in sorted(files.items())}
        listing = "".join(f"{path}\0{content.sha256}\0" for path, content in contents.items())
        repository = Repository(
            id=repo_id,
            commit=hashlib.sha1(listing.encode()).hexdigest(),
            files=contents,
            tokens=frozenset(tokens),
        )
        self._repositories[repo_id] = repository
        self._blobs |= {content.sha256: content for content in contents.values()}
        return repository

    def add_folder(self, folder: Path) -> list[Repository]:
        """Every ORG/NAME below `folder` as a repository without a gate."""
        added = []
        for home in sorted(path for path in folder.glob("*/*") if path.is_dir()):
            files = {str(f.relative_to(home)): f for f in home.rglob("*") if f.is_file()}
            added.append(self.add_repository(str(home.relative_to(folder)), files))
        return added

    def add_file(self, path: str, source: bytes | Path) -> str:
        """A plain file; returns its URL."""
        self._files[path.strip("/")] = Content(source)
        return f"{self.url}/files/{quote(path.strip('/'))}"

    def serve_packages(self, folder: Path) -> str:
        """A Python package index over the wheels and archives of a folder; returns its URL."""
        self._index = Index(folder)
        return self.index_url

    def yank(self, filename: str, why: str | None) -> None:
        """Mark a package's file as withdrawn; None: as it was."""
        assert self._index is not None, "no packages are served"
        if why is None:
            self._index.yanked.pop(filename, None)
        else:
            self._index.yanked[filename] = why

    def fail(self, match: str = "*", **what: Any) -> None:
        """Put a Fault in force; keywords are its fields."""
        self._ledger.add(Fault(match=match, **what))

    def heal(self) -> None:
        """End all faults; requests that hang already stay hanging until the hub is closed."""
        self._ledger.clear()

    @property
    def requests(self) -> list[Request]:
        """Every request so far, in the order of arrival."""
        return list(self._ledger.requests)

    def requests_to(self, listener: str, match: str = "*") -> list[Request]:
        """Requests to `hub` or `cdn` whose path matches a shell pattern."""
        return [
            request
            for request in self.requests
            if request.listener == listener and fnmatch.fnmatchcase(request.path, match)
        ]

    def forget_requests(self) -> None:
        self._ledger.requests.clear()

    def close(self) -> None:
        self._ledger.closing.set()
        self._hub.stop()
        self._cdn.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _answer_cdn(self, path: str, query: dict[str, str], headers: Message) -> Answer:
        _, _, blob = path.partition("/blobs/")
        content = self._blobs.get(blob.partition("/")[0])
        return _missing("EntryNotFound") if content is None else _file(content, content.sha256)

    def _answer(self, path: str, query: dict[str, str], headers: Message) -> Answer:
        if path.startswith("/files/"):
            content = self._files.get(path.removeprefix("/files/"))
            return _missing("EntryNotFound") if content is None else _file(content, content.sha256)
        if path.startswith(("/simple/", "/packages/")):
            found = self._index and self._index.answer(path[1:], headers.get("Accept", ""))
            return found or _missing("EntryNotFound")
        if path.startswith("/api/models/"):
            return self._api(path.removeprefix("/api/models/"), query, headers)
        repo_id, mark, rest = path[1:].partition("/resolve/")
        revision, _, name = rest.partition("/")
        repository = self._repositories.get(repo_id)
        if not mark or repository is None:
            return _missing("RepoNotFound", 401)
        return _denied(repository, headers) or self._resolve(repository, revision, name)

    def _resolve(self, repository: Repository, revision: str, name: str) -> Answer:
        if revision not in ("main", repository.commit):
            return _missing("RevisionNotFound")
        content = repository.files.get(name)
        named = {"X-Repo-Commit": repository.commit}
        if content is None:
            return Answer(status=404, headers={**named, "X-Error-Code": "EntryNotFound"})
        if not repository.is_lfs(name):
            return _file(content, content.blob_id, named)
        linked = {
            "Location": f"{self.cdn_url}/blobs/{content.sha256}/{quote(name)}",
            "X-Linked-Etag": f'"{content.sha256}"',
            "X-Linked-Size": str(content.size),
            "Accept-Ranges": "bytes",
        }
        return Answer(status=302, headers={**named, **linked})

    def _api(self, path: str, query: dict[str, str], headers: Message) -> Answer:
        for mark in ("/revision/", "/tree/", ""):
            repo_id, found, rest = path.partition(mark) if mark else (path, "", "main")
            if found or not mark:
                break
        repository = self._repositories.get(repo_id)
        if repository is None:
            return _missing("RepoNotFound", 401)
        if denied := _denied(repository, headers):
            return denied
        if rest.partition("/")[0] not in ("main", repository.commit):
            return _missing("RevisionNotFound")
        if found == "/tree/":
            return _json([_tree_entry(repository, name) for name in repository.files])
        siblings = [_sibling(repository, name, "blobs" in query) for name in repository.files]
        return _json(
            {
                "_id": repository.commit[:24],
                "id": repository.id,
                "modelId": repository.id,
                "sha": repository.commit,
                "private": False,
                "gated": "manual" if repository.tokens else False,
                "tags": [],
                "siblings": siblings,
            }
        )


def _sibling(repository: Repository, name: str, blobs: bool) -> dict[str, Any]:
    content = repository.files[name]
    if not blobs:
        return {"rfilename": name}
    row: dict[str, Any] = {"rfilename": name, "size": content.size, "blobId": content.blob_id}
    if repository.is_lfs(name):
        row["lfs"] = {"sha256": content.sha256, "size": content.size, "pointerSize": 134}
    return row


def _tree_entry(repository: Repository, name: str) -> dict[str, Any]:
    content = repository.files[name]
    row: dict[str, Any] = {
        "type": "file",
        "path": name,
        "size": content.size,
        "oid": content.blob_id,
    }
    if repository.is_lfs(name):
        row["lfs"] = {"oid": content.sha256, "size": content.size, "pointerSize": 134}
    return row


def _denied(repository: Repository, headers: Message) -> Answer | None:
    if not repository.tokens:
        return None
    given = headers.get("Authorization", "")
    if given.removeprefix("Bearer ") in repository.tokens:
        return None
    said = f"Access to model {repository.id} is restricted."
    return Answer(
        status=403 if given else 401,
        headers={"X-Error-Code": "GatedRepo", "X-Error-Message": said},
    )


def _file(content: Content, etag: str, headers: Mapping[str, str] | None = None) -> Answer:
    return Answer(content=content, etag=etag, headers=dict(headers or {}))


def _json(value: Any) -> Answer:
    headers = {"Content-Type": "application/json"}
    return Answer(headers=headers, content=Content(json.dumps(value).encode()))


def _missing(code: str, status: int = 404) -> Answer:
    return Answer(status=status, headers={"X-Error-Code": code})
