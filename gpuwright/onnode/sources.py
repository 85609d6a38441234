"""Where files come from: a Python package, a model hub, a URL, a path on the node."""

from __future__ import annotations

import html
import json
import os
import re
import time
from typing import Any
from urllib.parse import quote, urljoin

from gpuwright.onnode.addresses import WebError, shown
from gpuwright.onnode.archives import extract, settle
from gpuwright.onnode.download import SourceError, Transfer
from gpuwright.onnode.storage import sha256_of
from gpuwright.onnode.web import Web

_INDEX_TYPES = (
    "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, "
    "text/html;q=0.1"
)
_MOST_INDEX_BYTES = 64 << 20


def described(source: dict[str, Any]) -> str:
    """A source for people."""
    kind = source["kind"]
    if kind == "python_package":
        where = f" in {packed(source)}" if source.get("folder") else ""
        return f"Python package {source['project']} {source.get('version') or ''}".strip() + where
    if kind == "hub":
        return f"hub repository {source['repo']}"
    if kind == "local":
        return f"path {source['path']}"
    return shown(str(source.get("url")))


class Courier:
    """Asks sources for files, with one site's settings and perhaps a hub's token."""

    def __init__(self, web: Web, token: str | None, backoff_seconds: float) -> None:
        self.web = web
        self.token = token
        self.backoff_seconds = backoff_seconds
        self.received = 0

    def get(self, source: dict[str, Any], file: dict[str, Any], partial: str) -> None:
        """Put the file's verified content at `partial`. SourceError, WebError: not from here."""
        kind = source["kind"]
        if kind == "local":
            self._copy_local(source, file, partial)
        elif source.get("folder"):
            self._from_folder(source, file, partial)
        elif kind == "python_package" and source.get("member"):
            archive = f"{partial}.archive"
            link = self._index_link(source)
            sha256 = str(source.get("sha256") or "")
            self._transfer(link["url"], archive, link["size"], sha256, source["filename"], None)
            try:
                extract(archive, str(source["filename"]), str(source["member"]), file, partial)
            except SourceError:
                os.unlink(archive)
                raise
            os.unlink(archive)
        else:
            url, authorization = self._address(source)
            size, sha256 = file["bytes"], file["sha256"]
            self._transfer(url, partial, size, sha256, file["path"], authorization)

    def _transfer(
        self,
        url: str,
        partial: str,
        size: int | None,
        sha256: str,
        name: str,
        authorization: str | None,
    ) -> None:
        transfer = Transfer(
            self.web, url, partial, size, sha256, name, authorization, self.backoff_seconds
        )
        try:
            transfer.run()
        finally:
            self.received += transfer.received

    def _address(self, source: dict[str, Any]) -> tuple[str, str | None]:
        if source["kind"] == "python_package":
            return self._index_link(source)["url"], None
        if source["kind"] == "url":
            return str(source["url"]), None
        authorization = f"Bearer {self.token}" if self.token else None
        return hub_url(source), authorization

    def _copy_local(self, source: dict[str, Any], file: dict[str, Any], partial: str) -> None:
        path = str(source["path"])
        try:
            if os.stat(path).st_size != file["bytes"]:
                found = os.stat(path).st_size
                raise SourceError(f"it has {found} bytes, needed {file['bytes']}")
            with open(path, "rb", buffering=0) as content:
                settle(content, file, partial, "copy")
        except OSError as problem:
            raise SourceError(str(problem.strerror)) from None

    def _from_folder(self, source: dict[str, Any], file: dict[str, Any], partial: str) -> None:
        """The same of a package that lies in a folder of the node."""
        path = packed(source)
        if not source.get("member"):
            self._copy_local({"path": path}, file, partial)
            return
        try:
            found = sha256_of(path)
        except OSError as problem:
            raise SourceError(str(problem.strerror)) from None
        if found != source["sha256"]:
            raise SourceError(f"its sha256 is {found[:16]}..., needed {source['sha256'][:16]}...")
        extract(path, str(source["filename"]), str(source["member"]), file, partial)

    def _index_link(self, source: dict[str, Any]) -> dict[str, Any]:
        """{"url", "size"} of the package's file. SourceError: not listed, or with another hash."""
        project = re.sub(r"[-_.]+", "-", str(source["project"])).lower()
        url = f"{str(source['index_url']).rstrip('/')}/{quote(project)}/"
        with self.web.open(url, {"Accept": _INDEX_TYPES}) as answer:
            chunks, size = [], 0
            while size < _MOST_INDEX_BYTES:
                chunk = answer.read(1 << 20)
                if not chunk:
                    break
                chunks.append(chunk)
                size += len(chunk)
            if answer.left:
                raise WebError(f"{shown(url)} ended early", True)
            page = b"".join(chunks)
            is_json = "json" in (answer.headers.get("Content-Type") or "")
            listed = index_links(page, is_json)
            base = answer.url
        link = listed.get(str(source["filename"]))
        if link is None:
            raise SourceError(f"the index does not list {source['filename']}")
        wanted = source.get("sha256")
        if link["sha256"] and wanted and link["sha256"] != wanted:
            raise SourceError(f"the index lists {source['filename']} with another sha256")
        size = source.get("bytes") or link["size"]
        try:
            return {"url": urljoin(base, link["url"]), "size": size}
        except ValueError:
            raise SourceError(f"the index lists {source['filename']} without a URL") from None

    def can_deliver(self, source: dict[str, Any], file: dict[str, Any]) -> None:
        """SourceError, WebError: this source cannot deliver the file. Nothing is changed."""
        try:
            self._look(source, file)
        except WebError as problem:
            if not problem.again:
                raise
            time.sleep(self.backoff_seconds)
            self._look(source, file)

    def _look(self, source: dict[str, Any], file: dict[str, Any]) -> None:
        kind = source["kind"]
        if source.get("folder"):
            self._look_local(packed(source), source.get("bytes"))
        elif kind == "python_package":
            self._index_link(source)
        elif kind == "local":
            self._look_local(str(source["path"]), file["bytes"])
        else:
            self._look_remote(source, file)

    def _look_local(self, path: str, size: int | None) -> None:
        try:
            found = os.stat(path).st_size
        except OSError as problem:
            raise SourceError(str(problem.strerror)) from None
        if size is not None and found != size:
            raise SourceError(f"it has {found} bytes, needed {size}")

    def _look_remote(self, source: dict[str, Any], file: dict[str, Any]) -> None:
        url, authorization = self._address(source)
        try:
            with self.web.open(url, method="HEAD", authorization=authorization) as answer:
                size = answer.header("X-Linked-Size") or answer.headers.get("Content-Length")
                etag = answer.header("X-Linked-Etag")
        except WebError as problem:
            # Some servers, and signed URLs, know GET alone.
            if source["kind"] == "hub" or problem.status not in (400, 403, 405, 501):
                raise
            with self.web.open(url, {"Range": "bytes=0-0"}) as answer:
                told = (answer.headers.get("Content-Range") or "").rpartition("/")[2]
                size = told if answer.status == 206 else answer.headers.get("Content-Length")
                etag = None
        if size and size.isdigit() and int(size) != file["bytes"]:
            raise SourceError(f"it is served with {size} bytes, needed {file['bytes']}")
        found = (etag or "").strip('"').lower()
        if re.match(r"[0-9a-f]{64}\Z", found) and found != file["sha256"]:
            raise SourceError(f"its sha256 is {found[:16]}..., needed {file['sha256'][:16]}...")


