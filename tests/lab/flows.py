"""The connections that the kernel of one namespace knows: conntrack entries, and the connections of IPVS."""

import ipaddress
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from tests.lab.namespaces import Namespace

UDP_TIMEOUTS = ("net.netfilter.nf_conntrack_udp_timeout", "net.netfilter.nf_conntrack_udp_timeout_stream")
LONG = 3600
"""Seconds. After 30, the kernel's own time-out, a slow machine would begin other flows."""
_TUPLE = re.compile(r"src=(\S+) dst=(\S+) sport=(\d+) dport=(\d+)")
_ID = re.compile(r" id=(\d+)")


class End(NamedTuple):
    """An address as people write it, and a port."""

    address: str
    port: int


class Flow(NamedTuple):
    """A conntrack entry: the kernel's `id`, the client, the address that it called, and who should answer."""

    id: int
    client: End
    asked: End
    answers: End


class IpvsConnection(NamedTuple):
    """A connection of IPVS: the client, the virtual server's and the real server's address and port."""

    protocol: str
    client: End
    asked: End
    real_server: End
    state: str


def conntrack(namespace: Namespace, protocol: str = "udp") -> list[Flow]:
    """Return the conntrack entries of both families; `protocol` is udp, tcp or sctp."""
    lines = [
        line
        for family in ("ipv4", "ipv6")
        for line in namespace.run("conntrack", "-L", "-f", family, "-p", protocol, "-o", "id").splitlines()
    ]
    found = []
    for line in lines:
        (source, asked, sport, dport), (answers, _, answers_port, _) = _TUPLE.findall(line)
        (identity,) = _ID.findall(line)
        found.append(Flow(int(identity), _end(source, sport), _end(asked, dport), _end(answers, answers_port)))
    return found


@contextmanager
def long_tracked_udp(namespace: Namespace) -> Iterator[None]:
    """Let the conntrack entries of UDP last for `LONG`, whether datagrams come or not, until the end of a `with`."""
    before = {name: namespace.sysctl(name) for name in UDP_TIMEOUTS}
    for name in before:
        namespace.sysctl(name, LONG)
    try:
        yield
    finally:
        for name, seconds in before.items():
            namespace.sysctl(name, seconds)
        namespace.run("conntrack", "-F")


def ipvs_connections(namespace: Namespace) -> list[IpvsConnection]:
    """Return the rows of /proc/net/ip_vs_conn."""
    found = []
    for line in namespace.read("/proc/net/ip_vs_conn").splitlines()[1:]:
        protocol, *ends, state = line.split()[:8]
        client, asked, real_server = (_hexadecimal(*ends[at : at + 2]) for at in (0, 2, 4))
        found.append(IpvsConnection(protocol, client, asked, real_server, state))
    return found


def _end(address: str, port: str) -> End:
    return End(str(ipaddress.ip_address(address)), int(port))


def _hexadecimal(address: str, port: str) -> End:
    """Parse an end as /proc writes it, with an IPv4 address as one number."""
    written = ipaddress.ip_address(address.strip("[]")) if ":" in address else ipaddress.ip_address(int(address, 16))
    return End(str(written), int(port, 16))
