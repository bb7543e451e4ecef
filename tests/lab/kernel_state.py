"""The kernel's state of one namespace, read from /proc (cheap) or from the tools' dumps (complete)."""

import difflib
import functools
import ipaddress
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from tests.lab.firewall import has_legacy
from tests.lab.namespaces import Namespace

MOST_READINGS = 10
"""How often the virtual servers are read again that others change."""


@dataclass(frozen=True)
class RealServer:
    """A real server of a virtual server: its forwarding method (Masq, Route, Tunnel), weight and connections."""

    method: str
    weight: int
    active: int
    inactive: int


@dataclass(frozen=True)
class VirtualServer:
    """A row of /proc/net/ip_vs.

    `flags` is the text after the scheduler, such as `persistent 10800`. Keys are `ip:port`.
    """

    scheduler: str
    flags: str
    real_servers: dict[str, RealServer]


def virtual_servers(namespace: Namespace) -> dict[str, VirtualServer]:
    """Return the IPVS table, keyed `TCP 10.254.0.10:8080` or `UDP [fd00::1]:53`; marks are `FWM 7`.

    The persistence timeout is in seconds, as in ipvsadm; /proc shows jiffies. The file is read until it says the same
    twice: it omits virtual servers while Linux 7 moves them to a table of another size.
    """
    found = _read_virtual_servers(namespace)
    for _ in range(MOST_READINGS):
        before, found = found, _read_virtual_servers(namespace)
        if found.keys() == before.keys():
            break
    return found


