"""node1 with VIPs, sets, rules and virtual servers that tests write by hand, without kroute; and its clients."""

from typing import NamedTuple

import pytest

from kroute.firewall.iptables.address_sets import set_name
from kroute.firewall.iptables.filter_rules import filter_rules
from kroute.firewall.iptables.nat_rules import masquerade_rules
from kroute.kernel.ipset import AddEntry, Ipset
from kroute.kernel.iptables.xtables import TableRules, Xtables
from kroute.model.addresses import Family, family_of
from kroute.model.node_facts import NodeFacts
from kroute.model.plan import AddressSet
from kroute.settings import Settings
from tests.lab.cluster import Cluster, Node, Pod
from tests.lab.hosts import Host
from tests.lab.topology import NODES, POD_RANGE, POD_RANGE6

SSH, HTTP, NODE_PORT = 22, 80, 30080
TCP, UDP = 6, 17
VIPS = {Family.IPV4: "10.254.0.10", Family.IPV6: "fd00:10:254::10"}
TOOLS = {Family.IPV4: "iptables-legacy", Family.IPV6: "ip6tables-legacy"}
AT_ONCE = 0.9
"""Seconds. A client whose SYN is dropped sends it again after 1 s."""

LOCAL_MODES: dict[str, dict[str, object]] = {
    "ClusterCIDR": {"cluster_cidrs": (POD_RANGE, POD_RANGE6)},
    "NodeCIDR": {},
    "BridgeInterface": {"pod_bridge_interface": "cbr0"},
    "InterfaceNamePrefix": {"pod_interface_name_prefix": "cb"},
}
SETTINGS = [Settings("node1", detect_local_mode=mode, **values) for mode, values in LOCAL_MODES.items()]


class Place(NamedTuple):
    """node1 has a VIP of each family, a pod, and servers at port 22 of all its addresses; web is a pod of node2."""

    cluster: Cluster
    node: Node
    pod: Pod
    web: Pod

    @property
    def client(self) -> Host:
        """A client outside, which reaches the VIPs through node1."""
        return self.cluster.client

    @property
    def everybody(self) -> tuple[Host, ...]:
        """A pod, a client outside, and a process of the node itself."""
        return self.pod, self.client, self.node


class Kernel:
    """What kroute's own classes write into node1."""

    def __init__(self, node: Node, ipset: Ipset, xtables: dict[Family, Xtables]) -> None:
        self.node = node
        self.ipset = ipset
        self.xtables = xtables

    def rules(self, settings: Settings, family: Family, **facts: str) -> list[TableRules]:
        """Return the rules of both tables; node1 has its own pod networks."""
        node = NodeFacts("node1", pod_cidrs=NODES["node1"].pod_networks, **facts)
        nat = masquerade_rules(settings, family, node, random_fully=True)
        return [nat, filter_rules(settings, family)]

    async def write_rules(self, settings: Settings = SETTINGS[0], **facts: str) -> None:
        """Write the rules, and the set of pod networks."""
        for network in settings.cluster_cidrs or NODES["node1"].pod_networks:
            await self.put(AddressSet.POD_NETWORK, network)
        for family, xtables in self.xtables.items():
            for rules in self.rules(settings, family, **facts):
                await xtables.ensure(rules)

    async def put(self, which: AddressSet, *element: str | int) -> None:
        """Add an entry to the set of its family."""
        assert await self.ipset.write([AddEntry(set_name(family_of(str(element[0])), which), element)]) == []

    async def put_port(self, which: AddressSet, address: str, port: int) -> None:
        """Add a TCP and a UDP port to a set."""
        for protocol in (TCP, UDP):
            await self.put(which, address, protocol, port)

    def serve(self, address: str, port: int, real_server: str) -> None:
        """Create TCP and UDP virtual servers with one real server at port 8080."""
        where, to = (f"[{it}]" if ":" in it else it for it in (address, real_server))
        lines = [(f"-A -{it} {where}:{port} -s rr", f"-a -{it} {where}:{port} -r {to}:8080 -m") for it in "tu"]
        self.node.run("ipvsadm", "-R", stdin="\n".join(line for pair in lines for line in pair))


def of(host: Host, family: Family) -> str:
    return host.ip if family is Family.IPV4 else host.ip6


async def is_refused(host: Host, address: str, port: int) -> None:
    for ask in (host.http, host.udp):
        with pytest.raises(ConnectionRefusedError):
            await ask(address, port, timeout=AT_ONCE)


async def answers(host: Host, address: str, port: int) -> set[str]:
    """Return the addresses under which the server has seen the host."""
    return {(await ask(address, port)).peer for ask in (host.http, host.udp)}
