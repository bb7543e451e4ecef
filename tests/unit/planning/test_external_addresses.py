"""No external address disturbs a node, a pod or another Service."""

from typing import Any

import msgspec
import pytest

from kroute.model.node_facts import NodeInterfaces
from kroute.model.objects import Applied, Deleted, Node, ObjectKey, Service
from kroute.model.plan import ServicePlan
from kroute.planning.catalog import Catalog
from tests.builders import (
    LISTED,
    NODE,
    NODE_IPV4,
    endpoint_slice,
    facts,
    node,
    port,
    service,
    settings,
)

OTHER, OTHER_PUBLIC, OTHER_IPV6 = "192.168.123.248", "203.0.113.2", "fd00:123::248"
PUBLIC = "203.0.113.1"
NODES = [
    node(("InternalIP", NODE_IPV4), ("InternalIP", "fd00:123::250"), ("ExternalIP", PUBLIC), ("Hostname", NODE)),
    node(("InternalIP", OTHER), ("InternalIP", OTHER_IPV6), ("ExternalIP", OTHER_PUBLIC), name="node2"),
]
OWN = frozenset({NODE_IPV4, "fd00:123::250", "172.20.166.1", "192.168.123.7"})
DUAL = ("10.96.0.10", "fd00:96::a")
PORTS = [port(80, "web"), port(22, "ssh"), port(6443, "api")]
SLICE = endpoint_slice("web-1", "10.244.1.5")
VICTIM = service("victim", "10.96.0.99")


def catalog(*items: Service | Node, **chosen: Any) -> Catalog:
    made = Catalog(settings(**chosen), facts())
    made.take([*map(Applied, [*NODES, SLICE, VICTIM, *items]), *LISTED])
    made.set_interfaces(NodeInterfaces(OWN, (NODE_IPV4,)))
    return made


def plan_of(made: Catalog, name: str = "web") -> ServicePlan:
    [plan] = [it for it in made.plan_marked() if it.key == ObjectKey("default", name)]
    return plan


def naming(address: str, field: str, **fields: Any) -> Service:
    """Return a Service that names the address in this field."""
    if field == "externalIP":
        return service("web", *DUAL, ports=PORTS, external_ips=(address,), **fields)
    return service("web", *DUAL, ports=PORTS, kind="LoadBalancer", balanced=[address], **fields)


def ports_on(plan: ServicePlan, address: str) -> list[int]:
    return [it.key.port for it in plan.virtual_servers if it.key.address == address]


