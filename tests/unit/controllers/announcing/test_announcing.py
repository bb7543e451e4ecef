"""When VIPs are announced and withdrawn, on a fake kernel and a fake BIRD."""

import asyncio
import base64
import errno
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import yaml

from kroute.controllers.announcing.configuration import announced_in
from kroute.controllers.announcing.controller import PATIENCE, Announcing, withdraw_all
from kroute.kernel.net.addresses import BindAddress
from kroute.model.objects import Applied, Listed, Node, NodeSpec, Taint
from kroute.model.plan import ServicePlan
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.reconcile.stage_gate import UNANNOUNCED
from tests.builders import node as a_node
from tests.unit.controllers.test_direct_return import POD, direct, methods
from tests.unit.fake_node import NODE_IPV4, FakeNode, plan, server

VIP, OTHER_VIP = "10.96.0.1", "10.96.0.2"
CORDON = "node.kubernetes.io/unschedulable"
ROUTER = {"peer_router_ips": ("192.168.123.1",), "peer_router_asns": (65000,)}


def serving(name: str, generation: int, vip: str = VIP, announced: tuple[str, ...] | None = None) -> ServicePlan:
    return announcing((vip,) if announced is None else announced, plan(name, generation, server(vip, 80, "10.1.0.1")))


def announcing(addresses: Iterable[str], served: ServicePlan, *only_on: str) -> ServicePlan:
    """The plan with these addresses announced; those `only_on` some nodes by these alone."""
    return msgspec.structs.replace(served, announced=tuple((it, frozenset(only_on)) for it in addresses))


def announcing_of(node: FakeNode) -> Announcing:
    controller = node.wiring.optional.announcing
    assert controller is not None
    return controller


def own_node(taint: str = "", **annotations: str) -> Node:
    made = a_node(("InternalIP", NODE_IPV4), name="node3", annotations=annotations)
    return Node(made.metadata, NodeSpec(taints=(Taint(taint),) if taint else None), made.status)


OTHER_NODE = a_node(("InternalIP", "192.168.123.2"), name="node2")


async def started(state_dir: Path, *plans: ServicePlan, of: FakeNode | None = None, **settings: Any) -> FakeNode:
    node = of or FakeNode(state_dir, announce=True, **{**ROUTER, **settings})
    announcing_of(node).take_changes([Applied(own_node()), Applied(OTHER_NODE), Listed(Node)])
    return await node.start(*plans)


def announced(node: FakeNode) -> set[str]:
    """What BIRD has been told last."""
    return set(announced_in(node.bird.told[-1])) if node.bird.told else set()


async def test_a_vip_is_announced_when_it_is_bound(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, announce=True, **ROUTER)
    node.kernel.refuse(lambda change: isinstance(change, BindAddress) and change.address == VIP, errno.ENOBUFS)
    await started(
        tmp_path, serving("web", 1), serving("api", 2, OTHER_VIP), serving("inside", 3, "10.96.0.3", ()), of=node
    )
    assert announced(node) == {OTHER_VIP}
    node.kernel.accept_all()
    await node.wait(1.0)
    assert announced(node) == {VIP, OTHER_VIP}


async def test_a_vip_is_withdrawn_first_and_unbound_after_the_grace(tmp_path: Path) -> None:
    node = await started(tmp_path, serving("web", 1), withdraw_grace=2.0)
    await node.apply(ServicePlan(serving("web", 2).key, 2))
    assert announced(node) == set()
    assert node.kernel.has_address(VIP)
    await node.wait(1.9)
    assert node.kernel.has_address(VIP)
    await node.wait(0.2)
    assert not node.kernel.has_address(VIP)
    assert not announcing_of(node).desired.applied


async def test_a_vip_that_only_ceases_to_be_announced_stays_bound(tmp_path: Path) -> None:
    """As with policy Local, when the last endpoint of a node goes."""
    node = await started(tmp_path, serving("web", 1))
    await node.apply(serving("web", 2, announced=()))
    await node.wait(10.0)
    assert announced(node) == set()
    assert node.kernel.has_address(VIP)


async def test_a_vip_on_no_link_is_announced_when_it_is_delivered_and_delivered_until_it_is_withdrawn(
    tmp_path: Path,
) -> None:
    node = FakeNode(tmp_path, announce=True, direct_return=True, **ROUTER)
    vip = direct(1, POD).direct_vips
    await started(tmp_path, announcing(vip, direct(1, POD)), of=node)
    assert announced(node) == set(), "no pod is ready"
    node.clients.tunnels.add_pod(POD)
    await node.resync()
    assert announced(node) == node.clients.tunnels.addresses == {*vip}
    await node.apply(ServicePlan(direct(2).key, 2))
    assert announced(node) == set()
    await node.wait(1.9)
    assert methods(node) == {POD: "Tunnel"}
    assert node.clients.tunnels.addresses == {*vip}
    await node.wait(0.2)
    assert methods(node) == {}
    assert node.clients.tunnels.addresses == set()