def _read_virtual_servers(namespace: Namespace) -> dict[str, VirtualServer]:
    found: dict[str, VirtualServer] = {}
    real_servers: dict[str, RealServer] = {}
    for line in namespace.read("/proc/net/ip_vs").splitlines()[3:]:
        first, where, *rest = line.split()
        if first == "->":
            method, weight, active, inactive = rest
            real_servers[_endpoint(where)] = RealServer(method, int(weight), int(active), int(inactive))
            continue
        real_servers = {}
        scheduler, *flags = rest
        if "persistent" in flags:
            at = flags.index("persistent") + 1
            flags[at] = str(int(flags[at]) // _jiffies_per_second())
        name = str(int(where, 16)) if first == "FWM" else _endpoint(where)
        found[f"{first} {name}"] = VirtualServer(scheduler, _flags(flags), real_servers)
    return found


def connections_ever(namespace: Namespace, address: str) -> int:
    """Return how many connections the TCP virtual server at `ip:port` has taken since its creation."""
    lines = namespace.run("ipvsadm", "-Ln", "--stats", "--exact", "-t", address).splitlines()
    [line] = [line for line in lines if line.startswith("TCP")]
    return int(line.split()[2])


@functools.cache
def _jiffies_per_second() -> int:
    """Return the kernel's HZ. It is measured by a virtual server with a persistence of one second."""
    scratch = Namespace(f"kl-{os.getpid()}-hz")
    try:
        scratch.run("ipvsadm", "-A", "-f", "1", "-s", "rr", "-p", "1")
        return int(scratch.read("/proc/net/ip_vs").split("persistent")[1].split()[0])
    finally:
        scratch.delete()


def _flags(words: list[str]) -> str:
    """Join flags. The netmask of persistence is left out if it is the whole address."""
    return " ".join(word for word in words if word.lower() != "ffffffff")


def _endpoint(text: str) -> str:
    """Turn `0AFE000A:1F90` into 10.254.0.10:8080."""
    address, _, port = text.rpartition(":")
    if address.startswith("["):
        return f"[{ipaddress.ip_address(address.strip('[]'))}]:{int(port, 16)}"
    return f"{ipaddress.ip_address(int(address, 16))}:{int(port, 16)}"


def addresses(namespace: Namespace, interface: str) -> list[str]:
    """Return the addresses of an interface as `10.254.0.10/32`; none if the interface does not exist."""
    links = json.loads(namespace.run("ip", "-json", "address", "show"))
    of_interface = [entry for link in links if link.get("ifname") == interface for entry in link["addr_info"]]
    return [f"{entry['local']}/{entry['prefixlen']}" for entry in of_interface if "local" in entry]


def local_routes(namespace: Namespace) -> dict[str, str]:
    """Return the source of every `local` route of both families, by destination; "" for a route without one."""
    found: dict[str, str] = {}
    for family in ("-4", "-6"):
        text = namespace.run("ip", family, "-json", "route", "show", "table", "local", "type", "local")
        for route in json.loads(text):
            found.setdefault(route["dst"], route.get("prefsrc", ""))
    return found


_SYSCTLS = ("net/ipv4/vs", "net/ipv4/conf", "net/ipv6/conf", "net/ipv4/ip_forward", "net/ipv4/neigh/default")
_COMMANDS = (
    "ip -o address show",
    "ip -o link show",
    "ip -4 route show table all",
    "ip -6 route show table all",
    "ip -4 rule show",
    "ip -6 rule show",
    "ipvsadm -Sn",
    "nft list ruleset",
)
_LEGACY_COMMANDS = ("iptables-legacy-save", "ip6tables-legacy-save", "ipset save")
_VOLATILE = re.compile(
    r"""\[\d+:\d+\]                          # packet and byte counters of chains
      | counter[ ]packets[ ]\d+[ ]bytes[ ]\d+
      | ^\#[ ](?:Generated|Completed)[ ].*
      | (?:valid_lft|preferred_lft|expires)[ ]\S+
      | initval[ ]0x[0-9a-f]+                 # the random seed of a set
      | (?<=[ ])state[ ](?:UP|DOWN|UNKNOWN|disabled|listening|learning|forwarding)\b  # a link settles; its flags stay
      | ,LOWER_UP | NO-CARRIER, | [ ]linkdown\b
    """,
    re.MULTILINE | re.VERBOSE,
)


@dataclass(frozen=True)
class Snapshot:
    """Everything that kroute could have changed on a node, as the text of each command that shows it."""

    parts: dict[str, list[str]]

    @classmethod
    def of(cls, namespace: Namespace) -> "Snapshot":
        """Take a snapshot of `namespace`, without values that change by themselves: counters, lifetimes, dates."""
        commands = _COMMANDS + (_LEGACY_COMMANDS if has_legacy() else ())
        parts = {command: _stable(namespace.run(*command.split())) for command in commands}
        parts["sysctl"] = _sysctls(namespace)
        return cls(parts)

    def diff(self, later: "Snapshot") -> str:
        """Return the lines that `later` has more (+) and less (-), under the command that shows them; "" if equal."""
        lines: list[str] = []
        for command, before in self.parts.items():
            changed = [
                line
                for line in difflib.unified_diff(before, later.parts[command], lineterm="", n=0)
                if not line.startswith(("---", "+++", "@@"))
            ]
            lines += [f"{command}:", *(f"  {line}" for line in changed)] if changed else []
        return "\n".join(lines)


def _stable(text: str) -> list[str]:
    # The built-in chains of a legacy table appear when somebody reads the table, and mean nothing.
    kept = (line.rstrip() for line in _VOLATILE.sub("", text).splitlines())
    return [line for line in kept if line and not re.match(r"\*|COMMIT|:[A-Z]+ ACCEPT", line)]


def _sysctls(namespace: Namespace) -> list[str]:
    with namespace.inside():
        roots = [Path("/proc/sys", name) for name in _SYSCTLS]
        files = [path for root in roots for path in (root.rglob("*") if root.is_dir() else [root]) if path.is_file()]
        readable = [path for path in files if path.stat().st_mode & 0o400 and path.name != "stable_secret"]
        return sorted(f"{path.relative_to('/proc/sys')} = {path.read_text().strip()}" for path in readable)
