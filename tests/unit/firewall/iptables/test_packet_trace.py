"""A packet is traced through the rules' own text, and gets the verdict that they give."""

import pytest

from kroute.firewall.iptables.packet_trace import trace_packet
from kroute.firewall.iptables.rules import filter_rules, masquerade_rules, output_rules
from kroute.firewall.packet_trace import Ending, Packet, TraceResult
from kroute.firewall.sets import Sets
from kroute.model.addresses import Family
from kroute.model.node_facts import NodeFacts
from kroute.model.plan import AddressSet
from kroute.settings import Exemption, Settings

SETTINGS = Settings(node_name="node1", cluster_cidrs=("172.20.0.0/16", "fd00:20::/48"))
NODE = NodeFacts("node1", ipv4="192.168.1.5")
PORT = ("10.96.0.1", 6, 80)
PODS = {AddressSet.POD_NETWORK: {("172.20.0.0/16",)}}
SERVED: Sets = {AddressSet.VIP: {("10.96.0.1",)}, AddressSet.CLUSTER_IP: {PORT}, **PODS}
EMPTY: Sets = {AddressSet.VIP: {("10.96.0.1",)}, AddressSet.NO_ENDPOINT: {PORT}, **PODS}
NO_LOCAL: Sets = {AddressSet.EXTERNAL_LOCAL: {PORT}, AddressSet.NO_LOCAL: {PORT}, **PODS}
RESTRICTED: Sets = {
    AddressSet.EXTERNAL: {PORT},
    AddressSet.RESTRICTED: {PORT},
    AddressSet.SOURCE_RANGE: {(*PORT, "203.0.113.0/24")},
}
POD, OUTSIDE, ALLOWED = "172.20.1.2", "192.0.2.1", "203.0.113.9"


def packet(source: str = OUTSIDE, *, protocol: int = 6, port: int = 80, interface: str = "eth0") -> Packet:
    return Packet(protocol, source, "10.96.0.1", port, interface)


def after_input(sets: Sets, one: Packet, settings: Settings = SETTINGS) -> TraceResult:
    return trace_packet(filter_rules(settings, Family.IPV4), "INPUT", one, sets)


@pytest.mark.parametrize(
    ("sets", "one", "fate", "detail"),
    [
        pytest.param(SERVED, packet(), Ending.NONE, "", id="a served port"),
        pytest.param(SERVED, packet(port=22), Ending.REFUSED, "tcp-reset", id="a host port on a VIP"),
        pytest.param(
            SERVED, packet(protocol=17), Ending.REFUSED, "icmp-port-unreachable", id="another protocol on a VIP"
        ),
        pytest.param(SERVED, packet()._replace(destination="10.9.9.9"), Ending.NONE, "", id="no VIP"),
        pytest.param(EMPTY, packet(), Ending.REFUSED, "tcp-reset", id="no endpoint"),
        pytest.param(NO_LOCAL, packet(), Ending.REFUSED, "tcp-reset", id="no local endpoint, from outside"),
        pytest.param(NO_LOCAL, packet(POD), Ending.NONE, "", id="no local endpoint, from a pod"),
        pytest.param(RESTRICTED, packet(), Ending.DROPPED, "", id="not in the source ranges"),
        pytest.param(RESTRICTED, packet(ALLOWED), Ending.NONE, "", id="in the source ranges"),
    ],
)
def test_the_filter(sets: Sets, one: Packet, fate: Ending, detail: str) -> None:
    outcome = after_input(sets, one)
    assert (outcome.ending, outcome.detail) == (fate, detail)


def test_why_is_the_rules_own_comment() -> None:
    assert after_input(SERVED, packet()).why == "a port that a Service serves"
    assert after_input(EMPTY, packet()).met == ("nothing serves this port", "refused at once")


@pytest.mark.parametrize(
    ("interface", "fate"),
    [("cbr0", Ending.NONE), ("eth0", Ending.REFUSED), ("", Ending.REFUSED)],
    ids=["pod", "wire", "own process"],
)
def test_pods_are_told_by_their_bridge(interface: str, fate: Ending) -> None:
    settings = Settings(node_name="node1", detect_local_mode="BridgeInterface", pod_bridge_interface="cbr0")
    assert after_input(NO_LOCAL, packet(interface=interface), settings).ending is fate


