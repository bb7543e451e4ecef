"""A VIP on no link is delivered last, and a pod gets packets by a tunnel only when it is ready for them."""

import errno
from itertools import permutations
from pathlib import Path
from socket import AF_INET

import msgspec
import pytest

from kroute.base.forwarding import TUNNEL
from kroute.controllers.direct_return import LINGER, LONGEST_PASS, DirectReturn
from kroute.firewall.backend import firewall_of
from kroute.kernel.net.steering import Steer
from kroute.model.plan import AddressSet, ServicePlan, SetEntry, TunnelEnd
from tests.unit.fake_node import FakeNode, node_plan, plan, server

VIP, KEY = "198.51.100.7", (6, "198.51.100.7", 80)
POD, OTHER, REMOTE = "10.1.0.1", "10.1.0.2", "10.9.0.1"


def direct(generation: int, *pods: str, local: tuple[str, ...] = (POD,)) -> ServicePlan:
    """The plan of a Service whose pods answer from VIP; `local` are those of this node."""
    ordinary = plan("web", generation, server(VIP, 80, *pods))
    tunnelled = msgspec.structs.replace(ordinary.virtual_servers[0], method=TUNNEL)
    ends = tuple(TunnelEnd(it, VIP) for it in local)
    return msgspec.structs.replace(
        ordinary, virtual_servers=(tunnelled,), vips=(), direct_vips=(VIP,), tunnel_ends=ends
    )


def methods(node: FakeNode) -> dict[str, str]:
    """How each real server with weight is forwarded to."""
    state = node.kernel.virtual_servers.get(KEY)
    return {key[0]: it.method for key, it in state.real_servers.items() if it.weight} if state else {}


async def test_pods_of_this_node_are_prepared_and_the_vip_is_delivered_but_not_bound(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, direct_return=True)
    pod = node.clients.tunnels.add_pod(POD)
    await node.start(direct(1, POD, REMOTE))
    assert methods(node) == {POD: "Tunnel", REMOTE: "Tunnel"}
    assert pod.tunnels[AF_INET].vips == {VIP}
    assert node.clients.tunnels.addresses == {VIP}
    assert node.clients.tunnels.mark == node.settings.direct_return_mark
    assert not node.kernel.has_address(VIP)
    assert node.kernel.writes.index(Steer(VIP)) > max(
        at for at, it in enumerate(node.kernel.writes) if "real server" in str(it)
    )


async def test_a_pod_that_is_not_found_gets_no_packets_until_it_is(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, direct_return=True)
    await node.start(direct(1, POD, REMOTE))
    assert methods(node) == {REMOTE: "Tunnel"}
    [(_, problem)] = node.problems
    assert problem.reason == "PodNotPrepared"
    assert POD in problem.message
    node.clients.tunnels.add_pod(POD)
    await node.resync()
    assert methods(node) == {POD: "Tunnel", REMOTE: "Tunnel"}


async def test_while_no_pod_is_ready_the_vip_is_not_delivered(tmp_path: Path) -> None:
    """A process of the node that listens on the port would get the packets."""
    node = FakeNode(tmp_path, direct_return=True)
    await node.start(direct(1, POD))
    assert node.clients.tunnels.addresses == set()
    node.clients.tunnels.add_pod(POD)
    await node.resync()
    assert node.clients.tunnels.addresses == {VIP}


async def test_one_pod_that_cannot_be_prepared_costs_no_other(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, direct_return=True)
    tunnels = node.clients.tunnels
    tunnels.add_pod(POD).foreign.add(AF_INET)
    tunnels.add_pod(OTHER)
    tunnels.strict.add("10.1.0.3")
    tunnels.add_pod("10.1.0.3")
    await node.start(direct(1, POD, OTHER, "10.1.0.3", local=(POD, OTHER, "10.1.0.3")))
    assert methods(node) == {OTHER: "Tunnel"}
    assert {it.subject for _, it in node.problems} == {f"direct return by pod {it}" for it in (POD, "10.1.0.3")}
    assert any("rp_filter" in it.message for _, it in node.problems)


async def test_of_two_namespaces_with_one_address_the_runtimes_counts(tmp_path: Path) -> None:
    """A pod that may make user namespaces can make a network namespace with the address of another pod."""
    node = FakeNode(tmp_path, direct_return=True)
    forged, real = node.clients.tunnels.add_pod(POD, depth=1), node.clients.tunnels.add_pod(POD)
    await node.start(direct(1, POD))
    assert (forged.tunnels, real.tunnels[AF_INET].vips) == ({}, {VIP})


async def test_two_namespaces_that_cannot_be_told_apart_are_both_left_alone(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, direct_return=True)
    pods = [node.clients.tunnels.add_pod(POD) for _ in range(2)]
    await node.start(direct(1, POD, REMOTE))
    assert [it.tunnels for it in pods] == [{}, {}]
    assert methods(node) == {REMOTE: "Tunnel"}


