"""What is known of the node, and from where."""

import pytest

from kroute.planning.node_facts import NodeFacts, node_facts
from kroute.planning.objects import ZONE_LABEL, Node, ObjectMeta
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


def test_the_settings_win_family_by_family() -> None:
    seen = node(("InternalIP", "10.0.0.1"), ("InternalIP", "fd00::1"))
    assert node_facts(settings(node_ips=("10.9.9.9",)), seen) == facts("10.9.9.9", "fd00::1")


def test_without_any_other_source_the_fallback_counts() -> None:
    assert node_facts(settings(), None, ("10.7.7.7", "fd00::7")) == facts("10.7.7.7", "fd00::7")
    assert node_facts(settings(), node(("Hostname", NODE)), ("10.7.7.7",)) == facts("10.7.7.7", None)


def test_the_fallback_does_not_give_a_node_a_family_that_it_does_not_name() -> None:
    assert node_facts(settings(), node(("InternalIP", "10.0.0.1")), ("10.7.7.7", "fd00::7")) == facts("10.0.0.1", None)
    assert node_facts(settings(node_ips=("10.9.9.9",)), None, ("fd00::7",)) == facts("10.9.9.9", None)


def test_a_bare_node_object_and_nothing_else_gives_nothing() -> None:
    assert node_facts(settings(), Node(ObjectMeta(NODE))) == NodeFacts(NODE)


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
