"""With whom a node speaks BGP, and how, by the settings and the annotations of Nodes."""

import base64
from typing import Any

import pytest
import yaml

from kroute.model.addresses import Family
from kroute.model.node_facts import EXCLUSION_LABEL
from kroute.model.objects import Applied, Deleted, Listed, Node, NodeSpec, ObjectKey, Taint
from kroute.model.speaker import Bfd, Peer, Secret, SpeakerPlan
from kroute.planning.bgp.catalog import SpeakerCatalog
from tests.builders import NODE, NODE_IPV4, NODE_IPV6, facts, node, settings

ROUTER = "192.168.123.1"
CORDON = "node.kubernetes.io/unschedulable"


def read_yaml(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise ValueError("line 1 is not YAML") from None


def a_node(name: str = NODE, ipv4: str = NODE_IPV4, taint: str = "") -> Node:
    made = node(
        ("InternalIP", ipv4),
        ("InternalIP", NODE_IPV6 if name == NODE else f"fd00:123::{ipv4.rpartition('.')[2]}"),
        name=name,
    )
    return Node(made.metadata, NodeSpec(taints=(Taint(taint),) if taint else None), made.status)


def planned(*nodes: Node, on: Any = None, **given: Any) -> tuple[SpeakerPlan, list[str]]:
    catalog = SpeakerCatalog(settings(announce=True, **given), read_yaml)
    catalog.take([*map(Applied, nodes), Listed(Node)])
    plan, problems = catalog.plan(on or facts())
    return plan, [problem.message for problem in problems]


def own(annotations: dict[str, str], **given: Any) -> tuple[SpeakerPlan, list[str]]:
    prefixed = {f"kube-router.io/{word}": value for word, value in annotations.items()}
    return planned(node(annotations=prefixed), **given)


def test_routers_of_the_settings_are_peers_of_every_node() -> None:
    plan, problems = planned(
        peer_router_ips=(ROUTER, "fd00:123::1"), peer_router_asns=(65000, 65001), peer_router_ports=(0, 1790)
    )
    assert problems == []
    assert plan.peers == (
        Peer(address=ROUTER, asn=65000, local=NODE_IPV4),
        Peer(address="fd00:123::1", asn=65001, local=NODE_IPV6, port=1790),
    )
    assert (plan.asn, plan.router_id, plan.families) == (64512, NODE_IPV4, (Family.IPV4, Family.IPV6))


def test_a_router_of_a_family_that_the_node_lacks_is_left_out() -> None:
    plan, _ = planned(on=facts(ipv6=None), peer_router_ips=("fd00:123::1",), peer_router_asns=(65001,))
    assert plan.peers == ()


def test_a_node_without_ipv4_has_a_router_id_that_stays() -> None:
    first, again = (planned(on=facts(ipv4=None))[0].router_id for _ in range(2))
    assert first == again != ""
    assert planned(on=facts(ipv4=None), router_id="10.9.9.9")[0].router_id == "10.9.9.9"


def test_peers_of_the_annotation_have_all_its_fields() -> None:
    text = yaml.safe_dump(
        [
            {
                "remoteip": ROUTER,
                "remoteasn": 65000,
                "localip": "192.168.123.251",
                "port": 1790,
                "password": base64.b64encode(b"secret\n").decode(),
                "bfd": {"enabled": True, "port": 3785, "detection_multiplier": 2, "desired_min_tx_interval": 500},
                "multihop": 3,
                "ttlsecurity": True,
            }
        ]
    )
    plan, problems = own({"peers": text})
    assert problems == []
    assert plan.peers == (
        Peer(
            address=ROUTER,
            asn=65000,
            local="192.168.123.251",
            port=1790,
            ttl=3,
            has_ttl_security=True,
            bfd=Bfd(1000, 500, 2),
            password=Secret("secret"),
        ),
    )


def test_the_older_annotations_are_lists_side_by_side() -> None:
    password = base64.b64encode(b"one").decode()
    plan, problems = own(
        {
            "peer.ips": f"{ROUTER},192.168.123.2",
            "peer.asns": "65000,65001",
            "peer.ports": "1790,",
            "peer.passwords": f"{password},",
            "peer.localips": ",192.168.123.251",
        }
    )
    assert problems == []
    assert plan.peers == (
        Peer(address=ROUTER, asn=65000, local=NODE_IPV4, port=1790, password=Secret("one")),
        Peer(address="192.168.123.2", asn=65001, local="192.168.123.251"),
    )


def test_a_peer_of_the_annotation_replaces_that_of_the_settings() -> None:
    text = yaml.safe_dump([{"remoteip": ROUTER, "remoteasn": 65009}])
    plan, _ = own({"peers": text}, peer_router_ips=(ROUTER,), peer_router_asns=(65000,), bfd=True, bfd_interval=0.3)
    assert [(peer.asn, peer.bfd) for peer in plan.peers] == [(65009, Bfd(300, 300, 3))]


GOOD = {"remoteip": ROUTER, "remoteasn": 65000}


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ({"remoteip": "router"}, "is not an address of a router"),
        ({"remoteip": "fe80::1"}, "is not an address of a router"),
        ({"remoteasn": 0}, "is not an AS number"),
        ({"remoteasn": 23456}, "is not an AS number"),
        ({"remoteasn": "x"}, "remoteasn"),
        ({"remoteasn": None}, "remoteasn"),
        ({"port": 70000}, "out of range"),
        ({"localip": "fd00::1"}, "localip must be one of its family"),
        ({"password": "no base64"}, "password is not base64"),
        ({"password": base64.b64encode(b'qu"ote').decode()}, "password cannot be used"),
        ({"password": base64.b64encode(b"x" * 81).decode()}, "password cannot be used"),
        ({"bfd": {"detection_multiplier": 256}}, "bfd is out of range"),
        ({"pasword": "x"}, "pasword"),
    ],
)
def test_a_bad_peer_is_a_problem_and_costs_nothing_else(bad: dict[str, Any], why: str) -> None:
    peers = [{**GOOD, "remoteip": "192.168.123.9", **bad}, GOOD]
    plan, problems = own({"peers": yaml.safe_dump(peers)})
    assert [peer.address for peer in plan.peers] == [ROUTER]
    assert len(problems) == 1
    assert why in problems[0]
    assert "peer 1 is left out" in problems[0]