async def test_a_restart_writes_nothing(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, direct_return=True)
    node.clients.tunnels.add_pod(POD)
    await node.start(direct(1, POD, REMOTE))
    again = node.restarted(direct_return=True)
    again.clients.tunnels.pods, again.clients.tunnels.mark = node.clients.tunnels.pods, node.clients.tunnels.mark
    again.clients.tunnels.addresses = node.clients.tunnels.addresses
    await again.start(direct(1, POD, REMOTE))
    assert again.kernel.writes == []
    assert methods(again) == {POD: "Tunnel", REMOTE: "Tunnel"}


async def test_a_pod_that_serves_no_more_keeps_its_tunnel_a_while_and_all_ends_with_the_service(
    tmp_path: Path,
) -> None:
    node = FakeNode(tmp_path, direct_return=True)
    pod, other = node.clients.tunnels.add_pod(POD), node.clients.tunnels.add_pod(OTHER)
    await node.start(direct(1, POD, OTHER, local=(POD, OTHER)))
    await node.apply(direct(2, OTHER, local=(OTHER,)))
    assert AF_INET in pod.tunnels
    await node.wait(LINGER)
    await node.resync()
    assert pod.tunnels == {}
    assert AF_INET in other.tunnels
    await node.apply(plan("web", 3))
    assert other.tunnels == {}
    assert node.clients.tunnels.addresses == set()


async def test_the_annotation_comes_and_goes_on_a_live_service(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, direct_return=True)
    pod = node.clients.tunnels.add_pod(POD)
    await node.start(plan("web", 1, server(VIP, 80, POD)))
    assert (methods(node), node.kernel.has_address(VIP)) == ({POD: "Masq"}, True)
    await node.apply(direct(2, POD))
    assert (methods(node), node.kernel.has_address(VIP)) == ({POD: "Tunnel"}, False)
    assert node.clients.tunnels.addresses == {VIP}
    await node.apply(plan("web", 3, server(VIP, 80, POD)))
    assert (methods(node), node.kernel.has_address(VIP)) == ({POD: "Masq"}, True)
    assert (node.clients.tunnels.addresses, pod.tunnels) == (set(), {})


async def test_a_restricted_vip_is_not_delivered_before_its_ranges_are_enforced(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, direct_return=True)
    node.clients.tunnels.add_pod(POD)
    node.kernel.refuse(lambda change: "commit table" in str(change), errno.EAGAIN)
    port = (VIP, 6, 80)
    own = (SetEntry(AddressSet.RESTRICTED, port), SetEntry(AddressSet.SOURCE_RANGE, (*port, "192.0.2.0/24")))
    restricted = direct(1, POD)
    await node.start(msgspec.structs.replace(restricted, set_entries=(*restricted.set_entries, *own)))
    assert node.clients.tunnels.addresses == set()
    node.kernel.accept_all()
    await node.resync()
    assert node.clients.tunnels.addresses == {VIP}


async def test_a_node_that_may_not_look_at_processes_says_so_and_sends_to_other_nodes(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, direct_return=True)
    node.clients.tunnels.may_look = False
    await node.start(direct(1, POD, REMOTE))
    assert methods(node) == {REMOTE: "Tunnel"}
    assert node.clients.tunnels.addresses == {VIP}
    assert "cannot look at the network namespaces" in node.problems[0][1].message


async def test_cleanup_undoes_pods_and_node_and_without_the_right_to_look_the_node(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, direct_return=True)
    pod = node.clients.tunnels.add_pod(POD)
    await node.start(direct(1, POD))
    assert not (await node.cleanup()).failed
    assert (pod.tunnels, node.clients.tunnels.addresses, node.clients.tunnels.mark) == ({}, set(), None)
    node.clients.tunnels.may_look = False
    assert not (await node.cleanup()).failed


async def test_another_proxy_that_takes_over_finds_nothing_of_it(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, direct_return=True)
    pod = node.clients.tunnels.add_pod(POD)
    await node.start(direct(1, POD))
    report = await node.wiring.hand_over([firewall_of(node.settings, node.clients)], keep_interface=True)
    assert not report.failed
    assert (pod.tunnels, node.clients.tunnels.addresses, node.clients.tunnels.mark) == ({}, set(), None)


