"""Addresses that a service may be bound to, from /proc alone."""

from __future__ import annotations

import re
import socket

from gpuwright.onnode.tree import Tree

_MOST = 200
_LEAF = re.compile(r"\|-- (\d{1,3}(?:\.\d{1,3}){3})((?:\n\s+/\d+ [^\n]*)+)")
_OWN = "/32 host LOCAL"
"""What the kernel's table of routes says below an IPv4 address of its own."""
_LINK_LOCAL = "20"
"""Its own word for IPv6 addresses that mean nothing without an interface."""


def addresses(tree: Tree) -> list[str] | None:
    """Addresses of the node, loopback left out, IPv4 first; None where they cannot be read.

    `::` stands in the list where there is IPv6 at all.
    """
    routes = tree.text("/proc/net/fib_trie")
    if routes is None:
        return None
    found = dict.fromkeys(leaf for leaf, below in _LEAF.findall(routes) if _OWN in below)
    table = tree.text("/proc/net/if_inet6")
    if table:
        found["::"] = None
    for line in (table or "").splitlines():
        words = line.split()
        if len(words) > 3 and words[3] != _LINK_LOCAL and re.match(r"[0-9a-f]{32}\Z", words[0]):
            found[socket.inet_ntop(socket.AF_INET6, bytes.fromhex(words[0]))] = None
    return [each for each in found if not each.startswith("127.") and each != "::1"][:_MOST]
