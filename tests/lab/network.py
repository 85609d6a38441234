"""A lab's network: one bridge, one nftables table, and a namespace with a veth pair per node."""

import ipaddress
import json
from pathlib import Path

from tests.lab.machine import LabError, locked, run, unmount_below

PREFIX = "gwlab"
MAX_LABS = 100
FORWARD = Path("/proc/sys/net/ipv4/ip_forward")


def bridge_name(lab_id: int) -> str:
    return f"{PREFIX}{lab_id}"


def subnet(lab_id: int) -> ipaddress.IPv4Network:
    """The lab's /24; .1 and .2 are this machine, a node's index is its last byte."""
    return ipaddress.IPv4Network(f"10.213.{lab_id}.0/24")


def address(lab_id: int, index: int) -> str:
    return str(subnet(lab_id)[index])


def is_free(lab_id: int) -> bool:
    """Whether neither an interface of that name nor a route into that subnet is there."""
    links = [link["ifname"] for link in json.loads(run("ip", "-j", "link").stdout)]
    if bridge_name(lab_id) in links:
        return False
    routes = json.loads(run("ip", "-j", "-4", "route", "show", "table", "all").stdout)
    for route in routes:
        target = route["dst"]
        if target != "default" and ipaddress.ip_network(target, False).overlaps(subnet(lab_id)):
            return False
    return True


def open_lab(lab_id: int, home: Path) -> None:
    """Bring up the bridge and the table; the bridge's alias says which directory it belongs to."""
    bridge, net = bridge_name(lab_id), subnet(lab_id)
    run(
        *("ip", "-batch", "-"),
        stdin=f"link add {bridge} type bridge\n"
        f"link set {bridge} alias {PREFIX}:{home}\n"
        f"link set {bridge} mtu {_mtu()} up\n"
        f"addr add {net[1]}/{net.prefixlen} dev {bridge}\n"
        f"addr add {net[2]}/{net.prefixlen} dev {bridge}\n",
    )
    run(
        *("nft", "-f", "-"),
        stdin=f"""
table ip {bridge} {{
  set dropped {{ type ipv4_addr; }}
  set rejected {{ type ipv4_addr; }}
  chain outward {{
    type nat hook postrouting priority srcnat;
    ip saddr {net} ip daddr != {net} masquerade
  }}
  chain through {{
    type filter hook forward priority filter;
    ip saddr @dropped ip daddr != {net} drop
    ip daddr @dropped ip saddr != {net} drop
    ip saddr @rejected ip daddr != {net} reject
  }}
}}
""",
    )
    with locked(home / "forward.lock"):
        if FORWARD.read_text().strip() == "0":
            # Remembered, so that the last lab to go puts it back.
            (home / "forward-was-off").touch()
            FORWARD.write_text("1")


def close_lab(lab_id: int, home: Path) -> None:
    """Take down everything with this lab's name, whether or not it is all there."""
    bridge = bridge_name(lab_id)
    links = [link["ifname"] for link in json.loads(run("ip", "-j", "link").stdout)]
    for name in links:
        if name == bridge or name.startswith(f"{bridge}v"):
            run("ip", "link", "delete", name, check=False)
    run("nft", "delete", "table", "ip", bridge, check=False)
    with locked(home / "forward.lock"):
        mark = home / "forward-was-off"
        if mark.exists() and not labs_of(home):
            FORWARD.write_text("0")
            mark.unlink()


def labs_of(home: Path) -> list[int]:
    """Ids of the bridges on this machine whose alias names `home`."""
    found = []
    for link in json.loads(run("ip", "-j", "link").stdout):
        number = link["ifname"].removeprefix(PREFIX)
        if number.isdigit() and link.get("ifalias") == f"{PREFIX}:{home}":
            found.append(int(number))
    return found


def plug(lab_id: int, index: int, namespace: Path) -> None:
    """A new namespace with eth0 and a default route, joined to the bridge."""
    unplug(namespace)
    namespace.touch()
    run("unshare", f"--net={namespace}", "true")
    outer, net = f"{bridge_name(lab_id)}v{index}", subnet(lab_id)
    run("ip", "link", "delete", outer, check=False)
    mtu = _mtu()
    # The hardware address stays, or a node switched off and on would be unknown to its neighbours.
    inner = f"address 02:67:77:00:{lab_id:02x}:{index:02x}"
    run(
        *("ip", "-batch", "-"),
        stdin=f"link add {outer} mtu {mtu} type veth peer name eth0 {inner} mtu {mtu}"
        f" netns {namespace}\n"
        f"link set {outer} master {bridge_name(lab_id)} up\n",
    )
    run(
        *("nsenter", f"--net={namespace}", "ip", "-batch", "-"),
        stdin=f"link set lo up\naddr add {net[index]}/{net.prefixlen} dev eth0\n"
        f"link set eth0 up\nroute add default via {net[1]}\n",
    )


def unplug(namespace: Path) -> None:
    """Forget a node's namespace and, with it, both ends of its cable."""
    if namespace.exists():
        unmount_below(namespace)
        namespace.unlink()


def set_cable(lab_id: int, index: int, connected: bool) -> None:
    """Pull or put back the cable between a node and the bridge, on this machine's side."""
    outer = f"{bridge_name(lab_id)}v{index}"
    run("ip", "link", "set", outer, "up" if connected else "down", check=connected)


def set_blocked(lab_id: int, node_address: str, how: str | None) -> None:
    """Let a node reach the world beyond the lab, or not: `drop` in silence, `reject` at once."""
    sets = {"drop": "dropped", "reject": "rejected"}
    if how is not None and how not in sets:
        raise LabError(f"how: drop or reject, not {how!r}")
    table = ("ip", bridge_name(lab_id))
    for word, name in sets.items():
        action = "add" if word == how else "delete"
        element = f"{{ {node_address} }}"
        run("nft", action, "element", *table, name, element, check=action == "add")


def _mtu() -> int:
    """MTU of the machine's way out: a bigger one inside would lose packets to tunnels."""
    for route in json.loads(run("ip", "-j", "-4", "route", "show", "default").stdout):
        links = json.loads(run("ip", "-j", "link", "show", "dev", route["dev"]).stdout)
        return int(links[0]["mtu"])
    return 1500
