"""The facts of a node, and their sources."""

import pytest

from kroute.model.node_facts import NodeFacts, NodeInterfaces, node_facts
from kroute.model.objects import ZONE_LABEL, Node, ObjectMeta
from kroute.settings.text import parse_nodeport_addresses
from tests.builders import NODE, facts, node, settings


def test_the_node_object_gives_addresses_zone_and_pod_networks() -> None:
    seen = node(("InternalIP", "192.168.123.250"), labels={ZONE_LABEL: "z1"}, pod_cidrs=("172.20.166.0/24",))
    assert node_facts(settings(), seen) == NodeFacts(NODE, "192.168.123.250", None, "z1", ("172.20.166.0/24",))


ADDRESSES = {
    "first of each family": (
        [("InternalIP", "10.0.0.1"), ("InternalIP", "10.0.0.2"), ("InternalIP", "fd00::1"), ("InternalIP", "fd00::2")],
        ("10.0.0.1", "fd00::1"),
    ),
    "internal before external": ([("ExternalIP", "203.0.113.1"), ("InternalIP", "10.0.0.1")], ("10.0.0.1", None)),
    "external where there is no internal": (
        [("InternalIP", "10.0.0.1"), ("ExternalIP", "2001:db8::1")],
        ("10.0.0.1", "2001:db8::1"),
    ),
    "other types do not count": ([("Hostname", "node1"), ("InternalDNS", "10.0.0.9")], (None, None)),
    "text that is no address is passed over": (
        [("InternalIP", "node1"), ("InternalIP", "10.0.0.1")],
        ("10.0.0.1", None),
    ),
    "canonical text": ([("InternalIP", "FD00:0::1")], (None, "fd00::1")),
}


@pytest.mark.parametrize(("listed", "expected"), ADDRESSES.values(), ids=list(ADDRESSES))
def test_the_best_address_of_each_family_is_taken(
    listed: list[tuple[str, str]], expected: tuple[str | None, str | None]
) -> None:
    found = node_facts(settings(), node(*listed))
    assert (found.ipv4, found.ipv6) == expected


def found_of(facts: NodeFacts) -> tuple[str | None, str | None]:
    return facts.ipv4, facts.ipv6


def test_the_settings_win_family_by_family() -> None:
    seen = node(("InternalIP", "10.0.0.1"), ("InternalIP", "fd00::1"))
    assert found_of(node_facts(settings(node_ips=("10.9.9.9",)), seen)) == ("10.9.9.9", "fd00::1")


def by_default(*addresses: str) -> NodeInterfaces:
    return NodeInterfaces(default=addresses)


def test_without_any_other_source_the_default_addresses_count() -> None:
    assert found_of(node_facts(settings(), None, by_default("10.7.7.7", "fd00::7"))) == ("10.7.7.7", "fd00::7")
    assert found_of(node_facts(settings(), node(("Hostname", NODE)), by_default("10.7.7.7"))) == ("10.7.7.7", None)


def test_an_address_of_the_pods_bridge_takes_the_place_of_no_address_that_has_gone() -> None:
    seen = node(("InternalIP", "10.0.0.1"), ("InternalIP", "fd00::1"), pod_cidrs=("nonsense", "fd00:244::/64"))
    found = node_facts(settings(), seen, NodeInterfaces(frozenset({"10.0.0.1"}), ("10.0.0.1", "fd00:244::1")))
    assert found_of(found) == ("10.0.0.1", "fd00::1")


def test_default_addresses_do_not_give_a_node_a_family_that_it_does_not_name() -> None:
    seen = node(("InternalIP", "10.0.0.1"))
    assert found_of(node_facts(settings(), seen, by_default("10.7.7.7", "fd00::7"))) == ("10.0.0.1", None)
    assert found_of(node_facts(settings(node_ips=("10.9.9.9",)), None, by_default("fd00::7"))) == ("10.9.9.9", None)


