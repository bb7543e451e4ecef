"""networking 147 to 280 and 471: pods, nodes and endpoints reach a Service by its ClusterIP and its node ports."""

from collections.abc import Iterable

import pytest

from tests.conformance.conftest import AddPod, Serve
from tests.conformance.expect import served_by
from tests.conformance.table import row
from tests.lab.allocation import Allocator
from tests.lab.deployment import Deployment
from tests.lab.firewall import tool
from tests.lab.hosts import Host
from tests.lab.objects import Object, endpoint_slices, service
from tests.lab.world import Family, World

WEB = {"web-1", "web-2", "web-3"}
PORTS = {"TCP": 80, "UDP": 90, "SCTP": 95}
TARGETS = {"TCP": 8080, "UDP": 5353, "SCTP": 9090}
PROTOCOLS = {"http": "TCP", "udp": "UDP", "sctp": "SCTP"}


class Granular:
    """A Service with a port and a node port of each protocol, in both families."""

    def __init__(self, free: Allocator, world: World, name: str = "granular") -> None:
        self.ips = free.cluster_ips()
        self.node_ports = {protocol: free.node_port() for protocol in PORTS}
        self.service = service(name, *self.ips, ports=PORTS, node_ports=self.node_ports)
        self._world = world

    def behind(self, hosts: Iterable[Host], ports: dict[str, int] = TARGETS) -> list[Object]:
        """Return the Service's slices with these endpoints."""
        return endpoint_slices(self.service["metadata"]["name"], hosts, ports)

    async def serves(self, clients: Iterable[Host], protocol: str, names: set[str]) -> None:
        """Expect that all of `names`, and no others, answer each client at the ClusterIPs and at every node port."""
        for client in clients:
            await served_by(client, self.ips, PORTS[PROTOCOLS[protocol]], names, protocol)
            for node in self._world.nodes:
                await served_by(client, node, self.node_ports[PROTOCOLS[protocol]], names, protocol)


@pytest.fixture
def granular(world: World, kroute: Deployment, free: Allocator) -> Granular:
    """The Service, with one pod on each node as its endpoints."""
    made = Granular(free, world)
    kroute.apply(made.service, *made.behind(world.web))
    return made


@row("networking 147", "networking 162", "networking 177")
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_networking_147_function_for_pod_service(protocol: str, world: World, granular: Granular) -> None:
    await granular.serves([world.visitor], protocol, WEB)


@row("networking 191", "networking 205", "networking 219")
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_networking_191_function_for_node_service(protocol: str, world: World, granular: Granular) -> None:
    await granular.serves(world.nodes, protocol, WEB)


@row("networking 234", "networking 248", "networking 263")
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_networking_234_function_for_endpoint_service(protocol: str, world: World, granular: Granular) -> None:
    """Every endpoint reaches every endpoint, itself included."""
    await granular.serves(world.web, protocol, WEB)


@row("networking 280")
async def test_networking_280_function_for_multiple_endpoint_services_with_same_selector(
    world: World, kroute: Deployment, granular: Granular, free: Allocator
) -> None:
    second = Granular(free, world, "second")
    kroute.apply(second.service, *second.behind(world.web))
    for each in (granular, second):
        await each.serves([world.web[0]], "http", WEB)
    kroute.delete(second.service, *second.behind(world.web))
    for protocol in PROTOCOLS:
        await granular.serves([world.web[0]], protocol, WEB)


@row("networking 471")
@pytest.mark.parametrize("protocol", ["http", "udp"])
async def test_networking_471_function_for_service_endpoints_using_host_network(
    protocol: str, world: World, kroute: Deployment, granular: Granular, host_network: Serve
) -> None:
    """The callers are a pod and the endpoints, which are the nodes themselves: an endpoint reaches itself too."""
    targets = {"TCP": 8083, "UDP": 8081}
    hosts = [await host_network(node.name, http=targets["TCP"], udp=targets["UDP"]) for node in world.nodes]
    kroute.apply(*granular.behind(hosts, targets))
    await granular.serves([world.visitor, *hosts], protocol, {host.name for host in hosts})


@row("networking 635")
async def test_networking_635_create_a_pod_with_sctp_host_port(
    world: World, kroute: Deployment, granular: Granular, family: Family, add_pod: AddPod
) -> None:
    """A CNI plugin's rule for an SCTP hostPort stays and works while kroute serves SCTP Services on the node."""
    node1 = world.nodes[0]
    pod = await add_pod("node1", "sctp-pod", sctp=9090)
    command = tool(family.name)
    to = family.at(family.of(pod), 9090)
    rule = ("PREROUTING", "-d", family.of(node1), "-p", "sctp", "--dport", "5060", "-j", "DNAT", "--to-destination", to)
    node1.run(command, "-t", "nat", "-A", *rule)
    try:
        await served_by(world.cluster.client, family.of(node1), 5060, {pod.name}, "sctp")
        await granular.serves([world.visitor], "sctp", WEB)
        node1.run(command, "-t", "nat", "-C", *rule)
        assert not any(":5060" in key for key in node1.ipvs())
    finally:
        node1.run(command, "-t", "nat", "-D", *rule)
