"""What the firmware says of Secure Boot, and whether it trusts the key that DKMS signs with."""

from __future__ import annotations

import re

from gpuwright.onnode.tree import Tree

_VARIABLES = "/sys/firmware/efi/efivars"
_GLOBAL = "8be4df61-93ca-11d2-aa0d-00e098032b8c"
_SHIM = "605dab50-e046-4300-abb6-3dd810dd8b23"
_ATTRIBUTES = 4
"""Bytes before a variable's content."""
_KEYS = ("/var/lib/shim-signed/mok/MOK.der", "/var/lib/dkms/mok.pub")
"""Where Ubuntu and Debian keep the certificate of the key that modules are signed with here."""
_VENDORS = re.compile(rb"Debian|Canonical|Red Hat|SUSE|Microsoft|Fedora|Oracle|Rocky|AlmaLinux")


def secure_boot(tree: Tree, container: bool) -> bool | None:
    """Whether the kernel may load signed modules alone; None where the firmware cannot be read."""
    state = tree.data(f"{_VARIABLES}/SecureBoot-{_GLOBAL}", 64)
    if state and len(state) > _ATTRIBUTES:
        return state[_ATTRIBUTES] == 1
    if container or not tree.exists("/sys/firmware") or tree.exists("/sys/firmware/efi"):
        return None
    return False  # no EFI at all


def trusted_key(tree: Tree) -> bool | None:
    """Whether shim trusts this machine's own signing key; where none is kept, any that is not a
    distribution's. None: shim's list cannot be read."""
    data = tree.data("/sys/firmware/efi/mok-variables/MokListRT", 1 << 20)
    if data is None:
        data = tree.data(f"{_VARIABLES}/MokListRT-{_SHIM}", 1 << 20)
        data = None if data is None else data[_ATTRIBUTES:]
    if data is None:
        return None
    listed = certificates(data)
    own = [key for key in (tree.data(path, 1 << 16) for path in _KEYS) if key]
    if own:
        return any(key in listed for key in own)
    return any(not _VENDORS.search(one) for one in listed)


def certificates(data: bytes) -> list[bytes]:
    """The X.509 certificates of an EFI signature database, as far as it is whole.

    A database is a row of lists; each begins with a type, its own length, that of its header and
    that of each entry, and an entry begins with its owner (UEFI, EFI_SIGNATURE_LIST).
    """
    x509 = bytes.fromhex("a159c0a5e494a74a87b5ab155c2bf072")
    found = []
    while len(data) >= 28:
        size, header, each = (int.from_bytes(data[at : at + 4], "little") for at in (16, 20, 24))
        if not 28 <= size <= len(data):
            break
        entries = data[28 + header : size]
        if data[:16] == x509 and each > 16:
            starts = range(0, len(entries) - each + 1, each)
            found += [entries[at + 16 : at + each] for at in starts]
        data = data[size:]
    return found
