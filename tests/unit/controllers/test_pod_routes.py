"""What a node writes to connect its pods, on a fake kernel."""

import errno
import json
from collections.abc import Callable
from pathlib import Path
from socket import AF_INET, AF_INET6
from typing import Any

import msgspec
import pytest

from kroute.inspect.dry_run import dry_run
from kroute.kernel.net.monitor import LinkEvent
from kroute.kernel.pods.pod_routes import DeletePodRoute, MakeTunnel, PodRoute, SetPodRoute, Tunnel
from kroute.model.node_facts import NodeFacts, NodeInterfaces
from kroute.model.objects import Applied, Deleted, Listed, Node, ObjectKey
from kroute.model.plan import NodePlan
from kroute.planning.pod_routes import PodRouteCatalog
from kroute.reconcile.resync_schedule import MOST_LOOKS
from tests.builders import node as a_node
from tests.fakes.node_kernel import FakeNodeKernel
from tests.unit.fake_node import NODE_IPV4, NODE_IPV6, FakeNode

CLUSTER = ("10.244.0.0/16", "fd00:244::/48")
OWN = ("10.244.3.0/24", "fd00:244:0:3::/64")
NEAR, NEAR6 = "192.168.123.12", "fd00:123::12"
FAR, FAR6 = "192.168.7.13", "fd00:7::13"
TUNNEL, TUNNEL6 = Tunnel(NODE_IPV4, FAR), Tunnel(NODE_IPV6, FAR6)
ROUTES = {
    "10.244.1.0/24": PodRoute(NODE_IPV4, gateway=NEAR),
    "fd00:244:0:1::/64": PodRoute(NODE_IPV6, gateway=NEAR6),
    "10.244.2.0/24": PodRoute(NODE_IPV4, link=TUNNEL.link),
    "fd00:244:0:2::/64": PodRoute(NODE_IPV6, link=TUNNEL6.link),
    f"{FAR}/32": PodRoute(link=TUNNEL.link, is_for_pods=True),
    f"{FAR6}/128": PodRoute(link=TUNNEL6.link, is_for_pods=True),
}


def other(number: int, *addresses: str, name: str = "") -> Node:
    networks = (f"10.244.{number}.0/24", f"fd00:244:0:{number}::/64")
    return a_node(*(("InternalIP", it) for it in addresses), name=name or f"node{number}", pod_cidrs=networks)


NEAR_NODE, FAR_NODE = other(1, NEAR, NEAR6), other(2, FAR, FAR6)
OWN_NODE = a_node(("InternalIP", NODE_IPV4), ("InternalIP", NODE_IPV6), name="node3", pod_cidrs=OWN)


def own_plan(generation: int = 1, own: tuple[str, ...] = OWN) -> NodePlan:
    links = frozenset({("eth0", f"{NODE_IPV4}/24"), ("eth0", f"{NODE_IPV6}/64")})
    interfaces = NodeInterfaces(frozenset({NODE_IPV4, NODE_IPV6}), (NODE_IPV4, NODE_IPV6), on_links=links)
    facts = NodeFacts("node3", NODE_IPV4, NODE_IPV6, pod_cidrs=own, interfaces=interfaces)
    return NodePlan(facts.without_needs, generation, whole=facts)


def new_node(directory: Path, **settings: Any) -> FakeNode:
    cni = directory / "cni"
    return FakeNode(directory, pod_network=True, cluster_cidrs=CLUSTER, cni_directory=cni, **settings)


async def started(node: FakeNode, *nodes: Node, plan: NodePlan | None = None) -> FakeNode:
    nodes = nodes or (NEAR_NODE, FAR_NODE)
    node.pod_routes.take_changes([Applied(OWN_NODE), *map(Applied, nodes), Listed(Node)])
    return await node.start(plan or own_plan())


def cni_of(node: FakeNode) -> Any:
    return json.loads(node.settings.cni_file.read_text())


async def test_routes_tunnels_and_the_configuration_of_cni_are_written(tmp_path: Path) -> None:
    node = await started(new_node(tmp_path))
    assert node.kernel.pod_routes == ROUTES
    assert node.kernel.pod_tunnels == {TUNNEL.link: TUNNEL, TUNNEL6.link: TUNNEL6}
    assert node.kernel.pod_rules == set(OWN)
    bridge, portmap = cni_of(node)["plugins"]
    assert bridge["mtu"] == 1500 - 40
    assert bridge["ipam"]["ranges"] == [[{"subnet": network}] for network in OWN]
    assert bridge["ipam"]["routes"] == [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]
    assert portmap["type"] == "portmap"
    assert node.node_problems == []