@pytest.mark.parametrize("text", ["[", "{}", "x", "&a [*a, *a]"])
def test_an_annotation_that_is_no_list_is_a_problem(text: str) -> None:
    plan, problems = own({"peers": text, "node.asn": "65005"})
    assert (plan.peers, plan.asn, len(problems) > 0) == ((), 65005, True)


def test_lists_of_different_lengths_are_a_problem() -> None:
    plan, problems = own({"peer.ips": f"{ROUTER},192.168.123.2", "peer.asns": "65000"})
    assert plan.peers == ()
    assert "peer.ips has 2 elements, and this list 1" in problems[0]


def test_no_text_shows_a_password() -> None:
    password = base64.b64encode(b"tell nobody").decode()
    plan, problems = own({"peers": yaml.safe_dump([{**GOOD, "password": password}, {**GOOD, "password": "tell me"}])})
    assert plan.peers[0].password == Secret("tell nobody")
    for text in (repr(plan), str(plan), f"{plan.peers}", *problems):
        assert "tell" not in text


def test_the_node_says_what_its_routes_carry() -> None:
    plan, problems = own(
        {
            "node.bgp.communities": "4294967041, 64512:100, no-peer, 64512:1:2, 99999:1, foo",
            "node.bgp.customimportreject": "10.0.0.0/16, 192.168.1.5/24, x",
            "path-prepend.as": "65000",
            "path-prepend.repeat-n": "3",
        }
    )
    assert plan.communities == ((64512, 1, 2), (64512, 100), (65535, 65281), (65535, 65284))
    assert plan.rejected == ("10.0.0.0/16", "192.168.1.0/24")
    assert plan.prepended == (65000, 65000, 65000)
    assert len(problems) == 3


def test_a_path_is_not_prepended_by_half() -> None:
    plan, [problem] = own({"path-prepend.as": "65000"})
    assert plan.prepended == ()
    assert "need each other" in problem


THREE = (a_node(), a_node("node2", "192.168.123.2"), a_node("node3", "192.168.123.3"))


def test_a_full_mesh_is_with_all_nodes_of_the_same_as() -> None:
    other = node(("InternalIP", "192.168.123.4"), name="node4", annotations={"kroute.io/node.asn": "65004"})
    plan, _ = planned(*THREE, other, nodes_full_mesh=True)
    assert [(peer.address, peer.asn, peer.is_node) for peer in plan.peers] == [
        ("192.168.123.2", 64512, True),
        ("192.168.123.3", 64512, True),
    ]
    assert planned(*THREE)[0].peers == ()