HOSTILE: dict[str, tuple[str, list[int], bool, str | None]] = {
    # address: the ports served on it, whether it is bound, the reason of the Problem
    "a free one": ("198.51.100.7", [22, 80, 6443], True, None),
    "a free IPv6 one": ("2001:db8::7", [22, 80, 6443], True, None),
    "another node's InternalIP": (OTHER, [], False, "NodeAddress"),
    "another node's ExternalIP": (OTHER_PUBLIC, [], False, "NodeAddress"),
    "another node's IPv6": (OTHER_IPV6, [], False, "NodeAddress"),
    "another node's IPv6, written otherwise": ("FD00:123:0::248", [], False, "NodeAddress"),
    "this node's InternalIP": (NODE_IPV4, [80], False, "ProtectedPort"),
    "this node's IPv6": ("fd00:123::250", [80], False, "ProtectedPort"),
    "this node's ExternalIP, which no interface has": (PUBLIC, [80], False, "ProtectedPort"),
    "a further address of this node": ("192.168.123.7", [80], False, "ProtectedPort"),
    "this node's address in the pod network": ("172.20.166.1", [], False, "Invalid"),
    "a pod": ("172.20.104.2", [], False, "Invalid"),
    "another Service's ClusterIP": ("10.96.0.99", [], False, "Invalid"),
    "an address of the Service range": ("10.96.200.1", [], False, "Invalid"),
    "unspecified": ("0.0.0.0", [], False, "Invalid"),
    "of this network": ("0.1.2.3", [], False, "Invalid"),
    "unspecified IPv6": ("::", [], False, "Invalid"),
    "loopback": ("127.0.0.1", [], False, "Invalid"),
    "another loopback": ("127.8.9.10", [], False, "Invalid"),
    "IPv6 loopback": ("::1", [], False, "Invalid"),
    "the metadata service": ("169.254.169.254", [], False, "Invalid"),
    "IPv6 link-local": ("fe80::1", [], False, "Invalid"),
    "multicast": ("224.0.0.1", [], False, "Invalid"),
    "IPv6 multicast": ("ff02::1", [], False, "Invalid"),
    "the metadata service over IPv6": ("fd00:ec2::254", [], False, "Invalid"),
    "Azure's own": ("168.63.129.16", [], False, "Invalid"),
    "broadcast": ("255.255.255.255", [], False, "Invalid"),
    "reserved": ("240.0.0.1", [], False, "Invalid"),
    "IPv4 in IPv6": ("::ffff:192.168.123.248", [], False, "Invalid"),
    "an IPv4-compatible one": ("::192.168.123.248", [], False, "Invalid"),
    "no address": ("node2", [], False, "Invalid"),
    "a network": ("198.51.100.0/24", [], False, "Invalid"),
    "octal": ("0300.0250.0173.0370", [], False, "Invalid"),
    "with a zone": ("fe80::1%eth0", [], False, "Invalid"),
}


CHOSEN: dict[str, Any] = {"service_cidrs": ("10.96.0.0/16",), "cluster_cidrs": ("172.20.0.0/16",)}


@pytest.mark.parametrize("field", ["externalIP", "loadBalancerIP"])
@pytest.mark.parametrize(("address", "ports", "bound", "reason"), HOSTILE.values(), ids=list(HOSTILE))
def test_an_address_is_refused_or_kept_to_its_owner(
    address: str, ports: list[int], bound: bool, reason: str | None, field: str
) -> None:
    plan = plan_of(catalog(naming(address, field), **CHOSEN, external_ips_on_node_addresses=True))
    spelled = address.lower().replace("0::", ":", 1) if address.startswith("FD00") else address
    assert ports_on(plan, spelled) == ports
    assert (spelled in {vip.address for vip in plan.vips}) is bound
    expected = f"Invalid{field[0].upper()}{field[1:]}" if reason == "Invalid" else reason
    assert {problem.reason for problem in plan.problems} == ({expected} if expected else set())
    assert ports_on(plan, "10.96.0.10") == [22, 80, 6443]


@pytest.mark.parametrize("field", ["externalIP", "loadBalancerIP"])
@pytest.mark.parametrize("address", [NODE_IPV4, "fd00:123::250", "192.168.123.7", PUBLIC, OTHER, OTHER_PUBLIC])
def test_on_a_nodes_address_a_service_has_its_node_port_only(address: str, field: str) -> None:
    of = naming(address, field)
    ports = (port(80, "web", node_port=30080), port(8472, "vxlan", "UDP"))
    spec = msgspec.structs.replace(of.spec, type="LoadBalancer", ports=ports)
    plan = plan_of(catalog(msgspec.structs.replace(of, spec=spec), **CHOSEN))
    expected = [30080] if address in OWN else []
    assert ports_on(plan, address) == expected
    assert address not in {vip.address for vip in plan.vips}
    [problem] = plan.problems
    assert problem.reason == "NodeAddress"
    assert "--external-ips-on-node-addresses" in problem.message
    assert (NODE if address in {*OWN, PUBLIC} else "node2") in problem.message


