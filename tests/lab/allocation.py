"""Allocate addresses and node ports for Services as an API server does, each only once.

So tests that share a running kroute do not meet each other's leftovers, such as a virtual server that drains.
"""

import itertools
from typing import NamedTuple


class Addresses(NamedTuple):
    """An address of each family."""

    ip: str
    ip6: str


class Allocator:
    """Allocates Service addresses and node ports that no other test has."""

    def __init__(self) -> None:
        self._numbers = itertools.count(256)
        self._node_ports = itertools.count(30000)

    def cluster_ips(self) -> Addresses:
        """ClusterIPs from the Service ranges of the lab."""
        number = next(self._numbers)
        return Addresses(f"10.254.{number // 256}.{number % 256}", f"fd00:10:254::{number:x}")

    def external_ips(self) -> Addresses:
        """Addresses from the documentation networks (RFC 5737, RFC 3849), which nobody in the lab has."""
        number = next(self._numbers) - 255
        return Addresses(f"203.0.113.{number % 254 + 1}", f"2001:db8::{number:x}")

    def node_port(self) -> int:
        """A port from 30000 to 32767."""
        return next(self._node_ports)
