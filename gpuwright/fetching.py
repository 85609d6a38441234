"""What the node has to download for a plan, as specs of the carried fetch program."""

from dataclasses import dataclass
from typing import Any

from gpuwright.converge import Changes
from gpuwright.expected import Expected
from gpuwright.layout import RUNTIME
from gpuwright.plan import ModelFile, Source
from gpuwright.python_index import default_index_url
from gpuwright.want import Want

# Left free on the filesystem of the model store and of the sources after a download.
RESERVE_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class FetchSpecs:
    """Downloads that a run has to make; None where there is nothing to do."""

    archive: dict[str, Any] | None
    models: dict[str, Any] | None
    """The model's checkpoint, and those that stand beside it."""

    @property
    def needs_token(self) -> bool:
        """Whether a file may come from a hub, for which the operator has a token."""
        return any(spec["token_stdin"] for spec in self._due)

    def preflight(self) -> dict[str, Any] | None:
        """Both in one, asking only whether the sources can deliver and there is room for all."""
        if not self._due:
            return None
        stores = [store for spec in self._due for store in spec["stores"]]
        asked = {"stores": stores, "token_stdin": self.needs_token, "preflight": True}
        return self._due[0] | asked

    @property
    def _due(self) -> list[dict[str, Any]]:
        return [spec for spec in (self.archive, self.models) if spec]


def fetch_specs(
    *,
    want: Want,
    expected: Expected,
    archives: tuple[ModelFile, ...],
    changes: Changes,
    verify: str,
) -> FetchSpecs:
    """Specs for what `changes` says is missing."""
    sources = ((f"{expected.layout.cache}/sources", archives),)
    models = tuple((directory, each.files) for directory, each in expected.checkpoints)
    return FetchSpecs(
        archive=_spec(want, sources, verify) if changes.build else None,
        models=_spec(want, models, verify) if changes.fetch else None,
    )


def _spec(
    want: Want, stores: tuple[tuple[str, tuple[ModelFile, ...]], ...], verify: str
) -> dict[str, Any]:
    kinds = {source.kind for _, files in stores for file in files for source in file.sources}
    index_url = want.python_index
    if index_url is None and want.python_offline is None and "python_package" in kinds:
        index_url = default_index_url()
    return {
        "stores": [
            {
                "directory": directory,
                "files": [
                    {
                        "path": file.path,
                        "bytes": file.bytes,
                        "sha256": file.sha256,
                        "sources": [_source(source, want, index_url) for source in file.sources],
                    }
                    for file in files
                ],
                "lock": f"{RUNTIME}/{directory.rsplit('/', 1)[-1]}.lock",
            }
            for directory, files in stores
        ],
        "token_stdin": want.hub_token_file is not None and "hub" in kinds,
        "ca_bundle": want.ca_bundle,
        "proxy": want.proxy,
        "reserve_bytes": RESERVE_BYTES,
        "preflight": False,
        "verify": verify,
    }


def _source(source: Source, want: Want, index_url: str | None) -> dict[str, Any]:
    fields = {
        name: value
        for name in Source.__dataclass_fields__
        if (value := getattr(source, name)) is not None
    }
    if source.kind == "python_package":
        if want.python_offline is not None:
            fields["folder"] = want.python_offline
        else:
            fields["index_url"] = index_url
    elif source.kind == "hub":
        fields["hub"] = want.hub
    return fields
