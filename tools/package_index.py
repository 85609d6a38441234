"""Where packages come from, as the operator of this machine set it: words for uv, no addresses.

uv reads its own variables too (UV_DEFAULT_INDEX, UV_INDEX, UV_FIND_LINKS, SSL_CERT_FILE,
HTTPS_PROXY, UV_OFFLINE, UV_NO_INDEX); what is named on the command line goes before them.
"""

from __future__ import annotations

import argparse
import os
import re
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from gpuwright.python_index import default_index_url

_SECONDS = 30
"""How long a server may say nothing."""


class UvError(Exception):
    """uv ended badly; the text is what it said, in one line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PackageIndex:
    default: str | None = None
    extra: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    ca_bundle: Path | None = None
    proxy: str | None = None
    offline: bool = False

    def words(self) -> list[str]:
        """Options of uv that name the indexes."""
        words = ["--no-index"] if self.offline else []
        if not self.offline and (self.default or "UV_DEFAULT_INDEX" not in os.environ):
            words += ["--default-index", self.default or default_index_url()]
        for url in self.extra:
            words += ["--index", url]
        for folder in self.find_links:
            words += ["--find-links", folder]
        return words

    def variables(self) -> dict[str, str]:
        """What uv reads from its environment."""
        found = dict(os.environ)
        if self.ca_bundle is not None:
            found["SSL_CERT_FILE"] = str(self.ca_bundle)
        if self.proxy is not None:
            found |= {"HTTPS_PROXY": self.proxy, "HTTP_PROXY": self.proxy}
        return found


def add_settings(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("where packages come from (default: as pip here has them)")
    group.add_argument("--default-index", help="URL of the index")
    group.add_argument("--index", action="append", default=[], help="URL of one more; repeatable")
    group.add_argument("--find-links", action="append", default=[], help="folder; repeatable")
    group.add_argument("--ca-bundle", type=Path, help="certificates that the index is checked with")
    group.add_argument("--proxy", help="URL of the proxy")
    group.add_argument("--offline", action="store_true", help="from --find-links alone")


def index_of(told: argparse.Namespace, *, pip_folders: bool = False) -> PackageIndex:
    """The settings of `add_settings`; with `pip_folders` those too that pip here looks for wheels
    in. A folder's build of torch for the CPU would go before the index's for CUDA."""
    folders = os.environ.get("PIP_FIND_LINKS", "").split() if pip_folders else []
    return PackageIndex(
        default=told.default_index,
        extra=tuple(told.index),
        find_links=(*told.find_links, *folders),
        ca_bundle=told.ca_bundle,
        proxy=told.proxy,
        offline=told.offline,
    )


def bytes_at(url: str, index: PackageIndex) -> int:
    """Size of a file that its index's page does not tell; UvError where its server does not."""
    variables = index.variables()
    context = ssl.create_default_context(cafile=variables.get("SSL_CERT_FILE"))
    handlers: list[urllib.request.BaseHandler] = [urllib.request.HTTPSHandler(context=context)]
    if index.proxy is not None:
        handlers.append(urllib.request.ProxyHandler({"http": index.proxy, "https": index.proxy}))
    asked = urllib.request.Request(url, method="HEAD")
    try:
        with urllib.request.build_opener(*handlers).open(asked, timeout=_SECONDS) as answer:
            return int(answer.headers["Content-Length"])
    except (OSError, TypeError, ValueError) as error:
        raise UvError(f"{url}: its size is not told: {error}") from error


def _one_line(said: str) -> str:
    """A chain of causes, or a paragraph, as one line."""
    lines = (line.strip() for line in said.splitlines())
    words = (re.sub(r"^(error|cause):\s*", "", line) for line in lines if line)
    return ": ".join(words)


def uv(
    *arguments: str,
    index: PackageIndex | None = None,
    cache: Path | None = None,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """What uv said on standard output; UvError where it ended badly."""
    found = (index.variables() if index else dict(os.environ)) | dict(variables)
    if cache is not None:
        # Beside the environments: only on one filesystem can files be shared by hard links.
        found["UV_CACHE_DIR"] = str(cache)
    done = subprocess.run(
        [sys.executable, "-m", "uv", *arguments, *(index.words() if index else [])],
        env=found,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise UvError(_one_line(done.stderr))
    return done.stdout
