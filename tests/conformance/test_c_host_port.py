"""C15: a CNI plugin's rules for host ports (portmap's) work beside kroute's, and kroute leaves them alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from tests.conformance.conftest import AddPod
from tests.conformance.expect import served_by
from tests.conformance.table import row
from tests.lab.allocation import Allocator
from tests.lab.cluster import Node, Pod
from tests.lab.deployment import Deployment
from tests.lab.firewall import tool
from tests.lab.objects import endpoint_slices, service
from tests.lab.world import Family, World

HOST_PORT = 54321
SECOND = {"IPv4": "192.168.123.77", "IPv6": "fd00:192:168:123::77"}
PREFIX = {"IPv4": "24", "IPv6": "64"}
CHAIN = "CNI-HOSTPORT-DNAT"


class HostPort(NamedTuple):
    """One `hostPort` of a pod with its `hostIP`."""

    protocol: str
    host_ip: str
    pod: Pod
    target: int


@contextmanager
def portmap(node: Node, family: Family, *host_ports: HostPort) -> Iterator[str]:
    """Write the rules that portmap writes; yield the command that edits their tables."""
    command = tool(family.name)
    local = ("-m", "addrtype", "--dst-type", "LOCAL", "-j", CHAIN)
    node.run(command, "-t", "nat", "-N", CHAIN)
    for hook in ("PREROUTING", "OUTPUT"):
        node.run(command, "-t", "nat", "-A", hook, *local)
    for protocol, host_ip, pod, target in host_ports:
        match = ("-p", protocol, "-d", host_ip, "--dport", str(HOST_PORT))
        to = ("--to-destination", family.at(family.of(pod), target))
        node.run(command, "-t", "nat", "-A", CHAIN, *match, "-j", "DNAT", *to)
    try:
        yield command
    finally:
        for hook in ("PREROUTING", "OUTPUT"):
            node.run(command, "-t", "nat", "-D", hook, *local)
        node.run(command, "-t", "nat", "-F", CHAIN)
        node.run(command, "-t", "nat", "-X", CHAIN)


@row("C15")
async def test_c15_no_conflict_between_pods_with_same_hostport_but_different_hostip_and_protocol(
    world: World, kroute: Deployment, family: Family, free: Allocator, add_pod: AddPod
) -> None:
    node1, client = world.nodes[0], world.cluster.client
    ips, node_port, second_ip = free.cluster_ips(), free.node_port(), SECOND[family.name]
    host_ports = (
        HostPort("tcp", family.of(node1), world.web[0], 8080),
        HostPort("tcp", second_ip, await add_pod("node1", "by-host-ip", http=8080), 8080),
        HostPort("udp", family.of(node1), await add_pod("node1", "by-protocol", udp=5353), 5353),
    )
    node1.namespace.ip(f"address add {second_ip}/{PREFIX[family.name]} dev eth0")
    try:
        with portmap(node1, family, *host_ports) as command:
            before = node1.run(command, "-t", "nat", "-S", CHAIN)
            kroute.apply(
                service("beside", *ips, node_ports={"TCP": node_port}), *endpoint_slices("beside", world.web[:1])
            )
            for caller in (client, world.nodes[1], node1):
                await served_by(caller, second_ip, node_port, {"web-1"})
                for protocol, host_ip, pod, _ in host_ports:
                    await served_by(caller, host_ip, HOST_PORT, {pod.name}, "http" if protocol == "tcp" else "udp")
            assert node1.run(command, "-t", "nat", "-S", CHAIN) == before
    finally:
        node1.namespace.ip(f"address del {second_ip}/{PREFIX[family.name]} dev eth0")
