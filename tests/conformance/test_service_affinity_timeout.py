"""The end of session affinity in service.go: after its timeout a client may get another pod.

The kernel keeps a client's affinity for as long as it has an entry for one of its connections, however short the
timeout is. It deletes a connection that was reset after 10 s (`ip_vs_proto_tcp.c`, state CLOSE), and one that was
closed after two minutes. So each call ends with a reset, and the tests read the kernel's entries to learn when to call
again.
"""

from tests.conformance.expect import WITHIN
from tests.conformance.table import row
from tests.lab.allocation import Allocator
from tests.lab.cluster import Node
from tests.lab.deployment import Deployment, eventually
from tests.lab.flows import IpvsConnection, ipvs_connections
from tests.lab.hosts import Host
from tests.lab.objects import endpoint_slices, service
from tests.lab.world import FAMILIES, World

TIMEOUT = 12
"""Seconds; longer than the kernel keeps the entry of a connection that was reset."""

FORGOTTEN_WITHIN = 120.0
"""Seconds that the end-to-end tests allow (125 for all of it)."""

STICKY = {"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": TIMEOUT}}}


async def ask(client: Host, address: str, port: int) -> str:
    """Make a call that ends with a reset; return who answered."""
    connection = await client.connect(address, port)
    try:
        return (await connection.ask()).host
    finally:
        await connection.reset()


def remembered(node: Node, port: int) -> list[IpvsConnection]:
    """Return a node's entries for connections and affinities at a virtual server's port."""
    return [it for it in ipvs_connections(node.namespace) if it.asked.port == port]


async def affinity_ends(client: Host, node: Node, addresses: list[str], port: int) -> None:
    """Expect one pod at each address until `node` has deleted the client's entries, then another: `rr` goes on."""

    async def all_stick() -> dict[str, str]:
        answered = {address: {await ask(client, address, port) for _ in range(5)} for address in addresses}
        assert all(len(pods) == 1 for pods in answered.values())
        return {address: pods.pop() for address, pods in answered.items()}

    def is_forgotten() -> None:
        assert not remembered(node, port)

    first = await eventually(all_stick, WITHIN)
    await eventually(is_forgotten, FORGOTTEN_WITHIN)
    for address in addresses:
        assert await ask(client, address, port) != first[address]


@row("service 2235")
async def test_service_2235_session_affinity_timeout_for_type_clusterip(
    world: World, kroute: Deployment, free: Allocator
) -> None:
    ips, port = free.cluster_ips(), free.node_port()
    kroute.apply(service("sticky", *ips, ports={"TCP": port}, **STICKY), *endpoint_slices("sticky", world.web))
    await affinity_ends(world.visitor, world.nodes[0], list(ips), port)


@row("service 2272")
async def test_service_2272_session_affinity_timeout_for_nodeport_service(
    world: World, kroute: Deployment, free: Allocator
) -> None:
    port, node2 = free.node_port(), world.nodes[1]
    kroute.apply(
        service("sticky", *free.cluster_ips(), node_ports={"TCP": port}, **STICKY),
        *endpoint_slices("sticky", world.web),
    )
    await affinity_ends(world.cluster.client, node2, [family.of(node2) for family in FAMILIES], port)
