"""What stands between a node and the network, and how its clock is: firewall, proxies, mirrors."""

from __future__ import annotations

import ctypes
import os
import re
import time
from typing import Any

from gpuwright.onnode.envfile import variables
from gpuwright.onnode.outcome import clean
from gpuwright.onnode.service import pids
from gpuwright.onnode.tree import Tree

_UNSYNCHRONIZED = 0x40
"""STA_UNSYNC of adjtimex(2)."""
_STATUS_AT = 40
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_INDEXES = ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL")
_PIP = ("/root/.config/pip/pip.conf", "/root/.pip/pip.conf", "/etc/pip.conf")
_MOST = 20


def firewall(tree: Tree) -> dict[str, Any]:
    """Which program keeps the packet filter, and whether it does; rules themselves are not read."""
    if any(re.match(r"(?i)ENABLED\s*=\s*yes\b", line) for line in tree.lines("/etc/ufw/ufw.conf")):
        return {"kind": "ufw", "active": True}
    if pids(tree, "/system.slice/firewalld.service"):
        return {"kind": "firewalld", "active": True}
    for unit, kind in (("nftables", "nftables"), ("netfilter-persistent", "iptables")):
        for target in ("sysinit", "multi-user"):
            place = f"/etc/systemd/system/{target}.target.wants"
            if tree.link(f"{place}/{unit}.service"):
                return {"kind": kind, "active": True}
    if (tree.text("/proc/net/ip_tables_names", 4096) or "").strip():
        return {"kind": "iptables", "active": True}
    for kind, path in (
        ("ufw", "/etc/ufw/ufw.conf"),
        ("firewalld", "/usr/sbin/firewalld"),
        ("nftables", "/usr/sbin/nft"),
        ("iptables", "/usr/sbin/iptables"),
    ):
        if tree.exists(path):
            # Its tables may be another's work, Docker's for one.
            return {"kind": kind, "active": None if tree.exists("/sys/module/nf_tables") else False}
    if not tree.exists("/etc"):
        return {"kind": None, "active": None}
    return {"kind": "none", "active": False}


def clock(tree: Tree) -> dict[str, Any]:
    """The node's time, whether the kernel's clock follows a time server, and the time zone."""
    zone = tree.resolved("/etc/localtime").partition("/zoneinfo/")[2]
    return {
        "time": time.time(),
        "synchronized": _synchronized(tree),
        "timezone": clean(zone or tree.word("/etc/timezone") or "", 100) or None,
    }


def _synchronized(tree: Tree) -> bool | None:
    """The kernel's own word for it, which is what timedatectl shows; nothing is adjusted."""
    if not tree.is_node:
        return tree.exists("/run/systemd/timesync/synchronized") or None
    asked = ctypes.create_string_buffer(512)  # struct timex, no modes set
    ask = getattr(ctypes.CDLL(None), "adjtimex", None)
    if ask is None or ask(asked) < 0:
        return None
    return not int.from_bytes(asked.raw[_STATUS_AT : _STATUS_AT + 4], "little") & _UNSYNCHRONIZED


def settings(tree: Tree) -> dict[str, Any]:
    """Proxies, package mirrors and Python index that are set: never what they are entered with."""
    named = {key.lower(): text for key, text in _environment(tree).items()}
    proxies = {name: named[name] for name in _PROXIES if named.get(name)}
    for path in ("/etc/apt/apt.conf", *_below(tree, "/etc/apt/apt.conf.d", "")):
        for line in tree.lines(path):
            match = re.match(r'(?i)Acquire::(https?)::Proxy\s+"?([^"\s;]+)', line)
            if match:
                proxies[f"apt {match.group(1).lower()}"] = match.group(2)
    return {
        "proxies": [{"name": name, "value": origin(proxies[name])} for name in sorted(proxies)],
        "apt_mirrors": _mirrors(tree),
        "pip_index": _index(tree),
    }


def origin(url: str) -> str | None:
    """`scheme://host:port` of an address; whatever stands before an `@` is left out."""
    match = re.match(
        r"(?:([a-zA-Z][a-zA-Z0-9+.-]{0,20})://)?(?:.*@)?"
        r"(\[[0-9a-fA-F:.]{2,64}\]|[a-zA-Z0-9._-]{1,253})(?::(\d{1,5}))?(?:[/?#].*)?\Z",
        url.strip()[:2000],
    )
    if not match:
        return None
    scheme, host, port = match.groups()
    return f"{(scheme or 'http').lower()}://{host}" + (f":{port}" if port else "")


def _host(url: str) -> str | None:
    place = origin(url)
    return place.partition("://")[2] if place else None


def _environment(tree: Tree) -> dict[str, str]:
    """What login sessions get, and what this one has."""
    own = dict(os.environ) if tree.is_node else {}
    return {**variables(tree.text("/etc/environment", 1 << 16) or ""), **own}


def _below(tree: Tree, place: str, ending: str) -> list[str]:
    return [f"{place}/{name}" for name in tree.names(place, 200) if name.endswith(ending)]


def _mirrors(tree: Tree) -> list[str] | None:
    """Hosts of apt's sources that are in use; None where there is no apt."""
    if not tree.exists("/etc/apt"):
        return None
    place = "/etc/apt/sources.list.d"
    urls = []
    for path in ("/etc/apt/sources.list", *_below(tree, place, ".list")):
        for line in tree.lines(path, 1 << 18):
            match = re.match(r"deb\s+(?:\[[^\]]*\]\s*)?([a-z+]+://\S+)", line)
            urls += [match.group(1)] if match else []
    for path in _below(tree, place, ".sources"):
        stanza: dict[str, str] = {}
        for line in [*tree.lines(path, 1 << 18), ""]:
            key, _, text = line.partition(":")
            if line:
                stanza[key.lower()] = text.strip()
            else:
                used = stanza.get("enabled", "").lower() != "no"
                urls += stanza.get("uris", "").split() if used else []
                stanza = {}
    hosts = dict.fromkeys(_host(url) for url in urls[:1000])
    return [host for host in hosts if host][:_MOST]


def _index(tree: Tree) -> str | None:
    """Host of the Python index that is set; None: the public one."""
    named = _environment(tree)
    for name in _INDEXES:
        if named.get(name):
            return _host(named[name])
    for path in _PIP:
        for line in tree.lines(path):
            match = re.match(r"(?i)index[-_]url\s*[=:]\s*(\S+)", line)
            if match:
                return _host(match.group(1))
    return None