async def test_a_vip_on_no_link_that_is_delivered_no_longer_is_withdrawn(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, announce=True, direct_return=True, **ROUTER)
    node.clients.tunnels.add_pod(POD)
    vip = direct(1, POD).direct_vips
    await started(tmp_path, announcing(vip, direct(1, POD)), of=node)
    assert announced(node) == {*vip}
    node.clients.tunnels.pods.clear()
    await node.resync()
    assert announced(node) == set()


async def test_a_vip_of_two_services_is_announced_until_the_last_drops_it(tmp_path: Path) -> None:
    node = await started(tmp_path, serving("web", 1), serving("api", 2))
    told = len(node.bird.told)
    await node.apply(ServicePlan(serving("web", 3).key, 3))
    assert announced(node) == {VIP}
    assert len(node.bird.told) == told
    await node.apply(ServicePlan(serving("api", 4).key, 4))
    assert announced(node) == set()


async def test_a_change_that_concerns_no_router_tells_bird_nothing(tmp_path: Path) -> None:
    node = await started(tmp_path, serving("web", 1))
    told = len(node.bird.told)
    other = announcing((VIP,), plan("web", 2, server(VIP, 80, "10.1.0.1", "10.1.0.2")))
    await node.apply(other)
    await node.resync()
    assert len(node.bird.told) == told
    assert node.stage_gate.has_passed(other, UNANNOUNCED)


async def test_a_restart_withdraws_nothing_and_tells_bird_the_same(tmp_path: Path) -> None:
    first = await started(tmp_path, serving("web", 1))
    text = first.bird.told[-1]
    again = first.restarted(announce=True, **ROUTER)
    again.bird.told.clear()
    await started(tmp_path, serving("web", 1), of=again)
    assert again.bird.told == [text]


async def test_what_is_gone_after_a_restart_is_withdrawn_first(tmp_path: Path) -> None:
    first = await started(tmp_path, serving("web", 1), serving("api", 2, OTHER_VIP))
    again = await started(tmp_path, serving("api", 1, OTHER_VIP), of=first.restarted(announce=True, **ROUTER))
    assert announced(again) == {OTHER_VIP}
    assert again.kernel.has_address(VIP)
    await again.wait(3.0)
    assert not again.kernel.has_address(VIP)
    assert again.kernel.has_address(OTHER_VIP)


async def test_while_bird_is_away_the_node_serves_and_unbinds_as_ever(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, announce=True, **ROUTER)
    node.bird.away = True
    await started(tmp_path, serving("web", 1), of=node)
    assert node.kernel.has_address(VIP)
    assert [what for what, problem in node.node_problems if problem.reason == "BirdUnreachable"] == ["report"]
    assert announced_in(node.bird.file or "") == [VIP], "BIRD finds it when it starts"
    node.bird.restart()
    await node.wait(1.0)
    assert announced(node) == {VIP}
    assert node.node_problems[-1][0] == "take back"
    node.bird.away = True
    await node.apply(ServicePlan(serving("web", 2).key, 2))
    assert node.kernel.has_address(VIP)
    await node.wait(PATIENCE + 2.1)
    assert not node.kernel.has_address(VIP)
    assert node.wiring.complaints() == []


async def test_a_bird_that_was_started_again_has_what_it_was_told(tmp_path: Path) -> None:
    node = await started(tmp_path, serving("web", 1))
    told = len(node.bird.told)
    node.bird.restart()
    await node.resync()
    assert len(node.bird.told) == told


async def test_a_bird_that_another_program_has_configured_is_told_again(tmp_path: Path) -> None:
    node = await started(tmp_path, serving("web", 1))
    told = len(node.bird.told)
    node.bird.text = "another"
    await node.resync()
    assert len(node.bird.told) == told + 1
    assert announcing_of(node).statistics().repairs == 1
    await node.resync()
    assert len(node.bird.told) == told + 1


async def test_a_configuration_that_bird_refuses_is_said_and_tried_again(tmp_path: Path) -> None:
    node = await started(tmp_path, serving("web", 1))
    node.bird.refuses = True
    await node.apply(serving("api", 2, OTHER_VIP))
    assert announced(node) == {VIP}
    assert ("report", "BirdRefuses") in [(what, problem.reason) for what, problem in node.node_problems]
    node.bird.refuses = False
    await node.wait(1.0)
    assert announced(node) == {VIP, OTHER_VIP}


async def test_a_cordoned_node_withdraws_everything_and_goes_on_serving(tmp_path: Path) -> None:
    node = await started(tmp_path, serving("web", 1))
    announcing_of(node).take_changes([Applied(own_node(CORDON))])
    await node.settle()
    assert announced(node) == set()
    assert "neighbor 192.168.123.1" in node.bird.told[-1], "the session stays"
    await node.wait(60.0)
    assert node.kernel.has_address(VIP)
    announcing_of(node).take_changes([Applied(own_node())])
    await node.settle()
    assert announced(node) == {VIP}


