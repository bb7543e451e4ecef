"""service_proxy: virtual servers, VIPs, draining, schedulers."""

import errno
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kroute.controllers.ipvs.drains import FIRST_POLL
from kroute.kernel.ipvs.objects import (
    AddRealServer,
    AddVirtualServer,
    DeleteRealServer,
    DeleteVirtualServer,
    SetRealServer,
    SetVirtualServer,
    VirtualServerOptions,
)
from kroute.kernel.net.addresses import BindAddress
from kroute.model.plan import Persistence, Protocol
from kroute.reconcile.stage_gate import WITHDRAWN
from tests.unit.fake_node import DUMMY, FakeNode, new_kernel, plan, server

WEB = (6, "10.96.0.1", 80)
DNS = (17, "10.96.0.1", 80)
POD1, POD2, POD3 = ("10.1.0.1", 8080), ("10.1.0.2", 8080), ("10.1.0.3", 8080)
dns = partial(server, "10.96.0.1", 80, protocol=Protocol.UDP)


def weights(node: FakeNode, key: tuple[int, str, int] = WEB) -> dict[tuple[str, int], int]:
    return {real: state.weight for real, state in node.kernel.virtual_servers[key].real_servers.items()}


async def serving(tmp_path: Path, *real_servers: str, **options: object) -> FakeNode:
    """Return a node that serves default/web; it records the writes from now on."""
    node = FakeNode(tmp_path, **options)
    await node.start(plan("web", 1, server("10.96.0.1", 80, *(real_servers or ("10.1.0.1",)))))
    node.kernel.writes.clear()
    return node


async def test_a_service_gets_its_virtual_server_and_its_address(tmp_path: Path) -> None:
    node = await serving(tmp_path, "10.1.0.1", "10.1.0.2")
    assert weights(node) == {POD1: 1, POD2: 1}
    assert "10.96.0.1" in node.kernel.links[DUMMY].addresses


async def test_scheduler_flags_and_persistence_are_edited_in_place(tmp_path: Path) -> None:
    node = await serving(tmp_path, "10.1.0.1")
    sticky = server("10.96.0.1", 80, "10.1.0.1", scheduler="mh", flags=0x10, persistence=Persistence(600, 24))
    await node.apply(plan("web", 2, sticky))
    await node.apply(plan("web", 3, server("10.96.0.1", 80, "10.1.0.1", scheduler="sh")))
    assert node.kernel.writes == [
        SetVirtualServer(WEB, VirtualServerOptions("mh", 0x10, 600, 24)),
        SetVirtualServer(WEB, VirtualServerOptions("sh")),
    ]


async def test_flags_of_a_scheduler_that_has_none_are_not_written_again_and_again(tmp_path: Path) -> None:
    node = await serving(tmp_path, "10.1.0.1")
    await node.apply(plan("web", 2, server("10.96.0.1", 80, "10.1.0.1", scheduler="rr", flags=0x8)))
    await node.resync()
    assert node.kernel.writes == []


async def test_a_plan_that_says_the_same_writes_nothing(tmp_path: Path) -> None:
    node = await serving(tmp_path, "10.1.0.1", "10.1.0.2")
    await node.apply(plan("web", 2, server("10.96.0.1", 80, "10.1.0.2", "10.1.0.1")))
    assert node.kernel.writes == []


