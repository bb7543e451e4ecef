"""The cluster of most tests: three nodes with a web pod on each, a visitor, and the two address families."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from tests.lab.cluster import Cluster, Node, Pod
from tests.lab.hosts import Host
from tests.lab.overlays import Overlay, address_of


class TwoAddresses(Protocol):
    """Has an address of each family: a host, or the addresses of a Service."""

    @property
    def ip(self) -> str:
        """The IPv4 address."""
        ...

    @property
    def ip6(self) -> str:
        """The IPv6 address."""
        ...


@dataclass(frozen=True)
class Family:
    """One address family, for tests."""

    name: str
    service_ip: str
    other_service_ip: str

    def of(self, host: TwoAddresses) -> str:
        """The address in this family."""
        return host.ip6 if self.name == "IPv6" else host.ip

    def at(self, address: str, port: int) -> str:
        """`address:port` as the IPVS table writes it."""
        return f"[{address}]:{port}" if self.name == "IPv6" else f"{address}:{port}"


FAMILIES = (
    Family("IPv4", "10.254.0.10", "10.254.0.11"),
    Family("IPv6", "fd00:10:254::10", "fd00:10:254::11"),
)


@dataclass(frozen=True)
class World:
    """The cluster with its pods: web-1 to web-3, one on each node, and a visitor on node1 without servers.

    A web pod serves HTTP on 8080, UDP on 5353 and HTTP over SCTP on 9090.
    """

    cluster: Cluster
    web: tuple[Pod, ...]
    visitor: Pod
    overlay: Overlay | None = None

    @classmethod
    def build(cls, overlay: Overlay | None = None) -> "World":
        """Build the cluster. Closing `cluster` removes it. With `overlay`, its tunnels carry the packets of pods."""
        cluster = Cluster()
        try:
            world = asyncio.run(cls._populate(cluster, overlay))
            if overlay is not None:
                overlay.lay(cluster)
        except BaseException:
            cluster.close()
            raise
        return world

    @classmethod
    async def _populate(cls, cluster: Cluster, overlay: Overlay | None) -> "World":
        web = [
            await node.pod(f"web-{number}", http=8080, udp=5353, sctp=9090)
            for number, node in enumerate(cluster.nodes.values(), 1)
        ]
        for pod in web:
            pod.is_shared = True
        return cls(cluster, tuple(web), await cluster.node("node1").pod("visitor"), overlay)

    def masquerade_of(self, node: Node) -> TwoAddresses:
        """The addresses that the kernel of a node gives what it masquerades to pods of other nodes."""
        return node if self.overlay is None else address_of(node)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes, by name."""
        return tuple(self.cluster.nodes.values())


@contextmanager
def routed(host: Host, destination: str | TwoAddresses, gateway: str | TwoAddresses) -> Iterator[None]:
    """Give a host a route to an address or network through `gateway`, for the length of a `with`.

    What has two addresses, on both sides, has a route in each family.
    """
    if isinstance(destination, str):
        ways = [(destination, str(gateway))]
    else:
        assert not isinstance(gateway, str)
        ways = [(destination.ip, gateway.ip), (destination.ip6, gateway.ip6)]
    for to, via in ways:
        host.run("ip", "route", "add", to, "via", via)
    try:
        yield
    finally:
        for to, via in ways:
            host.run("ip", "route", "del", to, "via", via)
