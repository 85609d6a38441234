"""What a hub says of a repository: commit, files, sizes and hashes, each checked or refused."""

from __future__ import annotations

import fnmatch
import hashlib
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import httpx
from huggingface_hub import HfApi
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils.tqdm import disable_progress_bars

from gpuwright.model_rows import WEIGHTS

_SECONDS = 30.0
_MOST_PLAIN_BYTES = 64 << 20
_COMMIT = re.compile(r"[0-9a-f]{40}", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)

# What an engine reads of a checkpoint, all at the top of its repository. Programs are left out: a
# model that needs them is not served.
_SAFETENSORS = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken")
# A second copy of the weights in another layout, beside the sharded one.
_COPIES = "consolidated*.safetensors"

Value = TypeVar("Value")


class HubError(Exception):
    """The hub cannot be asked, or its answer does not do; the text says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PinnedFile:
    path: str
    bytes: int
    sha256: str

    @property
    def is_weights(self) -> bool:
        return self.path.endswith(WEIGHTS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A file as the listing has it; sha256 is None where the hub keeps it in git itself."""

    path: str
    bytes: int
    blob_id: str
    sha256: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """One commit of a repository."""

    api: HfApi
    repo: str
    commit: str
    entries: tuple[Entry, ...]


def listing(hub: str, repo: str, revision: str, token: str | None) -> Listing:
    """What `repo` holds at `revision`. HubError: gated, unknown, not reached, or not sound."""
    disable_progress_bars()
    # False: a token that lies about on this machine is not for whatever hub is asked.
    api = HfApi(endpoint=hub.rstrip("/"), token=token or False)
    info = _asked(
        lambda: api.model_info(repo, revision=revision, files_metadata=True, timeout=_SECONDS),
        api,
        repo,
    )
    if not _COMMIT.fullmatch(str(info.sha)):
        raise HubError(f"{repo}: the hub names no commit, but {info.sha!r}")
    entries = []
    for sibling in info.siblings or ():
        sha256 = sibling.lfs.sha256 if sibling.lfs else None
        size = sibling.lfs.size if sibling.lfs else sibling.size
        if type(size) is not int or (sha256 is not None and not _SHA256.fullmatch(sha256)):
            raise HubError(f"{repo}: the hub gives no size or hash of {sibling.rfilename!r}")
        entries.append(
            Entry(
                path=sibling.rfilename,
                bytes=size,
                blob_id=str(sibling.blob_id),
                sha256=sha256,
            )
        )
    entries.sort(key=lambda entry: entry.path)
    return Listing(api=api, repo=repo, commit=str(info.sha), entries=tuple(entries))


def files_of(found: Listing, kind: str, include: list[str]) -> list[PinnedFile]:
    """The checkpoint's files, in order of their paths; small ones are downloaded to be hashed."""
    chosen = _chosen(found, kind, include)
    if not any(entry.path.endswith(WEIGHTS) for entry in chosen):
        raise HubError(f"{found.repo}: no weights among {_names(chosen)}")
    return [
        PinnedFile(path=entry.path, bytes=entry.bytes, sha256=entry.sha256 or _hashed(found, entry))
        for entry in chosen
    ]


def _chosen(found: Listing, kind: str, include: list[str]) -> list[Entry]:
    if include:
        for pattern in include:
            if not any(fnmatch.fnmatchcase(entry.path, pattern) for entry in found.entries):
                names = _names(found.entries)
                raise HubError(f"{found.repo}: --include {pattern!r} matches none of {names}")
        return [entry for entry in found.entries if _matches(entry, include)]
    if kind == "gguf":
        weights = [entry for entry in found.entries if entry.path.endswith(".gguf")]
        if len(weights) > 1:
            names = _names(weights)
            raise HubError(f"{found.repo}: --include GLOB needed, it holds {names}")
        return weights
    top = [entry for entry in found.entries if "/" not in entry.path]
    chosen = [entry for entry in top if _matches(entry, _SAFETENSORS)]
    others = [entry for entry in chosen if not fnmatch.fnmatchcase(entry.path, _COPIES)]
    return others if any(entry.path.endswith(WEIGHTS) for entry in others) else chosen


def _matches(entry: Entry, patterns: list[str] | tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(entry.path, pattern) for pattern in patterns)


def _names(entries: list[Entry] | tuple[Entry, ...]) -> str:
    return ", ".join(repr(entry.path) for entry in entries) or "no files"


def _hashed(found: Listing, entry: Entry) -> str:
    """The sha256 of a file's bytes, which must be the ones that the listing names by size and by
    git's own hash."""
    if entry.bytes > _MOST_PLAIN_BYTES:
        raise HubError(f"{found.repo}: {entry.path!r} is too big to be hashed here")
    with tempfile.TemporaryDirectory() as folder:
        path = _asked(
            lambda: found.api.hf_hub_download(
                found.repo, entry.path, revision=found.commit, cache_dir=folder
            ),
            found.api,
            found.repo,
        )
        data = Path(path).read_bytes()
    # SHA-1 because git names its blobs so; what is recorded is the SHA-256.
    blob = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
    if len(data) != entry.bytes or blob != entry.blob_id:
        raise HubError(f"{found.repo}: {entry.path!r} is not the file that the listing names")
    return hashlib.sha256(data).hexdigest()


def _asked(question: Callable[[], Value], api: HfApi, repo: str) -> Value:
    try:
        return question()
    except GatedRepoError as error:
        if error.response.status_code == httpx.codes.FORBIDDEN or isinstance(api.token, str):
            raise HubError(f"{repo}: gated, and the token has no access to it") from None
        raise HubError(f"{repo}: gated, a token with access is needed (--token-file)") from None
    except RepositoryNotFoundError:
        raise HubError(f"{repo}: not on {api.endpoint}, or private") from None
    except RevisionNotFoundError:
        raise HubError(f"{repo}: has no such revision") from None
    except HFValidationError as error:
        raise HubError(f"{repo!r}: {error}") from None
    except HfHubHTTPError as error:
        status = error.response.status_code
        raise HubError(f"{repo}: {api.endpoint} answers {status}") from None
    except (httpx.HTTPError, OfflineModeIsEnabled, OSError, ValueError) as error:
        raise HubError(f"{api.endpoint} cannot be asked: {error}") from None