async def test_a_restart_writes_nothing(tmp_path: Path) -> None:
    node = await started(new_node(tmp_path))
    written = node.settings.cni_file.stat()  # of its times that of the last access may change
    kept = {"pod_network": True, "cluster_cidrs": CLUSTER, "cni_directory": tmp_path / "cni"}
    again = await started(node.restarted(**kept))
    assert again.clients.pod_network.written == []
    found = again.settings.cni_file.stat()
    assert (found.st_ino, found.st_mtime_ns) == (written.st_ino, written.st_mtime_ns)
    await again.resync()
    assert again.clients.pod_network.written == []
    assert again.pod_routes.statistics().repairs == 0


async def test_before_all_nodes_are_known_what_an_earlier_run_wrote_stays(tmp_path: Path) -> None:
    await started(new_node(tmp_path))
    node = new_node(tmp_path, kernel=(await started(new_node(tmp_path))).kernel)
    node.pod_routes.take_changes([Applied(NEAR_NODE)])
    await node.start(own_plan())
    assert node.kernel.pod_routes == ROUTES
    node.pod_routes.take_changes([Listed(Node)])
    await node.settle()
    assert set(node.kernel.pod_routes) == {"10.244.1.0/24", "fd00:244:0:1::/64"}
    assert node.kernel.pod_tunnels == {}


async def test_a_node_that_goes_takes_its_routes_and_tunnels_along_and_no_others(tmp_path: Path) -> None:
    node = await started(new_node(tmp_path))
    node.clients.pod_network.written.clear()
    node.pod_routes.take_changes([Deleted(Node, ObjectKey("", "node2"))])
    await node.settle()
    assert set(node.kernel.pod_routes) == {"10.244.1.0/24", "fd00:244:0:1::/64"}
    assert node.kernel.pod_tunnels == {}
    assert len(node.clients.pod_network.written) == 6


async def test_a_node_that_moves_into_the_subnet_has_its_routes_replaced(tmp_path: Path) -> None:
    node = await started(new_node(tmp_path))
    node.clients.pod_network.written.clear()
    node.pod_routes.take_changes([Applied(other(2, "192.168.123.22", FAR6))])
    await node.settle()
    moved = PodRoute(NODE_IPV4, gateway="192.168.123.22")
    assert node.clients.pod_network.written[0] == SetPodRoute("10.244.2.0/24", moved, replaces=True)
    assert node.kernel.pod_tunnels == {TUNNEL6.link: TUNNEL6}


@pytest.mark.parametrize("at_once", [True, False])
async def test_nodes_that_exchange_their_networks_have_each_others_routes(tmp_path: Path, *, at_once: bool) -> None:
    third = other(4, "192.168.123.14", "fd00:123::14")
    node = await started(new_node(tmp_path), NEAR_NODE, FAR_NODE, third)
    exchanged = other(1, "192.168.123.14", "fd00:123::14", name="node4"), other(4, NEAR, NEAR6, name="node1")
    for after in exchanged:
        node.pod_routes.take_changes([Applied(after)])
        if not at_once:
            await node.settle()
    await node.settle()
    assert node.kernel.pod_routes == ROUTES | {
        "10.244.1.0/24": PodRoute(NODE_IPV4, gateway="192.168.123.14"),
        "fd00:244:0:1::/64": PodRoute(NODE_IPV6, gateway="fd00:123::14"),
        "10.244.4.0/24": PodRoute(NODE_IPV4, gateway=NEAR),
        "fd00:244:0:4::/64": PodRoute(NODE_IPV6, gateway=NEAR6),
    }
    assert node.pod_routes.problems == []


async def test_what_another_program_deletes_is_repaired(tmp_path: Path) -> None:
    node = await started(new_node(tmp_path))
    node.clients.pod_network.lose(TUNNEL.link)
    del node.kernel.pod_routes["10.244.1.0/24"]
    await node.resync()
    assert node.kernel.pod_routes == ROUTES
    assert node.pod_routes.statistics().repairs == 4