def test_pods_are_told_by_the_names_of_their_interfaces() -> None:
    settings = Settings(node_name="node1", detect_local_mode="InterfaceNamePrefix", pod_interface_name_prefix="veth")
    assert after_input(NO_LOCAL, packet(interface="veth12"), settings).ending is Ending.NONE
    assert after_input(NO_LOCAL, packet(interface="eth0"), settings).ending is Ending.REFUSED


def test_this_nodes_own_calls_are_held_to_the_source_ranges() -> None:
    own = packet("192.168.1.5", interface="")
    assert trace_packet(output_rules(Family.IPV4), "OUTPUT", own, RESTRICTED).ending is Ending.DROPPED
    assert trace_packet(output_rules(Family.IPV4), "OUTPUT", own, SERVED).ending is Ending.NONE


@pytest.mark.parametrize(
    ("sets", "source", "settings", "marked"),
    [
        pytest.param(SERVED, OUTSIDE, SETTINGS, True, id="a ClusterIP from outside"),
        pytest.param(SERVED, POD, SETTINGS, False, id="a ClusterIP from a pod"),
        pytest.param(SERVED, POD, Settings(node_name="n", masquerade_all=True), True, id="masquerade-all"),
        pytest.param(SERVED, OUTSIDE, Settings(node_name="n"), False, id="pods not known"),
        pytest.param({AddressSet.EXTERNAL: {PORT}}, POD, SETTINGS, True, id="policy Cluster"),
        pytest.param({AddressSet.EXTERNAL_LOCAL: {PORT}}, OUTSIDE, SETTINGS, False, id="policy Local"),
        pytest.param(
            {AddressSet.EXTERNAL: {PORT}},
            OUTSIDE,
            Settings(node_name="n", masquerade_exemptions=(Exemption("192.0.2.0/24", "10.96.0.0/16"),)),
            False,
            id="exempt",
        ),
    ],
)
def test_the_mark_and_what_it_does(sets: Sets, source: str, settings: Settings, marked: bool) -> None:
    rules = masquerade_rules(settings, Family.IPV4, NODE)
    mark = trace_packet(rules, "PREROUTING", packet(source), sets).mark
    assert bool(mark) is marked
    leaving = packet(source)._replace(destination="172.20.2.7", port=8080, mark=mark)
    assert trace_packet(rules, "POSTROUTING", leaving, sets).ending == (Ending.TRANSLATED if marked else Ending.NONE)


def test_a_pod_that_reaches_itself_is_masqueraded() -> None:
    rules = masquerade_rules(SETTINGS, Family.IPV4, NODE)
    sets = {AddressSet.HAIRPIN: {(POD, 6, 8080, POD)}}
    itself = Packet(6, POD, POD, 8080, "cbr0")
    assert trace_packet(rules, "POSTROUTING", itself, sets).ending is Ending.TRANSLATED
    assert trace_packet(rules, "POSTROUTING", itself._replace(destination="172.20.1.3"), sets).ending is Ending.NONE


def test_the_source_may_be_the_nodes_address() -> None:
    rules = masquerade_rules(Settings(node_name="n", snat_source="node-ip"), Family.IPV4, NODE)
    outcome = trace_packet(rules, "POSTROUTING", packet()._replace(mark=0x4000), {})
    assert (outcome.ending, outcome.detail, outcome.mark) == (Ending.TRANSLATED, "192.168.1.5", 0)


def test_ipv6_is_refused_by_icmpv6() -> None:
    sets = {AddressSet.VIP: {("fd00::1",)}}
    outcome = trace_packet(
        filter_rules(SETTINGS, Family.IPV6), "INPUT", Packet(17, "fd00:9::9", "fd00::1", 53, "eth0"), sets
    )
    assert outcome.detail == "icmp6-port-unreachable"