STALE = {
    "the default address, where the named one has gone": (("10.0.0.2",), ("10.0.0.2",), "10.0.0.2"),
    "another named one that is there": (("10.0.0.3", "10.0.0.2"), ("10.0.0.2",), "10.0.0.3"),
    "the named one, where nothing of its family is there": (("fd00::1",), (), "10.0.0.1"),
    "the named one that is there, whatever the default is": (("10.0.0.1", "10.0.0.2"), ("10.0.0.2",), "10.0.0.1"),
}


@pytest.mark.parametrize(("own", "default", "expected"), STALE.values(), ids=list(STALE))
def test_of_the_named_addresses_those_on_the_node_count(
    own: tuple[str, ...], default: tuple[str, ...], expected: str
) -> None:
    seen = node(("InternalIP", "10.0.0.1"), ("InternalIP", "10.0.0.3"))
    assert node_facts(settings(), seen, NodeInterfaces(frozenset(own), default)).ipv4 == expected


def test_an_address_of_the_settings_counts_even_if_it_is_not_there() -> None:
    interfaces = NodeInterfaces(frozenset({"10.0.0.2"}), ("10.0.0.2",))
    assert node_facts(settings(node_ips=("10.9.9.9",)), None, interfaces).ipv4 == "10.9.9.9"


OWN = ("127.0.0.1", "192.168.123.250", "192.168.123.7", "10.0.0.1", "::1", "fe80::1", "fd00:123::250", "fd00:123::7")
NODE_PORTS: dict[str, tuple[str, list[str]]] = {
    "every address but loopback and link-local": (
        "",
        ["10.0.0.1", "192.168.123.250", "192.168.123.7", "fd00:123::250", "fd00:123::7"],
    ),
    "those in the networks": (
        "192.168.123.0/24,127.0.0.0/8,fd00:123::7/128",
        ["127.0.0.1", "192.168.123.250", "192.168.123.7", "fd00:123::7"],
    ),
    "the primary ones": ("primary", ["192.168.123.250", "fd00:123::250"]),
    "none": ("198.51.100.0/24", []),
}


@pytest.mark.parametrize(("written", "expected"), NODE_PORTS.values(), ids=list(NODE_PORTS))
def test_node_ports_are_served_on(written: str, expected: list[str]) -> None:
    chosen = settings(nodeport_addresses=parse_nodeport_addresses(written))
    seen = node(("InternalIP", "192.168.123.250"), ("InternalIP", "fd00:123::250"))
    assert list(node_facts(chosen, seen, NodeInterfaces(frozenset(OWN))).node_port_addresses) == sorted(expected)


def test_a_node_with_one_family_has_node_ports_in_that_family_only() -> None:
    seen = node(("InternalIP", "192.168.123.250"))
    found = node_facts(settings(), seen, NodeInterfaces(frozenset({"192.168.123.250", "fd00:123::7"})))
    assert found.node_port_addresses == ("192.168.123.250",)


def test_a_bare_node_object_and_nothing_else_gives_nothing() -> None:
    assert node_facts(settings(), Node(ObjectMeta(NODE))) == NodeFacts(NODE)


def test_the_link_of_a_pod_is_no_news_for_the_routes_to_pods() -> None:
    own, link_local = "192.168.123.250", "fe80::8419:1eff:fe5b:8d1"
    seen = [NodeInterfaces(frozenset(addresses)) for addresses in ({own}, {own, link_local})]
    before, after = (node_facts(settings(), None, interfaces) for interfaces in seen)
    assert before != after
    assert before.of_pod_network == after.of_pod_network


@pytest.mark.parametrize(
    ("known", "ipv4", "ipv6"),
    [
        (facts("10.0.0.1", "fd00::1"), True, True),
        (facts("10.0.0.1", None), True, False),
        (facts(None, "fd00::1"), False, True),
        (facts(None, None), True, True),
    ],
)
def test_a_node_serves_the_families_it_has_and_all_while_it_knows_none(
    known: NodeFacts, ipv4: bool, ipv6: bool
) -> None:
    assert (known.serves("10.96.0.1"), known.serves("fd00:96::1")) == (ipv4, ipv6)