async def test_a_link_that_comes_back_has_its_routes_at_once(tmp_path: Path) -> None:
    """The kernel deletes routes with the link that they go by, and says nothing of them."""
    node = await started(new_node(tmp_path))
    del node.kernel.pod_routes["10.244.1.0/24"]
    node.kernel.emit(LinkEvent(False, "veth1", 9, True))
    await node.settle()
    assert node.kernel.pod_routes != ROUTES, "links of pods come and go all the time"
    node.kernel.emit(LinkEvent(False, "eth0", 2, True))
    await node.settle()
    assert node.kernel.pod_routes == ROUTES


async def test_while_the_nodes_address_is_on_no_interface_nothing_changes(tmp_path: Path) -> None:
    node = await started(new_node(tmp_path))
    plan = own_plan(2)
    assert plan.whole is not None
    links = frozenset({("eth0", f"{NODE_IPV4}/24")})
    without = NodeInterfaces(frozenset({NODE_IPV4}), (NODE_IPV4,), on_links=links)
    await node.apply(msgspec.structs.replace(plan, whole=msgspec.structs.replace(plan.whole, interfaces=without)))
    assert node.kernel.pod_routes == ROUTES
    node.clients.pod_network.written.clear()
    await node.apply(own_plan(3))
    assert node.clients.pod_network.written == []


async def test_tunnels_that_this_agent_makes_and_deletes_are_no_reason_to_read_all_of_them(tmp_path: Path) -> None:
    node = await started(new_node(tmp_path))
    resyncs = node.pod_routes.statistics().resyncs
    node.kernel.emit(LinkEvent(False, TUNNEL.link, 7, False))
    await node.settle()
    node.kernel.emit(LinkEvent(False, TUNNEL.link, 7, True))
    node.pod_routes.take_changes([Deleted(Node, FAR_NODE.key)])
    await node.settle()
    node.kernel.emit(LinkEvent(True, TUNNEL.link, 7, False))
    await node.settle()
    assert node.pod_routes.statistics().resyncs == resyncs


async def test_a_tunnel_that_another_program_brings_down_is_repaired_at_once(tmp_path: Path) -> None:
    node = await started(new_node(tmp_path))
    node.kernel.emit(LinkEvent(False, TUNNEL.link, 7, True))
    await node.settle()
    node.kernel.pod_tunnels[TUNNEL.link] = TUNNEL._replace(is_up=False)
    node.kernel.emit(LinkEvent(False, TUNNEL.link, 7, False))
    await node.settle()
    assert node.kernel.pod_tunnels[TUNNEL.link] == TUNNEL


async def test_where_reading_all_is_too_much_a_digest_finds_what_others_change(tmp_path: Path) -> None:
    node = await started(new_node(tmp_path, resync_budget=0.0))
    resyncs = node.pod_routes.statistics().resyncs
    node.pod_routes.take_changes([Applied(other(5, "192.168.123.15", "fd00:123::15"))])
    for _ in range(MOST_LOOKS + 1):
        await node.resync()
    assert node.pod_routes.statistics().resyncs == resyncs
    del node.kernel.pod_routes["10.244.2.0/24"]
    for _ in range(MOST_LOOKS + 1):
        await node.resync()
    assert node.kernel.pod_routes.items() > ROUTES.items()
    node.settings.cni_file.unlink()
    await node.resync()
    assert node.settings.cni_file.exists()


async def test_a_refused_route_stops_no_other_and_is_tried_again(tmp_path: Path) -> None:
    node = new_node(tmp_path)
    node.kernel.refuse(of_network("10.244.1.0/24"), errno.ENETUNREACH)
    await started(node)
    assert set(node.kernel.pod_routes) == ROUTES.keys() - {"10.244.1.0/24"}
    assert node.settings.cni_file.exists()
    assert [(problem.reason, problem.subject) for problem in node.pod_routes.problems] == [
        ("PodRouteRefused", "10.244.1.0/24")
    ]
    node.kernel.accept_all()
    await node.resync()
    assert node.kernel.pod_routes == ROUTES
    assert node.pod_routes.problems == []


async def test_what_was_refused_is_forgotten_when_its_node_goes(tmp_path: Path) -> None:
    node = new_node(tmp_path)
    node.kernel.refuse(of_network("10.244.1.0/24"), errno.ENETUNREACH)
    await started(node)
    node.pod_routes.take_changes([Deleted(Node, NEAR_NODE.key)])
    await node.settle()
    assert node.pod_routes.problems == []


