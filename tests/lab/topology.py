"""Names and addresses of the lab's cluster: three nodes on one wire, with a routed pod network."""

from dataclasses import dataclass

SERVICE_RANGE = "10.254.0.0/16"
SERVICE_RANGE6 = "fd00:10:254::/112"
POD_RANGE = "172.20.0.0/16"
POD_RANGE6 = "fd00:172:20::/48"
WIRE = "192.168.123.0/24"
WIRE6 = "fd00:192:168:123::/64"


@dataclass(frozen=True)
class Place:
    """A pair of addresses on the wire and, for a node, the number in its pod networks."""

    last: int
    pods: int | None = None

    @property
    def ip(self) -> str:
        """The IPv4 address on the wire."""
        return f"192.168.123.{self.last}"

    @property
    def ip6(self) -> str:
        """The IPv6 address on the wire."""
        return f"fd00:192:168:123::{self.last}"

    def pod_ip(self, index: int) -> str:
        """Return the IPv4 address of the node's pod number `index`. Number 1 is the node itself."""
        return f"172.20.{self.pods}.{index}"

    def pod_ip6(self, index: int) -> str:
        """Return the IPv6 address of the node's pod number `index`."""
        return f"fd00:172:20:{self.pods}::{index}"

    @property
    def pod_networks(self) -> tuple[str, str]:
        """The node's pod networks, IPv4 and IPv6."""
        return f"{self.pod_ip(0)}/24", f"fd00:172:20:{self.pods}::/64"


NODES = {"node1": Place(250, 166), "node2": Place(248, 104), "node3": Place(249, 135)}
CLIENT = Place(50)
CONTROL_PLANE = Place(230)