async def test_without_the_setting_there_is_no_controller_and_nothing_is_read(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    assert node.wiring.optional.direct_return is None
    await node.start(plan("web", 1, server(VIP, 80, POD)))
    assert node.clients.tunnels.mark is None


def restricted(generation: int, *pods: str, ranges: str = "192.0.2.0/24") -> ServicePlan:
    """The plan of a Service with direct return and source ranges."""
    port = (VIP, 6, 80)
    own = (SetEntry(AddressSet.RESTRICTED, port), SetEntry(AddressSet.SOURCE_RANGE, (*port, ranges)))
    ordinary = direct(generation, *pods)
    return msgspec.structs.replace(ordinary, set_entries=(*ordinary.set_entries, *own))


@pytest.mark.parametrize("order", list(permutations(range(4))))
async def test_a_restricted_vip_stays_delivered_while_its_service_changes_and_over_a_restart(
    tmp_path: Path, order: tuple[int, ...]
) -> None:
    node = FakeNode(tmp_path, direct_return=True)
    node.clients.tunnels.add_pod(POD)
    await node.start(restricted(1, POD, REMOTE))
    assert node.clients.tunnels.addresses == {VIP}
    node.kernel.writes.clear()
    node.broadcaster.publish([restricted(2, POD)])
    await node.settle(order)
    assert [it for it in node.kernel.writes if isinstance(it, Steer)] == []
    again = node.restarted(direct_return=True)
    again.clients.tunnels.pods, again.clients.tunnels.mark = node.clients.tunnels.pods, node.clients.tunnels.mark
    again.clients.tunnels.addresses = node.clients.tunnels.addresses
    await again.start(restricted(1, POD), order=order)
    assert [it for it in again.kernel.writes if isinstance(it, Steer)] == []
    assert again.clients.tunnels.addresses == {VIP}


async def test_a_service_that_is_deleted_while_its_address_is_withdrawn_leaves_no_delivery(tmp_path: Path) -> None:
    """The gate forgets a deleted Service, so it cannot say later that the plan before the deletion is withdrawn."""
    node = FakeNode(tmp_path, direct_return=True)
    node.clients.tunnels.add_pod(POD)
    await node.start(direct(1, POD))
    own = node.wiring.optional.direct_return
    assert own is not None
    node.broadcaster.publish([plan("web", 2, server("10.96.0.1", 80, POD))])
    await own.step()
    assert node.clients.tunnels.addresses == {VIP}
    node.broadcaster.publish([plan("web", 3)])
    await node.settle([0, 1, 2, 0, 1, 2, 3])
    assert node.clients.tunnels.addresses == set()
    assert own._dropped == {}


def slow_node(tmp_path: Path) -> tuple[FakeNode, DirectReturn]:
    """A node on which time passes while somebody in a pod makes the work there take long, and its controller."""
    node = FakeNode(tmp_path, direct_return=True)

    def let_pass(seconds: float) -> None:
        node.clock.now += seconds

    node.clients.tunnels.let_pass = let_pass
    assert node.wiring.optional.direct_return is not None
    return node, node.wiring.optional.direct_return


async def test_hostile_namespaces_hold_no_pass_up_and_are_undone_in_turn(tmp_path: Path) -> None:
    """Each has a link of kroute's name, and takes all the time that work in one namespace may take."""
    node, own = slow_node(tmp_path)
    tunnels = node.clients.tunnels
    hostile = [tunnels.add_pod() for _ in range(20)]
    for each in hostile:
        each.foreign, each.takes = {AF_INET}, LONGEST_PASS
    pod = tunnels.add_pod(POD)
    await node.start(direct(1, POD))
    tunnels.let_pass(LINGER)
    own.resync_soon()
    tunnels.attempts.clear()
    await own.step()
    assert tunnels.attempts == [pod.pid, hostile[0].pid]
    await node.settle()
    undone = [pid for pid in tunnels.attempts if pid != pod.pid]
    assert undone == [each.pid for each in hostile]  # each once
    assert tunnels.addresses == {VIP}


async def test_pods_that_take_all_the_time_leave_the_others_their_turn(tmp_path: Path) -> None:
    node, own = slow_node(tmp_path)
    tunnels = node.clients.tunnels
    pods = [f"10.1.0.{number}" for number in range(1, 21)]
    for address in pods:
        tunnels.add_pod(address).takes = 2 * LONGEST_PASS
    tunnels.pods[-1].takes = 0
    node.broadcaster.publish([node_plan(), direct(1, *pods, local=tuple(pods))])
    await own.start()
    for turn in range(1, 21):
        await own.step()
        assert len(set(tunnels.attempts)) == turn
    assert tunnels.pods[19].tunnels[AF_INET].vips == {VIP}


async def test_what_could_not_be_undone_is_undone_at_once_when_no_service_has_direct_return(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, direct_return=True)
    pod, other = node.clients.tunnels.add_pod(POD), node.clients.tunnels.add_pod(OTHER)
    await node.start(direct(1, POD, OTHER, local=(POD, OTHER)))
    await node.apply(direct(2, OTHER, local=(OTHER,)))
    pod.takes = LONGEST_PASS
    await node.wait(LINGER)
    await node.resync()
    assert AF_INET in pod.tunnels
    pod.takes = 0
    await node.apply(plan("web", 3))
    assert (pod.tunnels, other.tunnels) == ({}, {})


@pytest.mark.parametrize("depth", [0, 1])
async def test_a_pod_that_was_seen_with_anothers_address_does_not_take_it_away(tmp_path: Path, depth: int) -> None:
    """Its process enters a namespace of its own with that address for a moment, and comes back."""
    node = FakeNode(tmp_path, direct_return=True)
    node.clients.tunnels.add_pod(OTHER).seen_with = frozenset({POD})
    pod = node.clients.tunnels.add_pod(POD, depth=depth)
    await node.start(direct(1, POD))
    assert pod.tunnels[AF_INET].vips == {VIP}
    assert node.problems == []