def with_roles(me: str) -> SpeakerPlan:
    roles = {
        "a": "rr.server=42",
        "b": "rr.client=42",
        "c": "rr.client=42",
        "d": "rr.client=7",
        "e": "rr.server=7",
        "f": "",
    }
    nodes = []
    for number, (name, role) in enumerate(roles.items(), 1):
        word, _, value = role.partition("=")
        annotations = {f"kube-router.io/{word}": value} if word else None
        nodes.append(node(("InternalIP", f"192.168.123.{number}"), name=name, annotations=annotations))
    number = list(roles).index(me) + 1
    return planned(*nodes, on=facts(f"192.168.123.{number}", None, name=me))[0]


def test_clients_speak_with_the_servers_of_their_cluster_and_servers_with_servers() -> None:
    speaks = {me: {"abcdef"[int(peer.address[-1]) - 1] for peer in with_roles(me).peers} for me in "abcdef"}
    assert speaks == {"a": {"b", "c", "e"}, "b": {"a"}, "c": {"a"}, "d": {"e"}, "e": {"a", "d"}, "f": set()}
    server = with_roles("a")
    assert (server.cluster_id, with_roles("b").cluster_id) == ("0.0.0.42", "")
    assert {peer.address: peer.is_client for peer in server.peers} == {
        "192.168.123.2": True,
        "192.168.123.3": True,
        "192.168.123.5": False,
    }


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (a_node(taint=CORDON), "it is cordoned"),
        (a_node(taint="node.kubernetes.io/not-ready"), "it is not ready"),
        (a_node(taint="ToBeDeletedByClusterAutoscaler"), "it is about to be removed"),
        (node(labels={EXCLUSION_LABEL: ""}), f"it has the label {EXCLUSION_LABEL}"),
        (a_node(taint="node.kubernetes.io/unreachable"), ""),
        (a_node(), ""),
    ],
)
def test_a_node_that_leaves_announces_nothing(changed: Node, why: str) -> None:
    assert planned(changed, *THREE[1:])[0].withdraws == why


def test_a_node_that_is_only_cordoned_knows_which_others_stay() -> None:
    cordoned = [a_node(it.key.name, taint=CORDON) for it in THREE[:2]]
    assert planned(*cordoned, THREE[2])[0].staying == {THREE[2].key.name}
    assert planned(node(labels={EXCLUSION_LABEL: ""}), *THREE[1:])[0].staying is None
    assert planned(*THREE)[0].staying is None


def test_the_last_node_goes_on_announcing() -> None:
    gone = [a_node(it.key.name, taint=CORDON) for it in THREE]
    assert planned(*gone)[0].withdraws == ""
    assert planned(gone[0])[0].withdraws == ""


def test_only_what_the_plan_reads_of_a_node_makes_another_one_due() -> None:
    catalog = SpeakerCatalog(settings(announce=True), read_yaml)
    catalog.take([Applied(it) for it in THREE])
    catalog.has_changed = False
    catalog.take(
        [Applied(node(*[("InternalIP", "192.168.123.2"), ("InternalIP", "fd00:123::2")], name="node2", ready=True))]
    )
    assert not catalog.has_changed
    catalog.take([Deleted(Node, ObjectKey("", "node2"))])
    assert catalog.has_changed
    assert not catalog.is_ready


def test_networks_of_pods_are_announced_if_asked_for_and_only_those_of_the_cluster() -> None:
    cidrs = ("10.244.1.0/24", "fd00:244:0:1::/64", "0.0.0.0/0", "10.245.1.0/24", "nonsense")
    ranges = ("10.244.0.0/16", "fd00:244::/48")
    plan, problems = planned(on=facts(pod_cidrs=cidrs), advertise_pod_cidr=True, cluster_cidrs=ranges)
    assert (plan.pod_networks, plan.pod_ranges, problems) == (cidrs[:2], ranges, [])
    assert planned(on=facts(pod_cidrs=cidrs, ipv6=None), advertise_pod_cidr=True, cluster_cidrs=ranges)[
        0
    ].pod_networks == ("10.244.1.0/24",)
    assert planned(on=facts(pod_cidrs=cidrs), cluster_cidrs=ranges)[0].pod_networks == ()
