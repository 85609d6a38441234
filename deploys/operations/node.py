"""Operations on a node's system: packages, user, directories, files, units.

Each is told by gpuwright.converge what differs and why, so none asks the node again, and none does
anything where nothing differs. pyinfra's stock operations read facts of their own, one round trip
each, and write secrets and units with the default umask first (see CONTRIBUTING.md).
"""

from collections.abc import Generator, Sequence
from typing import Any

from pyinfra import host
from pyinfra.api import FunctionCommand, QuoteString, StringCommand, operation

from deploys.operations.programs import program
from gpuwright.expected import Directory
from gpuwright.layout import RUNTIME, USER
from gpuwright.onnode.driver import NO_PACKAGES, PACKAGES

Commands = Generator[StringCommand | FunctionCommand]

# needrestart must not restart services of other people while we install a compiler.
_APT_ENVIRONMENT = {
    "DEBIAN_FRONTEND": "noninteractive",
    "NEEDRESTART_MODE": "l",
    "APT_LISTCHANGES_FRONTEND": "none",
}
_APT = ("apt-get", "-q=2", "-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3")

# DPkg::Lock::Timeout does not cover the package lists, which a machine's own timers hold for a
# while after it boots.
_UPDATE = f"""
tries=0
until said=$({" ".join(_APT)} update 2>&1); do
    tries=$((tries + 1))
    case $said in
        */lists/lock*) test "$tries" -lt 60 && sleep 5 && continue ;;
    esac
    printf '%s\\n' "$said" >&2
    exit 100
done
"""

_INSTALL = ("--no-install-recommends", "--no-remove")
# A toolkit asks for a driver's library, and where the driver is no package apt would lay another
# one over it, which no card answers before a reboot, if then.
_LOOK = f"""
remedy=$1
shift
if ! said=$({" ".join((*_APT, "-s", "install", *_INSTALL))} -- "$@" 2>&1); then
    printf '%s\\n' "$said" ${{remedy:+"$remedy"}} >&2
    exit 100
fi
driver=$(printf '%s\\n' "$said" | sed -En '/^Inst {NO_PACKAGES}/d
    s/^Inst ({PACKAGES})(:[a-z0-9]+)? .*/\\1/p')
if [ -n "$driver" ]; then
    echo "apt would change the driver of this node:" $driver: nothing is installed >&2
    exit 100
fi
"""

# systemd-analyze ends well where it merely ignores a line, and speaks of other units, too.
_VERIFY = """
said=$(systemd-analyze verify "$1" 2>&1)
status=$?
rm -f -- "$1"
ours=$(printf '%s\\n' "$said" | grep -F -- "${1##*/}")
if [ "$status" -ne 0 ] || [ -n "$ours" ]; then printf '%s\\n' "$said" >&2; exit 1; fi
"""


@operation()
def packages_are_installed(names: Sequence[str], repository: str | None = None) -> Commands:
    """Install Debian packages that the probe found missing; never removes or upgrades others, and
    leaves the driver as it is. `repository` is what they may need of the node's package sources."""
    if not names:
        host.noop("every package that the plan needs is installed")
        return
    yield StringCommand("sh", "-c", QuoteString(_UPDATE), _env=_APT_ENVIRONMENT)
    words = [QuoteString(name) for name in names]
    remedy = f"the node's package sources must have {repository}" if repository else ""
    looked = ("sh", "-c", QuoteString(_LOOK), "sh", QuoteString(remedy))
    yield StringCommand(*looked, *words, _env=_APT_ENVIRONMENT)
    yield StringCommand(*_APT, "install", *_INSTALL, "--", *words, _env=_APT_ENVIRONMENT)


@operation()
def user_exists(reason: str | None) -> Commands:
    """Create the system user that engines run as; it owns nothing and cannot log in."""
    if not reason:
        host.noop(f"user {USER} exists")
        return
    yield StringCommand("groupadd", "--system", "--force", USER)
    yield StringCommand(
        *("getent", "passwd", USER, ">/dev/null", "||"),
        "useradd",
        "--system",
        "--gid",
        USER,
        "--no-create-home",
        "--home-dir",
        "/nonexistent",
        "--shell",
        "/usr/sbin/nologin",
        USER,
    )


@operation()
def directories_stand(directories: Sequence[Directory]) -> Commands:
    """Create or repair directories, parents first."""
    if not directories:
        host.noop("our directories stand as planned")
        return
    yield program("write", {"directories": [_owned(row) for row in directories]})


@operation()
def modes_are_put_back(rows: Sequence[Directory]) -> Commands:
    """Give files and directories that are right otherwise their owner and mode again."""
    if not rows:
        host.noop("engine and model are root's, and nobody else writes them")
        return
    yield program("write", {"modes": [_owned(row) for row in rows]})


@operation()
def secrets_are_generated(
    path: str, names: Sequence[str], missing: str | None, mode: str | None
) -> Commands:
    """Generate what is missing in an environment file on the node itself; it never leaves it."""
    owned = _owned(Directory(path=path, mode="0600"))
    if missing:
        yield program("write", {"files": [owned | {"generate": list(names)}]})
    elif mode:
        yield program("write", {"modes": [owned]})
    else:
        host.noop(f"{path} holds its secrets, for root alone")


@operation()
def file_holds(path: str, text: str, reason: str | None) -> Commands:
    """Write a text file that everybody may read: beside, then renamed over."""
    if not reason:
        host.noop(f"{path} is the plan's")
        return
    yield program("write", {"files": [_readable(path, text)]})


@operation()
def unit_is_written(path: str, text: str, reason: str | None, kept: Sequence[str] = ()) -> Commands:
    """Write a unit file, after systemd has read a copy of it and found nothing to say.

    `kept` are files of what serves, which are kept beside until the new one has answered.
    """
    if not reason:
        host.noop(f"{path} is the plan's")
        return
    candidate = f"{RUNTIME}/{path.rsplit('/', 1)[-1]}"
    yield program(
        "write",
        {
            "directories": [_owned(Directory(path=RUNTIME))],
            "files": [_readable(candidate, text)],
        },
    )
    yield StringCommand("sh", "-c", QuoteString(_VERIFY), "verify", QuoteString(candidate))
    yield program("write", {"keep": list(kept), "files": [_readable(path, text)]})


def _owned(row: Directory) -> dict[str, Any]:
    owned = {"path": row.path, "mode": row.mode, "owner": row.owner, "group": row.group}
    return owned | {"whole": True} if row.whole else owned


def _readable(path: str, text: str) -> dict[str, Any]:
    return _owned(Directory(path=path, mode="0644")) | {"content": text}


@operation()
def units_are_reloaded(reason: str | None) -> Commands:
    """Let systemd read its unit files again."""
    if not reason:
        host.noop("systemd knows the units as they are")
        return
    yield StringCommand("systemctl", "daemon-reload")


@operation()
def service_is_enabled(unit: str, reason: str | None) -> Commands:
    """Start the service at boot; a running one is left alone."""
    if not reason:
        host.noop(f"{unit} starts at boot")
        return
    yield StringCommand("systemctl", "--quiet", "enable", QuoteString(unit))


@operation()
def service_runs(unit: str, reason: str | None) -> Commands:
    """(Re)start the service, once, when anything it was started with differs from the plan.

    A start that fails is the gate's to tell, which comes next and knows what to do about it.
    """
    if not reason:
        host.noop(f"{unit} runs what the plan says")
        return
    yield StringCommand("systemctl", "reset-failed", QuoteString(unit), "2>/dev/null", "||", "true")
    yield StringCommand("systemctl", "restart", QuoteString(unit), "||", "true")
