"""What commands are asked: a node and what is wanted of it, from files and options."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuwright.catalogue import Matrix
from gpuwright.explain import explain_host
from gpuwright.host import Host
from gpuwright.layout import Layout
from gpuwright.load import load_matrix
from gpuwright.pins import check_pins, name_faults
from gpuwright.quoting import clipped, quoted
from gpuwright.reading import read_file
from gpuwright.refusals import HostError, WantError
from gpuwright.sketch import UNSAID, read_sketch
from gpuwright.sketch_values import KEYS as SKETCH_KEYS
from gpuwright.sketch_values import NO_GPUS
from gpuwright.strict import read_yaml_text
from gpuwright.want import KEYS, Want

_TEXTS = frozenset(("release", "build_tag", "driver", "distro", "python"))
"""Keys whose value is text however much it looks like a number."""
_FACT = "facts.node.Node"
_HELP = {
    "driver": 'version of the driver: "570", "580.95.05"',
    "distro": "debian-12, ubuntu-24.04, ...",
    "python": "version of its python3",
    "memory_gib": "RAM",
    "disk_free_gib": "free space where models and engines go",
    "free_memory_gib": "what is free of each card: a number, or [20, 24]",
    "interconnect": "pcie or nvlink",
    "p2p": "true where the cards reach each other's memory over PCIe",
    "environment": "bare, kvm, lxc or wsl2",
    "cpu_threads": "threads of the CPU",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """`assumed` says what a sketch leaves open; empty for a node that was looked at."""

    host: Host
    matrix: Matrix
    assumed: tuple[str, ...]


def add_host_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the node", "a file, or a sketch of it in options")
    group.add_argument(
        "--host",
        type=Path,
        metavar="FILE",
        help="a node document as the probe saves it, or a sketch (docs/cli.md)",
    )
    group.add_argument(
        "--gpu",
        action="append",
        dest="gpus",
        metavar="NAME",
        help=f'a card, "RTX 3090"; once for each. {NO_GPUS!r}: a node without',
    )
    for key, text in _HELP.items():
        group.add_argument(_option(key), dest=key, metavar="VALUE", help=text)


def add_want_options(parser: argparse.ArgumentParser) -> None:
    """--workload and --pin; the caller adds --model where there is one."""
    parser.add_argument("--workload", metavar="NAME", help="the same as --pin workload=NAME")
    parser.add_argument(
        "--pin",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="pins",
        help=f"what you decide, its value in YAML: {', '.join(KEYS)}",
    )


def read_question(
    arguments: argparse.Namespace, *, without: Mapping[str, str] | None = None
) -> tuple[tuple[Want, ...], Question]:
    """What is wanted, one or several services, and of which node: --want, or --model, --workload
    and --pin, and the node's options. `without` are keys that are no pins here, and why.

    Raises WantError with every fault of values and of names, the node's among them; HostError where
    the node alone is wrong; and, where neither is, WantError for what no node could meet.
    """
    faults: list[str] = []
    wants = _read_wants(arguments, without or {}, faults)
    first = wants[0][1] if wants else Want()
    try:
        matrix = load_matrix(first.extra_models)
        for place, want in wants:
            faults.extend(f"{place}{fault}" for fault in name_faults(want, matrix))
    except WantError as error:
        faults.extend(error.faults)
        matrix = load_matrix()
    try:
        host, assumed = _read_host(arguments, matrix, first)
    except HostError as error:
        if not faults:
            raise
        raise WantError(*faults, *error.faults) from error
    if faults:
        raise WantError(*faults)
    for _, want in wants:
        check_pins(want, matrix)
    return tuple(want for _, want in wants), Question(host=host, matrix=matrix, assumed=assumed)


def explain_node(question: Question) -> str:
    """The node as text, with what its sketch leaves open in one line."""
    text = explain_host(question.host, question.matrix)
    if not question.assumed:
        return text
    return f"{text}\nassumed  {'; '.join(each.removesuffix(UNSAID) for each in question.assumed)}"


def _read_host(
    arguments: argparse.Namespace, matrix: Matrix, want: Want
) -> tuple[Host, tuple[str, ...]]:
    options = {key: getattr(arguments, key) for key in SKETCH_KEYS}
    said = [_option(key) for key, value in options.items() if value is not None]
    if arguments.host is not None:
        if said:
            raise HostError(f"--host: stands alone, found {', '.join(said)} beside it")
        return _from_file(arguments.host, matrix, want)
    if options["gpus"] is None:
        raise HostError("no node: needs --host FILE, or --gpu NAME for each card")
    faults: list[str] = []
    sketch = {
        key: value if key == "gpus" else _value(key, value, faults)
        for key, value in options.items()
        if value is not None
    }
    if faults:
        raise HostError(*faults)
    if sketch["gpus"] == [NO_GPUS]:
        sketch["gpus"] = NO_GPUS
    document, assumed = read_sketch(sketch, matrix, want.layout)
    return Host.from_document(document), assumed


def read_document(path: Path) -> dict[str, Any]:
    """The document in a file, checked as far as deciding needs; HostError where it holds none."""
    data = _read_host_file(path)
    try:
        if isinstance(data, dict) and "schema" not in data and _FACT not in data:
            raise HostError("schema: missing; needs the document of a node, not a sketch")
        document = _of_one_host(data)
        Host.from_document(document)
    except HostError as error:
        raise HostError(*(f"{path}: {fault}" for fault in error.faults)) from error
    assert isinstance(document, dict)
    return document


def _read_host_file(path: Path) -> object:
    try:
        return _read_file(path)
    except ValueError as error:
        raise HostError(f"{path}: {error}") from error


def _option(key: str) -> str:
    return "--gpu" if key == "gpus" else f"--{key.replace('_', '-')}"


def _from_file(path: Path, matrix: Matrix, want: Want) -> tuple[Host, tuple[str, ...]]:
    document, assumed = _document_in(path, matrix, want.layout)
    return Host.from_document(document), assumed


def node_document(path: Path, matrix: Matrix, layout: Layout) -> dict[str, Any]:
    """The document in a file, or that of the sketch in it; HostError where it holds neither."""
    return _document_in(path, matrix, layout)[0]


def _document_in(
    path: Path, matrix: Matrix, layout: Layout
) -> tuple[dict[str, Any], tuple[str, ...]]:
    data = _read_host_file(path)
    try:
        if isinstance(data, dict) and "schema" not in data and _FACT not in data:
            return read_sketch(data, matrix, layout)
        document = _of_one_host(data)
        Host.from_document(document)
    except HostError as error:
        raise HostError(*(f"{path}: {fault}" for fault in error.faults)) from error
    assert isinstance(document, dict)
    return document, ()


def _of_one_host(data: object) -> object:
    """A node document, also as `pyinfra INVENTORY fact facts.node.Node --json` prints it."""
    if not (isinstance(data, dict) and set(data) == {_FACT}):
        return data
    hosts = data[_FACT]
    if not isinstance(hosts, dict) or len(hosts) != 1:
        raise HostError("holds facts of several hosts, needed one (--limit)")
    (document,) = hosts.values()
    return document


def _read_wants(
    arguments: argparse.Namespace, without: Mapping[str, str], faults: list[str]
) -> list[tuple[str, Want]]:
    """What is wanted, each with the words that come before a fault of it."""
    pins = _read_pins(arguments, faults)
    faults.extend(f"{key}: {because}" for key, because in without.items() if key in pins)
    path = getattr(arguments, "want", None)
    if path is None:
        entries = [("", pins)]
    elif pins:
        raise WantError(*faults, f"--want: stands alone, found {', '.join(pins)} beside it")
    else:
        try:
            entries = [*_services(_read_file(path), f"{path}: ")]
        except ValueError as error:
            raise WantError(*faults, f"{path}: {error}") from error
    found = []
    for place, entry in entries:
        want, said = Want.read(entry)
        faults.extend(f"{place}{fault}" for fault in said)
        found.append((place, want))
    if len({want.extra_models for _, want in found}) > 1:
        faults.append(
            f"{path}: extra_models: differs between services, and one matrix decides them all"
        )
    return found


def _services(data: object, place: str) -> Iterator[tuple[str, Any]]:
    """A mapping for each entry of `services`, with what stands beside the list and holds for all of
    them; else the file's own. ValueError for a list that is none."""
    if not (isinstance(data, dict) and "services" in data):
        yield place, {} if data is None else data
        return
    services = data["services"]
    if not isinstance(services, list) or not services:
        raise ValueError("services: needs a list of mappings")
    common = {key: value for key, value in data.items() if key != "services"}
    for index, entry in enumerate(services):
        whole = {**common, **entry} if isinstance(entry, dict) else entry
        yield f"{place}services[{index}]: ", whole


