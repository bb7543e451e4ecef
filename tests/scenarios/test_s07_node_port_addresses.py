"""S7: node ports are served only on the addresses that `--nodeport-addresses` names."""

from collections.abc import Iterator

import pytest

from tests.lab.allocation import Addresses
from tests.lab.cluster import Node
from tests.lab.deployment import Deployment
from tests.lab.objects import endpoint_slices, service
from tests.lab.topology import NODES, WIRE, WIRE6
from tests.lab.world import FAMILIES, Family, World

CLUSTER_IPS = tuple(family.service_ip for family in FAMILIES)
NODE_PORT = 30080
NODE1 = NODES["node1"]
WIRED = Addresses(NODE1.ip, NODE1.ip6)
BRIDGE = Addresses(NODE1.pod_ip(1), NODE1.pod_ip6(1))
FURTHER = Addresses("198.51.100.7", "2001:db8:7::7")
LOOPBACK = Addresses("127.0.0.1", "::1")

CASES = {
    "unset": ((), (WIRED, BRIDGE, FURTHER)),
    "the wire and loopback": ((f"--nodeport-addresses={WIRE},{WIRE6},127.0.0.0/8,::1/128",), (WIRED, LOOPBACK)),
    "the pods' bridge": (("--nodeport-addresses=172.20.0.0/16,fd00:172:20::/48",), (BRIDGE,)),
    "primary": (("--nodeport-addresses=primary",), (WIRED,)),
}
"""The flags, and the addresses on which they serve node ports."""


@pytest.fixture
def node1(world: World) -> Iterator[Node]:
    """node1 with an address of each family that is on no network named by a flag."""
    node = world.cluster.node("node1")
    node.namespace.ip(
        f"link add further0 type dummy\nlink set further0 up\n"
        f"address add {FURTHER.ip}/32 dev further0\naddress add {FURTHER.ip6}/128 dev further0 nodad\n"
    )
    yield node
    node.run("ip", "link", "del", "further0")


@pytest.mark.parametrize(("flags", "expected"), CASES.values(), ids=CASES)
async def test_s7_node_ports_are_on_just_these_addresses(
    flags: tuple[str, ...], expected: tuple[Addresses, ...], node1: Node, world: World, deployment: Deployment
) -> None:
    """If the flag were ignored, all four cases would have the same virtual servers; each pair of cases differs."""
    deployment.apply(
        service("web", *CLUSTER_IPS, node_ports={"TCP": NODE_PORT}), *endpoint_slices("web", world.web[:1])
    )
    await deployment.start(*flags, nodes=("node1",))
    wanted = {f"TCP {family.at(family.service_ip, 8080)}" for family in FAMILIES}
    wanted |= {f"TCP {family.at(family.of(addresses), NODE_PORT)}" for family in FAMILIES for addresses in expected}
    assert set(node1.ipvs()) == wanted


FOREIGN_PORT = 30999


async def test_node_ports_are_served_in_networks_that_are_excluded_from_a_clean_up(
    node1: Node, world: World, deployment: Deployment, family: Family
) -> None:
    """The exclusion protects the virtual servers of others there, also without a ledger; Services are served."""
    deployment.apply(
        service("web", *CLUSTER_IPS, node_ports={"TCP": NODE_PORT}), *endpoint_slices("web", world.web[:1])
    )
    excluded = f"--exclude-cidrs={WIRE},{WIRE6},{family.service_ip}"
    await deployment.start(excluded, nodes=("node1",))
    assert (await world.visitor.http(family.of(WIRED), NODE_PORT)).host == "web-1"
    await deployment.agents["node1"].kill()
    for address in (family.of(WIRED), family.service_ip):
        node1.run("ipvsadm", "-A", "-t", family.at(address, FOREIGN_PORT), "-s", "wlc")
    ledger = node1.state_dir / "ledger"
    former = ledger.read_bytes()
    ledger.unlink()
    await deployment.start(excluded, nodes=("node1",))
    await deployment.cleanup()
    foreign = {f"TCP {family.at(address, FOREIGN_PORT)}" for address in (family.of(WIRED), family.service_ip)}
    left = set(node1.ipvs())
    node1.run("ipvsadm", "-C")
    ledger.write_bytes(former)  # only the first ledger knows the sysctls as they were before kroute
    assert await (await node1.kroute("cleanup")).wait() == 0
    assert foreign <= left


async def test_s7_packets_to_another_address_are_refused(
    node1: Node, world: World, deployment: Deployment, family: Family
) -> None:
    """Without the flag every one of these calls would be answered."""
    deployment.apply(
        service("web", *CLUSTER_IPS, node_ports={"TCP": NODE_PORT}), *endpoint_slices("web", world.web[:1])
    )
    await deployment.start(*CASES["the pods' bridge"][0], nodes=("node1",))
    assert (await world.visitor.http(family.of(BRIDGE), NODE_PORT)).host == "web-1"
    for caller in (world.cluster.client, world.visitor, node1):
        with pytest.raises(ConnectionRefusedError):
            await caller.http(family.of(WIRED), NODE_PORT)


async def test_s7_nothing_listens_on_the_port_itself(world: World, deployment: Deployment) -> None:
    """A listener would take the port from its user, and answer on addresses that are not served."""
    deployment.apply(
        service("web", *CLUSTER_IPS, node_ports={"TCP": NODE_PORT}), *endpoint_slices("web", world.web[:1])
    )
    node1 = world.cluster.node("node1")
    await deployment.start(nodes=("node1",))
    assert (await world.cluster.client.http(node1.ip, NODE_PORT)).host == "web-1"
    await node1.serve(http=NODE_PORT, udp=NODE_PORT)
    await node1.stop_serving()
