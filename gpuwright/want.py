"""What an operator wants of one node: the keys of the host's `gpuwright` dict, checked."""

from __future__ import annotations

import dataclasses
import difflib
import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gpuwright.layout import Layout
from gpuwright.refusals import WantError

NO_GPUS = "none"
_LAYOUT = Layout()
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/+-]{0,127}", re.ASCII)
_SERVICE = re.compile(r"[a-z0-9-]{1,32}", re.ASCII)
_GPU = re.compile(r"\d{1,3}|(?:GPU|MIG)-[0-9A-Za-z-]{1,64}", re.ASCII)


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
    gpus: tuple[str, ...] | None = None
    """Indexes or UUIDs, all of which are to be used; empty: the CPU; None: whatever fits."""
    tensor_parallel_size: int | None = None
    workload: str = "chat"
    bind: str = "127.0.0.1"
    port: int = 8080
    model_store: str = _LAYOUT.model_store
    served_model_name: str | None = None
    extra_models: Path | None = None
    python_index: str | None = None
    hub: str = "https://huggingface.co"
    hub_token_file: Path | None = None
    ca_bundle: str | None = None
    proxy: str | None = None
    start_timeout_seconds: int | None = None
    cache: str = _LAYOUT.cache

    @classmethod
    def from_data(cls, data: object) -> Want:
        """The want in `data`, a host's `gpuwright` dict; WantError with every fault in it.

        Names of models, engines and the like are resolved when a plan is decided.
        """
        if not isinstance(data, Mapping):
            raise WantError(f"gpuwright: needs a mapping, found {type(data).__name__}")
        faults: list[str] = []
        values: dict[str, Any] = {}
        for key, value in data.items():
            if key not in _CHECKS:
                faults.append(f"{key}: unknown key{_nearest_key(str(key))}")
                continue
            if value is None:
                continue
            try:
                values[key] = _CHECKS[key](value)
            except ValueError as error:
                faults.append(f"{key}: {error}")
        if faults:
            raise WantError(*faults)
        return cls(**values)

    @property
    def cpu_only(self) -> bool:
        return self.gpus == ()

    @property
    def layout(self) -> Layout:
        return Layout(model_store=self.model_store, cache=self.cache)


def _nearest_key(key: str) -> str:
    near = difflib.get_close_matches(key, _CHECKS, n=1)
    return f"; nearest: {near[0]}" if near else f"; known: {', '.join(_CHECKS)}"


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"needs text, found {type(value).__name__} {value!r}; quote it")
    if not value or any(ord(character) < 32 or ord(character) == 127 for character in value):
        raise ValueError("needs text without control characters")
    return value


def _name(value: object) -> str:
    if not _NAME.fullmatch(_text(value)):
        raise ValueError(f"{value!r} is not a name")
    return str(value)


def _service_name(value: object) -> str:
    if not _SERVICE.fullmatch(_text(value)):
        raise ValueError(f"{value!r} needs 1 to 32 of a-z, 0-9 and -")
    return str(value)


def _whole(low: int, high: int) -> Callable[[object], int]:
    def check(value: object) -> int:
        if type(value) is not int:
            raise ValueError(f"needs a whole number, found {type(value).__name__} {value!r}")
        if not low <= value <= high:
            raise ValueError(f"needs {low:,} to {high:,}, found {value:,}")
        return value

    return check


def _gpus(value: object) -> tuple[str, ...]:
    if value == NO_GPUS:
        return ()
    if isinstance(value, str | int) and not isinstance(value, bool):
        value = [value]
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(f"needs a list of indexes or UUIDs, or {NO_GPUS!r}")
    names = []
    for entry in value:
        if isinstance(entry, bool) or not _GPU.fullmatch(str(entry)):
            raise ValueError(f"{entry!r} is neither an index nor a UUID")
        names.append(str(entry))
    if len(set(names)) < len(names):
        raise ValueError("names a card twice")
    return tuple(names)


def _address(value: object) -> str:
    text = _text(value)
    if text == "localhost":
        return "127.0.0.1"
    try:
        # A scope after % could be any text, and stands in the unit and in URLs.
        return str(ipaddress.ip_address(text if "%" not in text else ""))
    except ValueError:
        raise ValueError(f"{text!r} is not an IP address") from None


def _path(value: object) -> str:
    text = str(value) if isinstance(value, Path) else _text(value)
    if not text.startswith("/") or ".." in text.split("/"):
        raise ValueError(f"{text!r} is not an absolute path")
    return text.rstrip("/") or "/"


def _store(value: object) -> str:
    text = _path(value)
    if text == "/":
        raise ValueError("needs a directory of its own, found /")
    return text


def _local_file(value: object) -> Path:
    return value if isinstance(value, Path) else Path(_text(value))


def _url(value: object) -> str:
    text = _text(value)
    try:
        parts = urlsplit(text)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and " " not in text
        _ = parts.port
    except ValueError:
        fits = False
    # Not quoted: the URL may hold a password.
    if not fits:
        raise ValueError("is not an http or https URL")
    if "@" in parts.netloc:
        raise ValueError(
            "holds credentials, which every user of the node could read in its process list; "
            "keep them in the node's own environment (/etc/environment) or use a mirror without"
        )
    return text.rstrip("/")


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "model": _name,
    "service": _service_name,
    "engine": _name,
    "release": _name,
    "build_tag": _name,
    "checkpoint": _name,
    "attention_backend": _name,
    "kv_cache_dtype": _name,
    "max_model_len": _whole(256, 16_777_216),
    "max_num_seqs": _whole(1, 4096),
    "gpus": _gpus,
    "tensor_parallel_size": _whole(1, 64),
    "workload": _name,
    "bind": _address,
    "port": _whole(1, 65535),
    "model_store": _store,
    "served_model_name": _name,
    "extra_models": _local_file,
    "python_index": _url,
    "hub": _url,
    "hub_token_file": _local_file,
    "ca_bundle": _path,
    "proxy": _url,
    "start_timeout_seconds": _whole(1, 86400),
    "cache": _store,
}

KEYS = tuple(field.name for field in dataclasses.fields(Want))