def of_network(network: str) -> Callable[[object], bool]:
    return lambda change: isinstance(change, SetPodRoute | DeletePodRoute) and change.network == network


async def test_a_tunnel_that_is_refused_keeps_back_its_routes_alone(tmp_path: Path) -> None:
    node = new_node(tmp_path)
    node.kernel.refuse(lambda change: isinstance(change, MakeTunnel) and change.tunnel == TUNNEL, errno.EEXIST)
    await started(node)
    assert set(node.kernel.pod_routes) == ROUTES.keys() - {"10.244.2.0/24", f"{FAR}/32"}
    node.kernel.accept_all()
    await node.resync()
    assert node.kernel.pod_routes == ROUTES


async def test_tunnels_in_udp_have_a_port_of_each_family(tmp_path: Path) -> None:
    node = await started(new_node(tmp_path, overlay="full", overlay_encap="fou"))
    assert {tunnel.port for tunnel in node.kernel.pod_tunnels.values()} == {5555}
    assert len(node.kernel.pod_tunnels) == 4
    assert node.kernel.pod_ports == {(AF_INET, 5555), (AF_INET6, 5555)}
    assert cni_of(node)["plugins"][0]["mtu"] == 1500 - 40 - 12


async def test_a_kernel_without_udp_tunnels_is_said_and_pods_of_the_same_subnet_are_connected(tmp_path: Path) -> None:
    node = new_node(tmp_path, overlay_encap="fou")
    node.clients.pod_network.lacks_udp = True
    await started(node)
    assert set(node.kernel.pod_routes) == {"10.244.1.0/24", "fd00:244:0:1::/64"}
    [(_, problem)] = node.node_problems
    assert (problem.reason, problem.subject) == ("PodRouteRefused", min(node.pod_routes.tunnels.desired_keys()))
    assert "(and 1 more); `kroute check` says which modules are missing" in problem.message
    assert node.settings.cni_file.exists()
    node.clients.pod_network.lacks_udp = False
    await node.resync()
    assert node.pod_routes.problems == []
    assert node.kernel.pod_routes.keys() == ROUTES.keys()
    assert len(node.kernel.pod_ports) == 2


async def test_other_settings_replace_tunnels_and_routes_without_a_gap(tmp_path: Path) -> None:
    await started(node := new_node(tmp_path))
    kept = {"pod_network": True, "cluster_cidrs": CLUSTER, "cni_directory": tmp_path / "cni"}
    again = await started(node.restarted(**kept, overlay_encap="fou"))
    assert {tunnel.port for tunnel in again.kernel.pod_tunnels.values()} == {5555}
    assert again.kernel.pod_ports == {(AF_INET, 5555), (AF_INET6, 5555)}
    kinds = [type(change).__name__ for change in again.clients.pod_network.written]
    assert kinds == ["MakeTunnel"] * 2 + ["SetPodRoute"] * 4 + ["DeleteTunnel"] * 2


async def test_a_port_is_open_as_long_as_a_tunnel_has_it(tmp_path: Path) -> None:
    node = await started(new_node(tmp_path, overlay_encap="fou"), NEAR_NODE)
    assert node.kernel.pod_ports == set(), "all nodes are in one subnet"
    node.pod_routes.take_changes([Applied(FAR_NODE)])
    await node.settle()
    assert len(node.kernel.pod_ports) == 2
    kept = {"pod_network": True, "cluster_cidrs": CLUSTER, "cni_directory": tmp_path / "cni"}
    again = await started(node.restarted(**kept))
    assert {tunnel.port for tunnel in again.kernel.pod_tunnels.values()} == {0}
    assert again.kernel.pod_ports == set()


async def test_a_directory_that_cannot_be_written_is_said_and_routes_are_there(tmp_path: Path) -> None:
    (tmp_path / "cni").write_text("a file")
    node = await started(new_node(tmp_path))
    assert node.kernel.pod_routes == ROUTES
    [(_, problem)] = node.node_problems
    assert "cannot write" in problem.message
    (tmp_path / "cni").unlink()
    await node.resync()
    assert cni_of(node)["name"] == "kroute"
    assert [what for what, _ in node.node_problems] == ["report", "take back"]


