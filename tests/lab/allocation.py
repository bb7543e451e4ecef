"""What an API server allocates for Services: addresses and node ports, each handed out once.

Tests that share a running kroute do not meet each other's leftovers this way, such as a virtual server that drains.
"""

import itertools
from typing import NamedTuple


class Addresses(NamedTuple):
    """An address of each family."""

    ip: str
    ip6: str


class Allocator:
    """Hands out Service addresses and node ports that nobody else has."""

    def __init__(self) -> None:
        self._numbers = itertools.count(256)
        self._node_ports = itertools.count(30000)

    def cluster_ips(self) -> Addresses:
        """ClusterIPs out of the Service ranges of the lab."""
        number = next(self._numbers)
        return Addresses(f"10.254.{number // 256}.{number % 256}", f"fd00:10:254::{number:x}")

    def external_ips(self) -> Addresses:
        """Addresses out of the networks for documentation (RFC 5737, RFC 3849), which nobody in the lab has."""
        number = next(self._numbers) - 255
        return Addresses(f"203.0.113.{number % 254 + 1}", f"2001:db8::{number:x}")

    def node_port(self) -> int:
        """A port out of 30000 to 32767."""
        return next(self._node_ports)