async def test_a_cordoned_node_keeps_what_no_node_that_stays_can_serve(tmp_path: Path) -> None:
    def local(generation: int, *nodes: str) -> ServicePlan:
        return announcing((OTHER_VIP,), serving("web", generation, OTHER_VIP), *nodes)

    node = await started(tmp_path, serving("api", 1), local(2, "node3"))
    controller = announcing_of(node)
    controller.take_changes([Applied(own_node(CORDON))])
    await node.settle()
    assert announced(node) == {OTHER_VIP}
    await node.apply(local(3, "node3", "node2"))
    assert announced(node) == set()
    cordoned_too = Node(OTHER_NODE.metadata, NodeSpec(taints=(Taint(CORDON),)), OTHER_NODE.status)
    third = a_node(("InternalIP", "192.168.123.4"), name="node4")
    controller.take_changes([Applied(third), Applied(cordoned_too)])
    await node.settle()
    assert announced(node) == {OTHER_VIP}, "node4 has no endpoint"
    controller.take_changes([Applied(own_node("node.kubernetes.io/not-ready"))])
    await node.settle()
    assert announced(node) == set(), "it may be about to end"


async def test_passwords_come_from_files_and_from_annotations_and_appear_nowhere_else(tmp_path: Path) -> None:
    passwords = tmp_path / "passwords"
    passwords.mkdir()
    (passwords / "192.168.123.1").write_text("of the file\n")
    node = await started(tmp_path, serving("web", 1), peer_passwords=passwords)
    assert 'password "of the file";' in node.bird.told[-1]
    (passwords / "192.168.123.1").write_text("another\n")
    await node.resync()
    assert 'password "another";' in node.bird.told[-1]
    (passwords / "192.168.123.1").write_text('a"b')
    await node.resync()
    assert "192.168.123.1" not in node.bird.told[-1]
    problems = [problem for _, problem in node.node_problems if problem.reason != "PeerDown"]
    assert [problem.reason for problem in problems] == ["NoPeerPassword"]
    assert 'a"b' not in problems[0].message
    secret = base64.b64encode(b"of the Node").decode()
    peers = yaml.safe_dump([{"remoteip": "192.168.123.7", "remoteasn": 65007, "password": secret}])
    announcing_of(node).take_changes([Applied(own_node(**{"kube-router.io/peers": peers}))])
    await node.settle()
    assert 'password "of the Node";' in node.bird.told[-1]


async def test_problems_of_annotations_are_reported_and_taken_back(tmp_path: Path) -> None:
    node = await started(tmp_path)
    announcing_of(node).take_changes([Applied(own_node(**{"kube-router.io/node.asn": "none"}))])
    await node.settle()
    assert [(what, problem.reason) for what, problem in node.node_problems] == [("report", "InvalidAnnotation")]
    announcing_of(node).take_changes([Applied(own_node())])
    await node.settle()
    assert [what for what, _ in node.node_problems] == ["report", "take back"]


async def test_nothing_is_told_before_all_nodes_are_known(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, announce=True, **ROUTER)
    announcing_of(node).take_changes([Applied(own_node())])
    await node.start(serving("web", 1))
    assert node.bird.told == []
    announcing_of(node).take_changes([Listed(Node)])
    await node.settle()
    assert announced(node) == {VIP}


async def test_without_the_setting_nothing_waits_for_it(tmp_path: Path) -> None:
    node = await FakeNode(tmp_path).start(serving("web", 1))
    assert node.wiring.optional.announcing is None
    await node.apply(ServicePlan(serving("web", 2).key, 2))
    assert not node.kernel.has_address(VIP)


async def test_it_wakes_when_the_initial_sync_is_live(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, announce=True, **ROUTER)
    controller = announcing_of(node)
    tasks = [asyncio.ensure_future(companion) for companion in controller.companions()]
    node.service_proxy.live.set()
    await asyncio.wait_for(controller.wake.wait(), 10)
    for task in tasks:
        task.cancel()


async def test_a_cleanup_withdraws_and_then_removes_what_bird_would_start_with(tmp_path: Path) -> None:
    node = await started(tmp_path, serving("web", 1))
    await withdraw_all(node.bird, 0, report := CleanupReport())
    assert (announced(node), node.bird.file) == (set(), None)
    assert (report.undone, report.failed) == (["withdraw 1 addresses from routers"], [])


async def test_a_cleanup_leaves_what_bird_announces_on(tmp_path: Path) -> None:
    node = await started(tmp_path, serving("web", 1))
    node.bird.refuses = True
    await withdraw_all(node.bird, 0, report := CleanupReport())
    assert node.bird.file == node.bird.text
    assert report.failed


async def test_a_node_that_is_handed_over_announces_nothing(tmp_path: Path) -> None:
    node = await started(tmp_path, serving("web", 1), bird_directory=tmp_path)
    node.settings.bird_configuration.write_text(node.bird.told[-1])
    report = await node.wiring.hand_over([], keep_interface=True)
    assert not node.settings.bird_configuration.exists()
    assert report.failed == []


async def test_looks_for_a_bird_that_waits_for_its_configuration_do_not_put_that_off(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, announce=True, **ROUTER)
    node.bird.away = True
    announcing_of(node).take_changes([Applied(own_node())])
    await node.start(serving("web", 1))
    for _ in range(8):
        await node.resync()
    announcing_of(node).take_changes([Applied(OTHER_NODE), Listed(Node)])
    await node.settle()
    assert announced_in(node.bird.file or "") == [VIP]