def _read_pins(arguments: argparse.Namespace, faults: list[str]) -> dict[str, Any]:
    """Keys and values of the options; a key that is pinned to two values is a fault."""
    entries: list[tuple[str, Any]] = []
    for entry in arguments.pins:
        key, separator, text = entry.partition("=")
        if separator:
            entries.append((key.strip(), _value(key.strip(), text, faults)))
        else:
            faults.append(f"--pin {clipped(entry)}: needs KEY=VALUE")
    for key in ("model", "workload"):
        if getattr(arguments, key, None) is not None:
            entries.append((key, getattr(arguments, key)))
    found: dict[str, Any] = {}
    for key, value in entries:
        if key in found and found[key] != value:
            faults.append(f"{key}: pinned twice, to {quoted(found[key])} and to {quoted(value)}")
        found[key] = value
    return found


def _value(key: str, text: str, faults: list[str]) -> Any:
    """The YAML value of an option's text; what is no YAML is text, or a fault where it begins as a
    list or a mapping."""
    if key in _TEXTS:
        return text
    found: list[str] = []
    value = read_yaml_text(text, clipped(key), found)
    if found and text.lstrip().startswith(("{", "[")):
        faults.extend(found)
    return text if found else value


def _read_file(path: Path) -> object:
    """The data of a JSON or YAML file; ValueError with a sentence where it is neither."""
    text = read_file(path)
    if text.lstrip()[:1] in ("{", "["):
        try:
            data: object = json.loads(text, object_pairs_hook=_unique)
        except json.JSONDecodeError as error:
            # Flow mappings of YAML begin alike; where it is neither, this is what to say.
            said = f"not JSON: {error}"
        except RecursionError as error:
            raise ValueError("not JSON: is nested too deep") from error
        except ValueError as error:
            raise ValueError(f"not JSON: {error}") from error
        else:
            return data
    else:
        said = ""
    faults: list[str] = []
    data = read_yaml_text(text, "", faults)
    if faults:
        raise ValueError(said or f"not YAML: {'; '.join(faults).strip(': ')}")
    return data


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"key {quoted(key)} stands twice")
        found[key] = value
    return found
