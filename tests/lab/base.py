"""Base trees: one Debian per suite, built once from the machine's own mirror and never changed."""

import os
import re
import time
from collections.abc import Iterable
from pathlib import Path

from tests.lab.machine import (
    LabError,
    apt_uris,
    directory,
    locked,
    read_json,
    remove_tree,
    run,
    say,
    write_json,
)

SUITES = ("bookworm", "trixie", "bullseye")
PACKAGES = (
    "systemd,systemd-sysv,dbus,openssh-server,python3,python3-venv,ca-certificates,iproute2,"
    "sudo,curl"
)
COMPONENTS = "main contrib non-free non-free-firmware"
# Firmware has a component of its own from bookworm on.
OLDER_COMPONENTS = {"bullseye": "main contrib non-free"}
# A changed recipe makes new trees.
RECIPE = 2
MAX_AGE_SECONDS = 14 * 24 * 3600

CA_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
APT_SETTINGS = """\
// A node's packages are kept, so that the next node need not download them.
APT::Keep-Downloaded-Packages "true";
Acquire::Languages "none";
"""


def mirrors() -> tuple[str, str | None]:
    """The Debian mirror and, where there is one, the mirror of security updates."""
    uris = list(apt_uris())
    security = next((uri for uri in uris if "security" in uri.rstrip("/").split("/")[-1]), None)
    main = os.environ.get("GPUWRIGHT_LAB_MIRROR") or next(
        (uri for uri in uris if uri != security), None
    )
    if main is None:
        raise LabError("no Debian mirror: apt of this machine names none, set GPUWRIGHT_LAB_MIRROR")
    return main, security


def components(suite: str) -> str:
    return OLDER_COMPONENTS.get(suite, COMPONENTS)


def ensure(suite: str, in_use: Iterable[Path] = ()) -> Path:
    """The suite's base tree, built when there is none of this recipe younger than 14 days.

    `in_use` are trees that nodes lie upon: they stay, however old.
    """
    if suite not in SUITES:
        raise LabError(f"suite: one of {', '.join(SUITES)}, not {suite!r}")
    bases = directory() / "cache" / "bases"
    with locked(bases / f"{suite}.lock"):
        trees = {path for path in bases.glob(f"{suite}-*") if path.is_dir()}
        fresh = sorted(tree for tree in trees if _is_fresh(tree))
        chosen = fresh[-1] if fresh else _build(suite, bases / f"{suite}-{int(time.time())}")
        for stale in trees - {chosen} - set(in_use):
            stale.with_suffix(".json").unlink(missing_ok=True)
            remove_tree(stale)
        return chosen


def _is_fresh(tree: Path) -> bool:
    # The stamp is written last, so a build that was broken off has none.
    stamp = read_json(tree.with_suffix(".json"))
    if stamp is None or stamp["recipe"] != RECIPE:
        return False
    return 0 <= time.time() - float(stamp["built"]) < MAX_AGE_SECONDS


def _build(suite: str, tree: Path) -> Path:
    say(f"building base tree {suite} (about half a minute)")
    started = time.monotonic()
    main, security = mirrors()
    remove_tree(tree)
    run(
        # It ends with us, and not as an orphan that builds on.
        *("setpriv", "--pdeathsig", "TERM", "mmdebstrap", "--quiet", "--variant=apt"),
        f"--components={components(suite).replace(' ', ',')}",
        f"--include={PACKAGES}",
        *(suite, tree, main),
        timeout=900,
    )
    _settle(tree, suite, main, security)
    write_json(
        tree.with_suffix(".json"),
        {"recipe": RECIPE, "suite": suite, "built": time.time()},
    )
    say(f"base tree {suite} built in {time.monotonic() - started:.0f} s")
    return tree


def _settle(tree: Path, suite: str, main: str, security: str | None) -> None:
    """What every node has in common on top of the packages."""
    sources = [f"deb {main} {suite} {components(suite)}"]
    if security is not None:
        sources.append(f"deb {security} {suite}-security {components(suite)}")
    (tree / "etc/apt/sources.list").write_text("\n".join(sources) + "\n")
    (tree / "etc/apt/apt.conf.d/80lab").write_text(APT_SETTINGS)
    for key in (tree / "etc/ssh").glob("ssh_host_*"):
        key.unlink()
    (tree / "etc/machine-id").write_text("")
    if Path(CA_BUNDLE).exists():
        _trust(tree)
    # Nobody's test may find the package lock taken by a timer.
    for timer in ("apt-daily.timer", "apt-daily-upgrade.timer"):
        (tree / "etc/systemd/system" / timer).symlink_to("/dev/null")


def certificates(bundle: str) -> set[str]:
    """The certificates of a PEM text, as they stand there."""
    block = r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----"
    return set(re.findall(block, bundle, re.DOTALL))


def _trust(tree: Path) -> None:
    """A machine behind a proxy of its own trusts more than Debian does: so must its nodes.

    Installed as an operator would, so that neither a package's trigger nor a program that reads
    no environment loses them.
    """
    extra = certificates(Path(CA_BUNDLE).read_text()) - certificates(
        (tree / CA_BUNDLE.lstrip("/")).read_text()
    )
    for number, certificate in enumerate(sorted(extra)):
        path = tree / f"usr/local/share/ca-certificates/lab-{number}.crt"
        path.write_text(f"{certificate}\n")
    run("chroot", tree, "update-ca-certificates")
    # Tools with trust stores of their own are told to use this one.
    names = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
    lines = [f"{name}={CA_BUNDLE}\n" for name in names]
    (tree / "etc/environment").write_text("".join(lines) + "UV_SYSTEM_CERTS=1\n")