async def test_pods_of_a_node_that_kube_router_had_get_its_bridge(tmp_path: Path) -> None:
    (tmp_path / "cni").mkdir()
    theirs = '{"name":"mynet","plugins":[{"type":"bridge","bridge":"kube-bridge"}]}'
    (tmp_path / "cni/10-kuberouter.conflist").write_text(theirs)
    node = await started(new_node(tmp_path))
    written = cni_of(node)
    assert (written["name"], written["plugins"][0]["bridge"]) == ("mynet", "kube-bridge")


async def test_a_node_without_networks_writes_no_configuration_of_cni(tmp_path: Path) -> None:
    node = await started(new_node(tmp_path), plan=own_plan(own=()))
    assert node.kernel.pod_routes == ROUTES
    assert not node.settings.cni_file.exists()
    [(_, problem)] = node.node_problems
    assert problem.reason == "NoPodCIDR"
    await node.apply(own_plan(2))
    assert node.settings.cni_file.exists()
    assert [what for what, _ in node.node_problems] == ["report", "take back"]


async def test_the_mtu_of_pods_is_found_by_the_nodes_addresses_or_set(tmp_path: Path) -> None:
    on_loopback = frozenset({("lo", f"{NODE_IPV4}/32"), ("eth1", f"{NODE_IPV6}/64"), ("eth2", "192.168.9.1/24")})
    plan = own_plan()
    assert plan.whole is not None
    whole = msgspec.structs.replace(plan.whole, interfaces=plan.whole.interfaces._replace(on_links=on_loopback))
    of: list[tuple[int, dict[str, Any]]] = [(1360, {}), (1400, {"overlay": "off"})]
    for found, settings in (*of, (9000, {"pod_mtu": 9000}), (1280, {"pod_mtu": 600})):
        node = new_node(tmp_path / str(found), **settings)
        node.clients.pod_network.mtus |= {"lo": 65536, "eth0": 1400, "eth1": 9000, "eth2": 1000}
        await started(node, plan=msgspec.structs.replace(plan, whole=whole))
        assert cni_of(node)["plugins"][0]["mtu"] == found


async def test_a_hostile_node_is_one_problem_that_is_taken_back_when_the_node_goes(tmp_path: Path) -> None:
    hostile = a_node(("InternalIP", "192.168.123.66"), name="node9", pod_cidrs=("0.0.0.0/0",))
    node = await started(new_node(tmp_path), NEAR_NODE, FAR_NODE, hostile)
    assert node.kernel.pod_routes == ROUTES
    assert [(what, problem.reason) for what, problem in node.node_problems] == [("report", "PodNetworkLeftOut")]
    node.pod_routes.take_changes([Deleted(Node, ObjectKey("", "node9"))])
    await node.settle()
    assert [what for what, _ in node.node_problems] == ["report", "take back"]


async def test_a_dry_run_says_what_would_be_written_and_writes_nothing(tmp_path: Path) -> None:
    node = new_node(tmp_path)
    await node.open()

    async def found() -> list[str]:
        catalog = PodRouteCatalog(node.settings)
        catalog.take([*map(Applied, (OWN_NODE, NEAR_NODE, FAR_NODE)), Listed(Node)])
        kernel = await FakeNodeKernel.of(node.kernel).open()
        changes = await dry_run(node.settings, [own_plan()], kernel, None, catalog)
        return [change.what for change in changes.changes if change.kind in {"pod route", "CNI"}]

    said = await found()
    assert len(said) == len(ROUTES) + 2 + 2 + 1, "routes, tunnels, rules, and the configuration"
    assert f"make the tunnel to {FAR}" in said
    assert not node.settings.cni_file.exists()
    assert node.kernel.pod_routes == {}
    await started(node)
    assert await found() == []


async def test_a_cleanup_removes_routes_tunnels_ports_and_the_configuration(tmp_path: Path) -> None:
    node = await started(new_node(tmp_path, overlay_encap="fou"))
    (tmp_path / "cni/20-others.conflist").write_text("{}")
    kept = {"pod_network": True, "cluster_cidrs": CLUSTER, "cni_directory": tmp_path / "cni"}
    again = node.restarted(**kept)
    await again.open()
    report = await again.cleanup()
    assert report.failed == []
    kernel = node.kernel
    assert (kernel.pod_routes, kernel.pod_tunnels, kernel.pod_ports, kernel.pod_rules) == ({}, {}, set(), set())
    assert [path.name for path in (tmp_path / "cni").iterdir()] == ["20-others.conflist"]
    assert (await again.cleanup()).undone == []
