"""Count the objects of a service proxy in the kernel of this network namespace."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address
from pathlib import Path

from bench.workload import NODE_ADDRESS

INTERFACE = "kube-ipvs0"


def count() -> dict[str, int]:
    """The number of objects by kind: virtual and real servers, addresses, routes, and set entries."""
    table = Path("/proc/thread-self/net/ip_vs").read_text()
    real_servers = table.count("\n  -> ") - 1  # the table's heading looks like a real server
    return {
        "virtual_servers": table.count("\nTCP ") + table.count("\nUDP ") + table.count("\nSCTP "),
        "real_servers": real_servers,
        "addresses": _lines("ip", "-oneline", "-4", "address", "show", "dev", INTERFACE),
        "routes": _lines("ip", "-4", "route", "show", "table", "local", "dev", INTERFACE, "src", NODE_ADDRESS),
        "entries": _entries(),
    }


def differences(expected: Mapping[str, Sequence[str]], port: int, target_port: int) -> int:
    """How many virtual servers of this port have other real servers than expected, or are not expected at all.

    `expected` has the addresses of the real servers by the address of the virtual server. Real servers of weight 0 are
    not counted: they drain.
    """
    found: dict[tuple[str, int], set[tuple[str, int]]] = {}
    real_servers: set[tuple[str, int]] = set()
    for line in Path("/proc/thread-self/net/ip_vs").read_text().splitlines()[3:]:
        words = line.split()
        if words[0] == "->":
            if words[3] != "0":
                real_servers.add(_endpoint(words[1]))
        else:
            real_servers = found.setdefault(_endpoint(words[1]), set())
    wanted = {(vip, port): {(address, target_port) for address in each} for vip, each in expected.items()}
    keys = wanted.keys() | {key for key in found if key[1] == port}
    return sum(found.get(key) != wanted.get(key) for key in keys)


def _endpoint(text: str) -> tuple[str, int]:
    """Read `0AFE000A:1F90`."""
    address, _, port = text.partition(":")
    return str(IPv4Address(int(address, 16))), int(port, 16)


def _lines(*command: str) -> int:
    return len(_output(*command).splitlines())


def _entries() -> int:
    """Set entries: those of all IP sets, and of the nf_tables sets in kroute's tables."""
    return _ip_set_entries() + sum(_nft_entries(family) for family in ("ip", "ip6"))


def _nft_entries(family: str) -> int:
    listed = _output("nft", "-j", "list", "sets", family)
    sets = [it["set"] for it in json.loads(listed)["nftables"] if "set" in it] if listed else []
    return sum(len(it.get("elem", ())) for it in sets if it["table"] == "kroute")


def _ip_set_entries() -> int:
    found = 0
    for line in _output("ipset", "list", "-t").splitlines():
        name, _, value = line.partition(": ")
        if name == "Number of entries":
            found += int(value)
    return found


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout
