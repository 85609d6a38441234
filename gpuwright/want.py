"""What an operator wants of one node: the keys of the host's `gpuwright` dict, checked."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from gpuwright.layout import Layout
from gpuwright.places import (
    read_adapters,
    read_cache,
    read_directory,
    read_local_path,
    read_node_path,
    read_proxy,
    read_template,
    read_url,
    read_url_or_node_path,
)
from gpuwright.quoting import clipped, kind, nearest, quoted
from gpuwright.reading import read_file
from gpuwright.refusals import WantError
from gpuwright.values import (
    SpeculativeWant,
    read_address,
    read_gpus,
    read_list,
    read_lora_rank,
    read_name,
    read_port,
    read_service,
    read_speculative,
    read_switch,
    read_whole,
)

_LAYOUT = Layout()
_TOKEN = re.compile(r"[\x21-\x7e]{1,4096}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Want:
    """None leaves a choice to the decision; anything else is a pin: honoured, or refused."""

    model: str = "auto"
    service: str = "llm"
    engine: str | None = None
    release: str | None = None
    build_tag: str | None = None
    checkpoint: str | None = None
    attention_backend: str | None = None
    kv_cache_dtype: str | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    speculative: SpeculativeWant | None = None
    prefix_caching: bool | None = None
    structured_output: str | None = None
    vision: bool = False
    images_per_prompt: int | None = None
    chat_template: str | None = None
    lora: dict[str, str] | None = field(default=None, hash=False)
    """Name of each adapter -> its path on the node."""
    max_lora_rank: int | None = None
    expert_offload: bool | None = None
    """Whether experts are computed by the CPU; None: where the cards alone do not hold them."""
    gpus: tuple[str, ...] | None = None
    """Indexes or UUIDs, all of which are to be used; empty: the CPU; None: whatever fits."""
    tensor_parallel_size: int | None = None
    workload: str = "chat"
    share_gpus: bool = False
    bind: str = "127.0.0.1"
    port: int = 8080
    model_store: str = _LAYOUT.model_store
    served_model_name: str | None = None
    extra_models: Path | None = None
    cuda_repository: bool = False
    """Whether the node's package sources have NVIDIA's own repository."""
    python_index: str | None = None
    python_extra_indexes: tuple[str, ...] | None = None
    python_find_links: tuple[str, ...] | None = None
    """Pages, or folders of the node, that hold wheels."""
    python_offline: str | None = None
    """Folder of the node with every wheel: no index is asked."""
    python_mirror: str | None = None
    hub: str = "https://huggingface.co"
    hub_token_file: Path | None = None
    ca_bundle: str | None = None
    proxy: str | None = None
    start_timeout_seconds: int | None = None
    cache: str = _LAYOUT.cache
    keep_engines: int = 2
    """How many old ones of each stay, and of what they were made with, beside those in use."""

    @classmethod
    def from_data(cls, data: object) -> Want:
        """The want in `data`, a host's `gpuwright` dict; WantError with every fault in it.

        Names of models, engines and the like are resolved when a plan is decided.
        """
        want, faults = cls.read(data)
        if faults:
            raise WantError(*faults)
        return want

    @classmethod
    def read(cls, data: object) -> tuple[Want, tuple[str, ...]]:
        """What is sound in `data`, and a fault for each of the rest: what is sound may hold names
        that are unknown, and they are to be told in the same breath."""
        if not isinstance(data, Mapping):
            return cls(), (f"gpuwright: needs a mapping, found {kind(data)}",)
        faults: list[str] = []
        values: dict[str, Any] = {}
        for key, value in data.items():
            if key not in _CHECKS:
                faults.append(f"{clipped(key)}: unknown key{nearest(key, _CHECKS)}")
                continue
            if value is None:
                continue
            try:
                values[key] = _CHECKS[key](value)
            except ValueError as error:
                faults.append(f"{key}: {error}")
        want = cls(**values)
        if not faults:
            faults.extend(want._contradictions())
        return want, tuple(faults)

    def _contradictions(self) -> Iterator[str]:
        """Where one key contradicts another."""
        if f"{self.model_store}/".startswith(f"{self.cache}/"):
            yield (
                f"model_store: {quoted(self.model_store)} is inside cache {quoted(self.cache)}, "
                "which may be removed at any time"
            )
        if self.images_per_prompt is not None and not self.vision:
            yield "images_per_prompt: needs vision: true"
        if self.max_lora_rank is not None and self.lora is None:
            yield "max_lora_rank: needs lora"
        if self.served_model_name in (self.lora or {}):
            yield f"lora: {quoted(self.served_model_name)} is what the model itself is called"

    def hub_token(self) -> str | None:
        """The hub's token; None where no file is named. WantError where it cannot be had."""
        if self.hub_token_file is None:
            return None
        try:
            text = read_file(self.hub_token_file).strip()
        except ValueError as error:
            raise WantError(f"hub_token_file: {self.hub_token_file}: {error}") from error
        # Not quoted: it is a secret.
        if not _TOKEN.fullmatch(text):
            raise WantError(
                f"hub_token_file: {self.hub_token_file}: needs one word of visible ASCII characters"
            )
        return text

    @property
    def cpu_only(self) -> bool:
        return self.gpus == ()

    @property
    def layout(self) -> Layout:
        return _layout(self.model_store, self.cache)


@lru_cache(maxsize=256)
def _layout(model_store: str, cache: str) -> Layout:
    return Layout(model_store=model_store, cache=cache)


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "model": read_name,
    "service": read_service,
    "engine": read_name,
    "release": read_name,
    "build_tag": read_name,
    "checkpoint": read_name,
    "attention_backend": read_name,
    "kv_cache_dtype": read_name,
    "max_model_len": read_whole(256, 16_777_216),
    "max_num_seqs": read_whole(1, 4096),
    "max_num_batched_tokens": read_whole(64, 1_048_576),
    "speculative": read_speculative,
    "prefix_caching": read_switch,
    "structured_output": read_name,
    "vision": read_switch,
    "images_per_prompt": read_whole(1, 64),
    "chat_template": read_template,
    "lora": read_adapters,
    "max_lora_rank": read_lora_rank,
    "expert_offload": read_switch,
    "gpus": read_gpus,
    "tensor_parallel_size": read_whole(1, 64),
    "workload": read_name,
    "share_gpus": read_switch,
    "bind": read_address,
    "port": read_port,
    "model_store": read_directory,
    "served_model_name": read_name,
    "extra_models": read_local_path,
    "cuda_repository": read_switch,
    "python_index": read_url,
    "python_extra_indexes": read_list(read_url),
    "python_find_links": read_list(read_url_or_node_path),
    "python_offline": read_node_path,
    "python_mirror": read_url_or_node_path,
    "hub": read_url,
    "hub_token_file": read_local_path,
    "ca_bundle": read_node_path,
    "proxy": read_proxy,
    "start_timeout_seconds": read_whole(1, 86400),
    "cache": read_cache,
    "keep_engines": read_whole(1, 64),
}

KEYS = tuple(field.name for field in dataclasses.fields(Want))
