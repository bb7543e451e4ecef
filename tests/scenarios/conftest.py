"""The cluster of the scenarios: three nodes, a pod on each, a client outside, and kroute where a scenario starts it."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lab.cluster import Cluster, Node, Pod
from tests.lab.deployment import Deployment
from tests.lab.hosts import Host


@dataclass(frozen=True)
class Family:
    """One address family, as the scenarios use it."""

    name: str
    service_ip: str
    other_service_ip: str

    def of(self, host: Host) -> str:
        """The host's address in this family."""
        return host.ip6 if self.name == "IPv6" else host.ip

    def at(self, address: str, port: int) -> str:
        """`address:port` as the IPVS table writes it."""
        return f"[{address}]:{port}" if self.name == "IPv6" else f"{address}:{port}"


FAMILIES = (
    Family("IPv4", "10.254.0.10", "10.254.0.11"),
    Family("IPv6", "fd00:10:254::10", "fd00:10:254::11"),
)


@pytest.fixture(params=FAMILIES, ids=lambda family: family.name)
def family(request: pytest.FixtureRequest) -> Family:
    return request.param


@dataclass(frozen=True)
class World:
    """The cluster with its pods: web-1 to web-3, one on each node, and a visitor on node1 that serves nothing."""

    cluster: Cluster
    web: tuple[Pod, ...]
    visitor: Pod

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(self.cluster.nodes.values())


@pytest.fixture(scope="session")
def world() -> Iterator[World]:
    cluster = Cluster()

    async def populate() -> World:
        web = [
            await node.pod(f"web-{number}", http=8080, udp=5353, sctp=9090)
            for number, node in enumerate(cluster.nodes.values(), 1)
        ]
        return World(cluster, tuple(web), await cluster.node("node1").pod("visitor"))

    try:
        yield asyncio.run(populate())
    finally:
        cluster.close()


@pytest.fixture
async def deployment(world: World, tmp_path: Path) -> AsyncIterator[Deployment]:
    """kroute, to be started by the test; afterwards every node is cleaned."""
    manifests = tmp_path / "manifests"
    manifests.mkdir()
    deployed = Deployment(world.cluster, manifests)
    yield deployed
    await deployed.cleanup()
