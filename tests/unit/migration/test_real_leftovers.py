"""What the real proxies left on a node is recognised whole: nothing of theirs is taken for somebody else's."""

import msgspec
import pytest

from kroute.checks.other_proxies import OTHER_PROXIES
from kroute.kernel.iptables.tools import parse_saved
from kroute.migration.leftovers import AllocatedNodePorts, NodeScan, allocated_node_ports, recognise
from kroute.migration.take_over import NODE_PORT_RANGE
from kroute.model.objects import Applied, Endpoint, EndpointSlice, ObjectMeta
from kroute.model.plan import Protocol, VirtualServerKey
from tests import builders, real_proxies
from tests.real_proxies import (
    KUBE_PROXY_IPTABLES,
    KUBE_PROXY_IPVS,
    KUBE_ROUTER,
    KUBE_ROUTER_FIREWALL,
    NODE_IPV4,
    NODE_IPV6,
)

NAMES = {KUBE_PROXY_IPVS: "kube-proxy", KUBE_PROXY_IPTABLES: "kube-proxy", KUBE_ROUTER: "kube-router"}
SINGLE_STACK = VirtualServerKey(Protocol.SCTP, NODE_IPV6, 32593)
"""The node port of an IPv6 Service in kube-router's table: no set names the port at any address."""

recorded = pytest.mark.parametrize("recording", NAMES)


def scan(recording: str) -> NodeScan:
    """Return what a scan finds on a node that the proxy has left."""
    addresses = real_proxies.link_addresses(recording)
    return NodeScan(
        tables={
            f"{family} legacy": parse_saved(real_proxies.text(recording, f"{tool}-save"))
            for family, tool in (("IPv4", "iptables"), ("IPv6", "ip6tables"))
        },
        sets=real_proxies.sets(recording),
        virtual_servers={
            key: {address for address, _ in server.real_servers}
            for key, server in real_proxies.virtual_servers(recording).items()
        },
        marks=(),
        link_addresses=addresses or None,
        elsewhere={NODE_IPV4, NODE_IPV6, "127.0.0.1", "::1"},
        policy_rules=(),
        table_routes=(),
        sysctls={},
        our_virtual_servers=frozenset(),
        our_links=frozenset(),
    )


def services() -> AllocatedNodePorts:
    return allocated_node_ports(real_proxies.objects())


@recorded
def test_every_virtual_server_set_and_address_of_theirs_is_recognised(recording: str) -> None:
    node = scan(recording)
    found = recognise(OTHER_PROXIES[NAMES[recording]], node, NODE_PORT_RANGE, services())
    assert found.others == ()
    assert set(found.to_adopt) == set(real_proxies.virtual_servers(recording))
    assert set(found.sets) == set(node.sets)
    assert set(found.addresses) == real_proxies.link_addresses(recording)
    assert not found.warnings


@recorded
def test_every_chain_of_theirs_is_recognised_and_only_the_kubelets_stays(recording: str) -> None:
    node = scan(recording)
    tables = recognise(OTHER_PROXIES[NAMES[recording]], node, NODE_PORT_RANGE).tables
    found = {(table.variant, chain) for table in tables for chain in table.chains}
    there = {
        (variant, it) for variant, of_variant in node.tables.items() for table in of_variant for it in table.chains
    }
    assert {chain for _, chain in there - found} <= {"KUBE-FIREWALL"}
    assert not [table.kept for table in tables if table.kept]


def test_kube_routers_firewall_is_recognised_whole_and_only_if_that_is_asked_for() -> None:
    node, proxy = scan(KUBE_ROUTER_FIREWALL), OTHER_PROXIES["kube-router"]
    assert recognise(proxy, node, NODE_PORT_RANGE).are_removed
    found = recognise(proxy.with_firewall(), node, NODE_PORT_RANGE)
    assert set(found.sets) == set(node.sets)
    for table in found.tables:
        [there] = node.tables[table.variant]
        assert set(table.chains) == set(there.chains) - {"INPUT", "FORWARD", "OUTPUT"}
        assert [rule.partition(" ")[0] for rule in table.rules] == ["INPUT", "FORWARD", "OUTPUT"]
        assert table.kept == ()
    assert len(found.tables) == 2
    assert OTHER_PROXIES["kube-proxy"].with_firewall() == OTHER_PROXIES["kube-proxy"]


def test_a_node_port_of_kube_routers_at_another_address_of_the_node_is_its_by_the_set() -> None:
    """Only the port of a Service without IPv4 is in doubt: the set names no node port at an IPv6 address."""
    found = recognise(OTHER_PROXIES["kube-router"], scan(KUBE_ROUTER), NODE_PORT_RANGE)
    assert found.in_doubt == (SINGLE_STACK,)
    at_ipv6 = {key for key in found.to_adopt if key.address == NODE_IPV6}
    assert len(at_ipv6) == 7


def test_what_is_in_doubt_is_left_alone_with_a_word_while_the_services_cannot_be_read() -> None:
    found = recognise(OTHER_PROXIES["kube-router"], scan(KUBE_ROUTER), NODE_PORT_RANGE)
    [warning] = msgspec.structs.replace(found, no_services="no API server").warnings
    assert f"1 virtual servers on node ports are left alone ({SINGLE_STACK})" in warning
    assert SINGLE_STACK in found.others


@pytest.mark.parametrize(
    ("port", "real_servers", "is_theirs"),
    [
        (32593, {"fd00:10:101::13:fb15", "2001:db8::9"}, True),  # one endpoint is the Service's, one has gone
        (32593, {"fd00:10:100::13:5175"}, True),  # the endpoint terminates
        (32593, set(), True),
        (32593, {"2001:db8::9"}, False),  # it forwards to somebody else's servers
        (32594, {"fd00:10:101::13:fb15"}, False),  # no Service has this node port
        (443, {"fd00:10:101::13:fb15"}, False),  # outside the range of node ports
    ],
)
def test_a_node_port_in_doubt_is_theirs_if_its_service_has_the_real_servers(
    port: int, real_servers: set[str], is_theirs: bool
) -> None:
    key = VirtualServerKey(Protocol.SCTP, NODE_IPV6, port)
    node = msgspec.structs.replace(scan(KUBE_ROUTER), virtual_servers={key: real_servers})
    found = recognise(OTHER_PROXIES["kube-router"], node, NODE_PORT_RANGE, services())
    assert (found.to_adopt, found.others) == (((key,), ()) if is_theirs else ((), (key,)))


def test_objects_that_make_no_sense_allocate_nothing() -> None:
    faulty = EndpointSlice(
        ObjectMeta(name="web-1", namespace="default", labels={"kubernetes.io/service-name": "web"}),
        "IPv4",
        endpoints=(Endpoint(()), Endpoint(("not an address",)), Endpoint(("2001:DB8::1",))),
    )
    ports = (builders.port(80, node_port=30080), builders.port(81, protocol="ICMP", node_port=30081))
    changes = [Applied(builders.service("web", ports=ports)), Applied(faulty)]
    assert allocated_node_ports(changes) == {(Protocol.TCP, 30080): {"2001:db8::1"}}