def packed(source: dict[str, Any]) -> str:
    """Where a package lies that comes from a folder."""
    return f"{str(source['folder']).rstrip('/')}/{source['filename']}"


def hub_url(source: dict[str, Any]) -> str:
    hub = str(source["hub"]).rstrip("/")
    repo, revision = quote(str(source["repo"])), quote(str(source["revision"]), safe="")
    return f"{hub}/{repo}/resolve/{revision}/{quote(str(source['path']))}"


def why_not(problem: Exception, source: dict[str, Any], with_token: bool) -> str:
    """What a person can do about a source that does not deliver."""
    if not isinstance(problem, WebError):
        return str(problem)
    if source["kind"] == "hub" and problem.status in (401, 403):
        repo = source["repo"]
        if not with_token:
            return f"{repo} is gated or private and no token was given (hub_token_file)"
        return f"the token of hub_token_file has no access to {repo}: ask for it on its page"
    return problem.clause


def elsewhere(sources: list[dict[str, Any]]) -> str:
    """What of a want names other places than those that do not deliver, and the way to them."""
    named = {"hub": "`hub`", "python_package": "`python_index` or `python_offline`"}
    keys = dict.fromkeys(named[each["kind"]] for each in sources if each["kind"] in named)
    if not keys and not any(each["kind"] == "url" for each in sources):
        return ""
    way = "`proxy` and `ca_bundle` say how it is reached"
    return f"{' or '.join(keys)} can name another place; {way}" if keys else way


def index_links(page: bytes, is_json: bool) -> dict[str, dict[str, Any]]:
    """{filename: {"url", "sha256", "size"}} of an index page (simple API, JSON or HTML)."""
    found: dict[str, dict[str, Any]] = {}
    text = page.decode("utf-8", "replace")
    if is_json:
        try:
            for row in json.loads(text)["files"]:
                found[str(row["filename"])] = {
                    "url": str(row["url"]),
                    "sha256": (row.get("hashes") or {}).get("sha256"),
                    "size": row.get("size") if isinstance(row.get("size"), int) else None,
                }
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise SourceError("the index page is not what the simple API promises") from None
        return found
    for match in re.finditer(
        r"<a\b[^>]*?\bhref\s*=\s*[\"']([^\"']+)[\"'][^>]*>([^<]*)</a", text, re.IGNORECASE
    ):
        url, name = html.unescape(match.group(1)), html.unescape(match.group(2)).strip()
        address, _, fragment = url.partition("#")
        digest = re.search(r"sha256=([0-9a-f]{64})", fragment)
        found[name] = {"url": address, "sha256": digest and digest.group(1), "size": None}
    return found