async def test_one_bad_object_does_not_block_another(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    node.kernel.refuse(lambda change: getattr(change, "key", None) == (6, "10.96.0.7", 80), errno.EINVAL)
    await node.apply(
        plan("bad", 2, server("10.96.0.7", 80, "10.1.0.7")), plan("good", 2, server("10.96.0.2", 80, "10.1.0.1"))
    )
    assert (6, "10.96.0.2", 80) in node.kernel.virtual_servers
    assert "10.96.0.2" in node.kernel.links[DUMMY].addresses


async def test_what_was_refused_is_tried_again_later_and_later_and_reported_once(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    attempts: list[float] = []

    def refuse(change: object) -> bool:
        refused = getattr(change, "key", None) == (6, "10.96.0.7", 80)
        if isinstance(change, AddVirtualServer) and refused:
            attempts.append(node.clock.now)
        return refused

    node.kernel.refuse(refuse, errno.EINVAL)
    with capture_logs() as logs:
        await node.apply(plan("bad", 2, server("10.96.0.7", 80, "10.1.0.1")))
        for _ in range(60):
            await node.wait(0.1)
    waits = [round(later - earlier, 1) for earlier, later in pairwise(attempts)]
    assert waits == [0.5, 1.0, 2.0]
    [line] = [line for line in logs if line["event"] == "write.refused"]
    assert line["services"] == ["default/bad"]
    assert node.service_proxy.statistics().failures == len(attempts)
    node.kernel.accept_all()
    await node.wait(5)
    assert (6, "10.96.0.7", 80) in node.kernel.virtual_servers
    assert node.service_proxy.statistics().waiting == 0


async def test_the_kernel_is_read_before_what_failed_halfway_is_tried_again(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    node.kernel.refuse(lambda change: isinstance(change, AddRealServer), errno.ENOMEM)
    await node.apply(plan("new", 2, server("10.96.0.2", 80, "10.1.0.1")))
    assert (6, "10.96.0.2", 80) in node.kernel.virtual_servers
    node.kernel.accept_all()
    await node.wait(0.6)
    assert weights(node, (6, "10.96.0.2", 80)) == {POD1: 1}
    assert node.service_proxy.statistics().waiting == 0


async def test_a_kernel_that_does_not_answer_is_asked_again_and_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kroute.kernel.errors import KernelError

    node = await serving(tmp_path)

    async def broken(_: object) -> list[object]:
        raise KernelError("the IPVS socket is closed; it is opened again")

    with monkeypatch.context() as patch, capture_logs() as logs:
        patch.setattr(node.ipvs, "write", broken)
        await node.apply(plan("late", 2, server("10.96.0.2", 80, "10.1.0.1")))
    assert [line["controller"] for line in logs if line["event"] == "controller.failed"] == ["service_proxy"]
    assert ("10.96.0.2",) in node.kernel.sets["KROUTE-VIP"].elements  # masquerade did not stop
    await node.wait(1)
    assert "10.96.0.2" in node.kernel.links[DUMMY].addresses


class TestDraining:
    async def test_a_tcp_destination_with_connections_drains_before_it_is_deleted(self, tmp_path: Path) -> None:
        node = await serving(tmp_path, "10.1.0.1", "10.1.0.2")
        node.ipvs.set_connections(WEB, POD2, 1, 0)
        await node.apply(plan("web", 2, server("10.96.0.1", 80, "10.1.0.1")))
        assert weights(node) == {POD1: 1, POD2: 0}
        await node.wait(100)
        assert weights(node) == {POD1: 1, POD2: 0}
        node.ipvs.set_connections(WEB, POD2, 0, 0)
        await node.wait(31)
        assert weights(node) == {POD1: 1}

    async def test_an_inactive_connection_is_waited_for_too(self, tmp_path: Path) -> None:
        node = await serving(tmp_path, "10.1.0.1")
        node.ipvs.set_connections(WEB, POD1, 0, 1)
        await node.apply(plan("web", 2, server("10.96.0.1", 80)))
        await node.wait(10)
        assert weights(node) == {POD1: 0}

    async def test_one_without_connections_is_deleted_at_the_next_look(self, tmp_path: Path) -> None:
        node = await serving(tmp_path, "10.1.0.1", "10.1.0.2")
        await node.apply(plan("web", 2, server("10.96.0.1", 80, "10.1.0.2")))
        due = node.service_proxy.next_due()
        assert due is not None
        assert 0 < due - node.clock.now <= 5
        await node.wait(due - node.clock.now)
        assert weights(node) == {POD2: 1}
        assert node.service_proxy.next_due() is None

    async def test_after_the_drain_timeout_it_is_deleted_with_its_connections(self, tmp_path: Path) -> None:
        node = await serving(tmp_path, "10.1.0.1", "10.1.0.2", drain_timeout=10.0)
        node.ipvs.set_connections(WEB, POD1, 5, 5)
        await node.apply(plan("web", 2, server("10.96.0.1", 80, "10.1.0.2")))
        await node.wait(9)
        assert weights(node) == {POD1: 0, POD2: 1}
        await node.wait(2)
        assert weights(node) == {POD2: 1}

    @pytest.mark.parametrize("protocol", [Protocol.UDP, Protocol.SCTP])
    async def test_udp_and_sctp_do_not_drain(self, tmp_path: Path, protocol: Protocol) -> None:
        node = FakeNode(tmp_path)
        await node.start(plan("dns", 1, server("10.96.0.1", 53, "10.1.0.1", "10.1.0.2", protocol=protocol)))
        key = (int(protocol), "10.96.0.1", 53)
        node.ipvs.set_connections(key, POD1, 5, 5)
        await node.apply(plan("dns", 2, server("10.96.0.1", 53, "10.1.0.2", protocol=protocol)))
        assert weights(node, key) == {POD2: 1}

    async def test_one_of_udp_that_still_serves_drains_for_seconds_or_until_it_serves_no_more(
        self, tmp_path: Path
    ) -> None:
        node = FakeNode(tmp_path)
        await node.start(plan("dns", 1, dns("10.1.0.1", "10.1.0.2", "10.1.0.3")))
        for pod in (POD1, POD2):
            node.ipvs.set_connections(DNS, pod, 0, 5)
        await node.apply(plan("dns", 2, dns("10.1.0.3", leaving=["10.1.0.1", "10.1.0.2"])))
        assert weights(node, DNS) == {POD1: 0, POD2: 0, POD3: 1}
        await node.apply(plan("dns", 3, dns("10.1.0.3", leaving=["10.1.0.2"])))
        assert weights(node, DNS) == {POD2: 0, POD3: 1}
        await node.wait(FIRST_POLL)
        assert weights(node, DNS) == {POD3: 1}
        node.kernel.writes.clear()
        await node.resync()
        await node.apply(plan("dns", 4, dns("10.1.0.3")))
        assert node.kernel.writes == []
        assert node.service_proxy.next_due() is None

    @pytest.mark.parametrize("serves", [True, False])
    async def test_a_restart_goes_on_draining_one_of_udp_only_if_it_still_serves(
        self, tmp_path: Path, *, serves: bool
    ) -> None:
        node = await FakeNode(tmp_path).start(plan("dns", 1, dns("10.1.0.1", "10.1.0.2")))
        node.ipvs.set_connections(DNS, POD1, 0, 5)
        await node.apply(plan("dns", 2, dns("10.1.0.2", leaving=["10.1.0.1"])))
        node = await node.restarted().start(plan("dns", 2, dns("10.1.0.2", leaving=["10.1.0.1"] if serves else [])))
        assert weights(node, DNS) == ({POD1: 0, POD2: 1} if serves else {POD2: 1})
        await node.wait(FIRST_POLL)
        assert weights(node, DNS) == {POD2: 1}

    async def test_one_that_comes_back_gets_its_weight_back_without_being_deleted(self, tmp_path: Path) -> None:
        node = await serving(tmp_path, "10.1.0.1")
        node.ipvs.set_connections(WEB, POD1, 1, 0)
        await node.apply(plan("web", 2, server("10.96.0.1", 80)))
        await node.apply(plan("web", 3, server("10.96.0.1", 80, "10.1.0.1")))
        node.ipvs.set_connections(WEB, POD1, 0, 0)
        await node.wait(10)
        assert [write for write in node.kernel.writes if hasattr(write, "weight")] == [
            SetRealServer(WEB, POD1, 0),
            SetRealServer(WEB, POD1, 1),
        ]
        assert weights(node) == {POD1: 1}

    async def test_a_restart_goes_on_draining(self, tmp_path: Path) -> None:
        node = await serving(tmp_path, "10.1.0.1", "10.1.0.2")
        node.ipvs.set_connections(WEB, POD2, 1, 0)
        now = plan("web", 2, server("10.96.0.1", 80, "10.1.0.1"))
        await node.apply(now)
        node = node.restarted()
        await node.start(now)
        await node.wait(60)
        assert node.kernel.writes == []
        node.ipvs.set_connections(WEB, POD2, 0, 0)
        await node.wait(60)
        assert node.kernel.writes == [DeleteRealServer(WEB, POD2)]

    async def test_a_planned_destination_that_an_earlier_run_left_with_weight_0_gets_its_weight_back(
        self, tmp_path: Path
    ) -> None:
        node = await serving(tmp_path, "10.1.0.1")
        node.ipvs.set_connections(WEB, POD1, 1, 0)
        await node.apply(plan("web", 2, server("10.96.0.1", 80)))
        node = node.restarted()
        await node.start(plan("web", 1, server("10.96.0.1", 80, "10.1.0.1")))
        assert SetRealServer(WEB, POD1, 1) in node.kernel.writes
        assert weights(node) == {POD1: 1}

    async def test_a_whole_virtual_server_goes_with_its_destinations(self, tmp_path: Path) -> None:
        node = await serving(tmp_path, "10.1.0.1")
        node.ipvs.set_connections(WEB, POD1, 1, 0)
        await node.apply(plan("web", 2))
        assert DeleteVirtualServer(WEB) in node.kernel.writes
        assert node.service_proxy.next_due() is None

    async def test_nothing_is_read_while_nothing_drains(self, tmp_path: Path) -> None:
        node = await serving(tmp_path, "10.1.0.1")
        assert node.service_proxy.next_due() is None

    async def test_looks_become_rarer_while_a_connection_lives_for_long(self, tmp_path: Path) -> None:
        node = await serving(tmp_path, "10.1.0.1", resync_period=100_000.0)
        node.ipvs.set_connections(WEB, POD1, 1, 0)
        await node.apply(plan("web", 2, server("10.96.0.1", 80)))
        looks = []
        for _ in range(60):
            due = node.service_proxy.next_due()
            assert due is not None
            looks.append(due - node.clock.now)
            await node.wait(due - node.clock.now)
        assert looks[0] == 2
        assert looks[-1] == 30
        assert looks == sorted(looks)


class TestMissingScheduler:
    async def test_the_default_serves_and_the_service_is_reported_once(self, tmp_path: Path) -> None:
        node = FakeNode(tmp_path, new_kernel(schedulers=frozenset({"rr", "lc"})), scheduler="lc")
        servers = [server("10.96.0.1", port, "10.1.0.1", scheduler="mh") for port in (80, 81)]
        await node.start(plan("web", 1, *servers))
        assert {state.options.scheduler for state in node.kernel.virtual_servers.values()} == {"lc"}
        assert weights(node) == {POD1: 1}
        assert "10.96.0.1" in node.kernel.links[DUMMY].addresses
        assert {(str(key), problem.reason, problem.subject) for key, problem in node.problems} == {
            ("default/web", "SchedulerMissing", "scheduler mh")
        }
        told = len(node.problems)
        await node.resync()
        assert len(node.problems) == told

    async def test_later_resyncs_do_not_flap(self, tmp_path: Path) -> None:
        node = FakeNode(tmp_path, new_kernel(schedulers=frozenset({"rr"})))
        await node.start(plan("web", 1, server("10.96.0.1", 80, "10.1.0.1", scheduler="mh")))
        node.kernel.writes.clear()
        await node.resync()
        await node.apply(plan("web", 2, server("10.96.0.1", 80, "10.1.0.1", scheduler="mh")))
        await node.resync()
        assert node.kernel.writes == []
        assert node.service_proxy.statistics().repairs == 0

    async def test_the_kernel_is_asked_once_for_each_scheduler_and_look_not_for_each_service(
        self, tmp_path: Path
    ) -> None:
        node = FakeNode(tmp_path, new_kernel(schedulers=frozenset({"rr"})), resync_budget=0.0)
        asked: list[object] = []

        def count(change: object) -> bool:
            if isinstance(change, AddVirtualServer | SetVirtualServer) and change.options.scheduler == "mh":
                asked.append(change)
            return False

        node.kernel.refuse(count, 0)
        await node.start(
            plan("web", 1, *(server("10.96.0.1", port, "10.1.0.1", scheduler="mh") for port in range(80, 90)))
        )
        assert len(asked) == 1
        await node.resync()
        assert len(asked) == 2

    async def test_a_scheduler_that_arrives_later_serves_from_the_next_look_on(self, tmp_path: Path) -> None:
        """The next resync may be a day away."""
        node = FakeNode(tmp_path, new_kernel(schedulers=frozenset({"rr"})), resync_budget=0.0)
        await node.start(plan("web", 1, *(server("10.96.0.1", port, "10.1.0.1", scheduler="mh") for port in (80, 81))))
        await node.resync()
        node.kernel.schedulers.add("mh")
        await node.resync()
        assert node.service_proxy.statistics().resyncs == 1
        assert {state.options.scheduler for state in node.kernel.virtual_servers.values()} == {"mh"}

    async def test_one_that_is_edited_to_a_missing_scheduler_keeps_the_default_and_is_reported(
        self, tmp_path: Path
    ) -> None:
        node = FakeNode(tmp_path, new_kernel(schedulers=frozenset({"rr"})))
        await node.start(plan("old", 1, server("10.96.0.9", 80, "10.1.0.1", scheduler="mh")))
        await node.apply(plan("web", 2, server("10.96.0.1", 80, "10.1.0.1")))
        await node.apply(plan("web", 3, server("10.96.0.1", 80, "10.1.0.1", scheduler="mh")))
        assert ("default", "web") in [key for key, _ in node.problems]
        assert node.kernel.virtual_servers[WEB].options.scheduler == "rr"


class TestGoingLive:
    async def test_the_address_waits_for_routes_and_set_entries(self, tmp_path: Path) -> None:
        node = await serving(tmp_path)
        node.broadcaster.publish([plan("new", 2, server("10.96.0.2", 80, "10.1.0.1"))])
        bound = node.kernel.links[DUMMY].addresses
        await node.service_proxy.step()
        assert "10.96.0.2" not in bound
        await node.masquerade.step()
        await node.service_proxy.step()
        assert (6, "10.96.0.2", 80) in node.kernel.virtual_servers
        assert "10.96.0.2" not in bound
        await node.route_fix.step()
        await node.service_proxy.step()
        assert "10.96.0.2" in bound

    async def test_a_virtual_server_waits_for_set_entries_though_its_address_is_not_bound(self, tmp_path: Path) -> None:
        """The source route alone sends the packets of pods and of clients elsewhere to IPVS."""
        node = await serving(tmp_path)
        node.broadcaster.publish([plan("new", 2, server("10.96.0.2", 80, "10.1.0.1"))])
        await node.route_fix.step()
        await node.service_proxy.step()
        assert (6, "10.96.0.2", 80) not in node.kernel.virtual_servers

    async def test_a_route_waits_for_the_virtual_servers_to_which_it_leads(self, tmp_path: Path) -> None:
        node = await serving(tmp_path)
        node.broadcaster.publish([plan("new", 2, server("10.96.0.2", 80, "10.1.0.1"))])
        routes = node.kernel.links[DUMMY].routes
        for controller in (node.route_fix, node.service_proxy, node.masquerade, node.route_fix):
            await controller.step()
            assert "10.96.0.2" not in routes
        await node.service_proxy.step()
        assert (6, "10.96.0.2", 80) in node.kernel.virtual_servers
        await node.route_fix.step()
        assert "10.96.0.2" in routes

    async def test_after_five_seconds_it_goes_live_anyway_with_one_warning(self, tmp_path: Path) -> None:
        node = await serving(tmp_path)
        node.broadcaster.publish([plan("new", 2, server("10.96.0.2", 80, "10.1.0.1"))])
        await node.service_proxy.step()
        assert node.service_proxy.next_due() == node.clock.now + 5
        with capture_logs() as logs:
            node.clock.now += 4.9
            await node.service_proxy.step()
            assert "10.96.0.2" not in node.kernel.links[DUMMY].addresses
            node.clock.now += 0.2
            await node.service_proxy.step()
            await node.service_proxy.step()
        assert "10.96.0.2" in node.kernel.links[DUMMY].addresses
        [line] = [line for line in logs if line["event"] == "service.unprepared"]
        assert line["services"] == ["default/new"]

    async def test_a_service_that_changes_all_the_time_goes_live_in_time(self, tmp_path: Path) -> None:
        node = await serving(tmp_path)
        for generation in range(2, 9):
            node.broadcaster.publish([plan("new", generation, server("10.96.0.2", 80, f"10.1.0.{generation}"))])
            await node.service_proxy.step()
            node.clock.now += 1
        assert "10.96.0.2" in node.kernel.links[DUMMY].addresses

    async def test_an_ipv6_address_comes_without_the_kernels_route_where_ours_stands(self, tmp_path: Path) -> None:
        node = await serving(tmp_path)
        await node.apply(plan("new", 2, server("fd00::2", 80, "fd00:1::1")))
        assert BindAddress("fd00::2", keep_kernel_route=False) in node.kernel.writes

    async def test_a_late_ipv6_address_keeps_the_kernels_route_until_ours_is_there(self, tmp_path: Path) -> None:
        node = await serving(tmp_path)
        node.broadcaster.publish([plan("new", 2, server("fd00::2", 80, "fd00:1::1"))])
        await node.service_proxy.step()
        node.clock.now += 5.1
        await node.service_proxy.step()
        routes = node.kernel.links[DUMMY].routes
        assert [route.metric for route in routes["fd00::2"]] == [0]
        await node.settle()
        assert [route.source for route in routes["fd00::2"]] == ["fd00:123::249"]

    async def test_a_vip_without_source_keeps_the_kernels_route(self, tmp_path: Path) -> None:
        node = await serving(tmp_path)
        await node.apply(
            plan(
                "new",
                2,
                server("fd00::2", 80, "fd00:1::1"),
                server("10.96.0.2", 80, "10.1.0.1"),
                source=None,
                source6=None,
            )
        )
        assert BindAddress("fd00::2", keep_kernel_route=True) in node.kernel.writes
        assert [route.metric for route in node.kernel.links[DUMMY].routes["fd00::2"]] == [0]
        await node.resync()
        assert node.route_fix.statistics().repairs == 0

    async def test_withdrawal_is_said_when_address_and_virtual_server_are_gone(self, tmp_path: Path) -> None:
        node = await serving(tmp_path, "10.1.0.1")
        gone = plan("web", 2)
        node.kernel.refuse(lambda change: isinstance(change, DeleteVirtualServer), errno.EBUSY)
        node.broadcaster.publish([gone])
        await node.service_proxy.step()
        assert "10.96.0.1" not in node.kernel.links[DUMMY].addresses
        assert not node.stage_gate.has_passed(gone, WITHDRAWN)
        node.kernel.accept_all()
        node.clock.now += 1
        await node.service_proxy.step()
        assert node.stage_gate.has_passed(gone, WITHDRAWN)

    async def test_a_virtual_server_outlives_an_address_that_will_not_go(self, tmp_path: Path) -> None:
        node = await serving(tmp_path, "10.1.0.1")
        node.kernel.refuse(lambda change: getattr(change, "address", None) == "10.96.0.1", errno.EBUSY)
        await node.apply(plan("web", 2))
        assert WEB in node.kernel.virtual_servers
        node.kernel.accept_all()
        await node.wait(1)
        assert WEB not in node.kernel.virtual_servers
        assert "10.96.0.1" not in node.kernel.links[DUMMY].addresses

    async def test_an_address_that_two_services_share_stays_for_the_second(self, tmp_path: Path) -> None:
        node = await serving(tmp_path, "10.1.0.1")
        await node.apply(plan("other", 2, server("10.96.0.1", 81, "10.1.0.1")))
        await node.apply(plan("web", 3))
        assert "10.96.0.1" in node.kernel.links[DUMMY].addresses
        assert set(node.kernel.virtual_servers) == {(6, "10.96.0.1", 81)}

    async def test_a_virtual_server_moves_from_one_service_to_another_in_one_batch(self, tmp_path: Path) -> None:
        node = await serving(tmp_path, "10.1.0.1")
        await node.apply(plan("web", 2), plan("heir", 2, server("10.96.0.1", 80, "10.1.0.1")))
        assert node.kernel.writes == []

    async def test_the_source_of_a_vip_is_no_reason_to_bind_it_again(self, tmp_path: Path) -> None:
        node = await serving(tmp_path)
        node.kernel.add_address("eth0", "192.168.123.239", 24)
        await node.apply(plan("web", 2, server("10.96.0.1", 80, "10.1.0.1"), source="192.168.123.239"))
        assert not [change for change in node.kernel.writes if isinstance(change, BindAddress)]

    async def test_a_gone_service_leaves_nothing_in_memory(self, tmp_path: Path) -> None:
        node = await serving(tmp_path, "10.1.0.1")
        await node.apply(plan("web", 2))
        assert not node.stage_gate.has_passed(plan("web", 2), WITHDRAWN)
        for controller in (node.route_fix, node.masquerade):
            assert (set(controller.plans), node.stage_gate.has_candidates(controller.stage)) == (set(), False)
            assert controller.desired._leaving == {}
        assert (set(node.service_proxy._plans), node.stage_gate.has_candidates(WITHDRAWN)) == (set(), False)