ALLOWED: dict[str, tuple[dict[str, Any], str, bool]] = {
    "in the range": ({"external_ip_ranges": ("198.51.100.0/24",)}, "externalIP", True),
    "outside the range": ({"external_ip_ranges": ("203.0.113.0/24",)}, "externalIP", False),
    "by the other kind's range": ({"load_balancer_ip_ranges": ("203.0.113.0/24",)}, "externalIP", True),
    "a balancer's in the range": ({"load_balancer_ip_ranges": ("198.51.100.0/24",)}, "loadBalancerIP", True),
    "a balancer's outside the range": ({"load_balancer_ip_ranges": ("fd00::/8",)}, "loadBalancerIP", False),
    "strictly nothing": ({"strict_external_ips": True}, "externalIP", False),
    "strictly no balancer": ({"strict_external_ips": True}, "loadBalancerIP", False),
    "strictly the range": (
        {"strict_external_ips": True, "external_ip_ranges": ("198.51.100.7/32",)},
        "externalIP",
        True,
    ),
}


@pytest.mark.parametrize(("chosen", "field", "served"), ALLOWED.values(), ids=list(ALLOWED))
def test_ranges_allow(chosen: dict[str, Any], field: str, served: bool) -> None:
    plan = plan_of(catalog(naming("198.51.100.7", field), **chosen))
    assert bool(ports_on(plan, "198.51.100.7")) is served
    assert len(plan.problems) == (not served)


def test_other_protected_ports_may_be_named() -> None:
    made = catalog(naming(NODE_IPV4, "externalIP"), protected_ports=(), external_ips_on_node_addresses=True)
    plan = plan_of(made)
    assert ports_on(plan, NODE_IPV4) == [22, 80, 6443]


def test_skiplbips_leaves_the_load_balancers_addresses_alone() -> None:
    plan = plan_of(
        catalog(naming("198.51.100.7", "loadBalancerIP", annotations={"kroute.io/skip-load-balancer-ips": "on"}))
    )
    assert ports_on(plan, "198.51.100.7") == []


class TestOwnersThatChange:
    """Nodes and Services are added and deleted."""

    def test_an_address_that_becomes_a_nodes_is_given_up_and_comes_back(self) -> None:
        made = catalog(naming("198.51.100.7", "externalIP"))
        assert ports_on(plan_of(made), "198.51.100.7")
        newcomer = node(("InternalIP", "198.51.100.7"), name="node3")
        made.take([Applied(newcomer)])
        assert ports_on(plan_of(made), "198.51.100.7") == []
        made.take([Deleted(Node, newcomer.key)])
        assert ports_on(plan_of(made), "198.51.100.7") == [22, 80, 6443]

    def test_an_address_that_becomes_a_cluster_ip_is_given_up_and_comes_back(self) -> None:
        made = catalog(naming("198.51.100.7", "externalIP"))
        made.plan_marked()
        other = service("other", "198.51.100.7")
        made.take([Applied(other)])
        assert {plan.key.name: ports_on(plan, "198.51.100.7") for plan in made.plan_marked()} == {
            "web": [],
            "other": [80],
        }
        made.take([Deleted(Service, other.key)])
        assert ports_on(plan_of(made), "198.51.100.7") == [22, 80, 6443]

    def test_other_nodes_concern_only_services_that_name_their_addresses(self) -> None:
        made = catalog(naming("198.51.100.7", "externalIP"))
        made.plan_marked()
        made.take([Applied(node(("InternalIP", "192.168.123.249"), name="node3"))])
        assert [plan for plan in made.plan_marked() if isinstance(plan, ServicePlan)] == []

    def test_nothing_is_kept_of_what_went(self) -> None:
        made = catalog(naming("198.51.100.7", "externalIP"))
        made.take([Deleted(Service, key) for key in (ObjectKey("default", "web"), VICTIM.key)])
        made.take([Deleted(Node, item.key) for item in NODES])
        made.plan_marked()
        owners = made.owners
        indexes = (owners._nodes, owners._cluster_ips, owners._external_ips, owners._pod_networks)
        assert [(index._values, index._owners) for index in indexes] == [({}, {})] * 4
        assert owners._external_in_order == []
