"""The behaviour of links, addresses and routes that kroute relies on. Real classes and fakes pass the same tests.

A subclass provides the fixture `node`: tests/kernel/test_contracts.py the real one, tests/unit/kernel/test_fakes.py
the fake one.
"""

import errno

import pytest

from kroute.kernel.errors import Failure, KernelError
from kroute.kernel.net.addresses import BindAddress, InterfaceAddress, RenewAddress, UnbindAddress
from kroute.kernel.net.monitor import AddressEvent, Event, LinkEvent, Overrun, RouteEvent
from kroute.kernel.net.routes import IPV6_METRIC, DeleteLocalRoute, LocalRoute, SetLocalRoute
from tests.kernel.nodes import NODE_IP, NODE_IP6, OTHER_NODE_IP, OTHER_NODE_IP6, Node

VIP, VIP6 = "10.0.0.1", "fd00::1"


class LinksContract:
    async def test_a_dummy_is_created_right(self, node: Node) -> None:
        assert getattr(await node.links.read("d0"), "is_right", False)
        state = await node.links.read("d0")
        assert state is not None
        assert (state.kind, state.up, state.noarp, state.link_local) == ("dummy", True, True, False)
        assert state.ifindex == await node.links.index("d0")

    async def test_a_missing_link_is_none(self, node: Node) -> None:
        assert await node.links.index("d9") is None
        assert await node.links.read("d9") is None
        assert not getattr(await node.links.read("d9"), "is_right", False)

    async def test_a_second_one_of_the_name_is_refused(self, node: Node) -> None:
        with pytest.raises(KernelError) as refused:
            await node.links.create_dummy("d0")
        assert refused.value.errno == errno.EEXIST

    async def test_deleting_is_idempotent_and_takes_everything_along(self, node: Node) -> None:
        await node.addresses.write("d0", [BindAddress(VIP)])
        await node.links.delete("d0")
        await node.links.delete("d0")
        assert await node.links.index("d0") is None
        assert await node.addresses.read("d0") == set()
        assert await node.routes.read("d0") == {}

    async def test_repairing_a_missing_link_is_refused(self, node: Node) -> None:
        with pytest.raises(KernelError) as refused:
            await node.links.repair("d9")
        assert refused.value.errno == errno.ENODEV


class AddressesContract:
    async def test_bound_addresses_are_read_back(self, node: Node) -> None:
        assert await node.addresses.write("d0", [BindAddress(VIP), BindAddress(VIP6)]) == []
        assert await node.addresses.read("d0") == {VIP, VIP6}

    async def test_unbound_addresses_are_gone(self, node: Node) -> None:
        await node.addresses.write("d0", [BindAddress(VIP), BindAddress(VIP6), BindAddress("10.0.0.2")])
        assert await node.addresses.write("d0", [UnbindAddress(VIP), UnbindAddress(VIP6)]) == []
        assert await node.addresses.read("d0") == {"10.0.0.2"}

    async def test_a_refused_change_stops_no_other(self, node: Node) -> None:
        again, absent = BindAddress(VIP), UnbindAddress("10.0.0.9")
        again6, absent6 = BindAddress(VIP6), UnbindAddress("fd00::9")
        await node.addresses.write("d0", [BindAddress(VIP), BindAddress(VIP6)])
        failures = await node.addresses.write("d0", [again, again6, absent, absent6, BindAddress("10.0.0.2")])
        assert failures == [
            Failure(again, errno.EEXIST),
            Failure(again6, errno.EEXIST),
            Failure(absent, errno.EADDRNOTAVAIL),
            Failure(absent6, errno.EADDRNOTAVAIL),
        ]
        assert await node.addresses.read("d0") == {VIP, VIP6, "10.0.0.2"}

    async def test_an_address_with_a_lifetime_is_bound_once_and_renewed_at_will(self, node: Node) -> None:
        bindings = [BindAddress(it, keep_kernel_route=True, lifetime=60) for it in (VIP, VIP6)]
        assert await node.addresses.write("d0", bindings) == []
        assert [it.errno for it in await node.addresses.write("d0", bindings)] == [errno.EEXIST] * 2
        assert await node.addresses.write("d0", [RenewAddress(VIP, 50), RenewAddress(VIP6, 50)]) == []
        assert await node.addresses.read("d0") == {VIP, VIP6}

    async def test_without_interface_everything_is_refused(self, node: Node) -> None:
        assert await node.addresses.write("d9", [BindAddress(VIP)]) == [Failure(BindAddress(VIP), errno.ENODEV)]
        assert await node.addresses.read("d9") == set()

    async def test_the_nodes_addresses_name_their_interfaces(self, node: Node) -> None:
        await node.addresses.write("d0", [BindAddress(VIP)])
        found = {(each.interface, each.address, each.prefix_length) for each in await node.addresses.of_node()}
        assert {("e0", NODE_IP, 24), ("e0", NODE_IP6, 64), ("d0", VIP, 32)} <= found

    async def test_a_digest_stays_until_somebody_changes_an_address(self, node: Node) -> None:
        await node.addresses.write("d0", [BindAddress(VIP), BindAddress(VIP6)])
        digest = await node.addresses.digest("d0")
        assert digest is not None
        assert digest.counts == (2,)
        node.add_address("e0", "192.168.9.7/32")
        assert await node.addresses.digest("d0") == digest, "that was on another interface"
        node.delete_address("d0", f"{VIP}/32")
        node.add_address("d0", "10.0.0.3/32")
        exchanged = await node.addresses.digest("d0")
        assert exchanged is not None
        assert exchanged != digest
        assert exchanged.counts == (2,)

    async def test_a_digest_of_many_addresses_counts_all(self, node: Node) -> None:
        await node.addresses.write("d0", [BindAddress(f"10.1.{it >> 8}.{it & 255}") for it in range(1000)])
        digest = await node.addresses.digest("d0")
        assert digest is not None
        assert digest.counts == (1000,)
        assert await node.addresses.digest("d0") == digest

    async def test_there_is_no_digest_without_interface(self, node: Node) -> None:
        assert await node.addresses.digest("d9") is None
        assert await node.routes.digest("d9") is None


async def bind_with_kernel_route(node: Node) -> None:
    """Bind VIP6 and wait for the kernel's own route, which appears some time after the address."""
    async with node.monitor(only="d0") as monitor:
        assert await node.addresses.write("d0", [BindAddress(VIP6, keep_kernel_route=True)]) == []
        while RouteEvent(False, "d0", LocalRoute(VIP6, None, 0)) not in await monitor.next():
            pass


class RoutesContract:
    async def test_ipv4_route_before_the_address_wins(self, node: Node) -> None:
        assert await node.routes.write("d0", [SetLocalRoute(VIP, NODE_IP)]) == []
        await node.addresses.write("d0", [BindAddress(VIP)])
        assert (await node.routes.read("d0"))[VIP] == [LocalRoute(VIP, NODE_IP, 0), LocalRoute(VIP, VIP, 0)]

    async def test_ipv4_route_stays_behind_when_the_address_goes(self, node: Node) -> None:
        await node.routes.write("d0", [SetLocalRoute(VIP, NODE_IP)])
        await node.addresses.write("d0", [BindAddress("10.0.0.2"), BindAddress(VIP), UnbindAddress(VIP)])
        assert (await node.routes.read("d0"))[VIP] == [LocalRoute(VIP, NODE_IP, 0)]

    async def test_ipv4_routes_go_with_the_interfaces_last_address(self, node: Node) -> None:
        await node.routes.write("d0", [SetLocalRoute(VIP, NODE_IP), SetLocalRoute("10.0.0.2", NODE_IP)])
        await node.addresses.write("d0", [BindAddress(VIP), UnbindAddress(VIP)])
        assert await node.routes.read("d0") == {}

    async def test_ipv4_source_set_after_the_address_replaces_the_kernels_route(self, node: Node) -> None:
        await node.addresses.write("d0", [BindAddress(VIP)])
        assert await node.routes.write("d0", [SetLocalRoute(VIP, NODE_IP)]) == []
        assert (await node.routes.read("d0"))[VIP] == [LocalRoute(VIP, NODE_IP, 0)]

    async def test_ipv4_source_changes_in_place(self, node: Node) -> None:
        await node.routes.write("d0", [SetLocalRoute(VIP, NODE_IP)])
        await node.addresses.write("d0", [BindAddress(VIP)])
        changes = [SetLocalRoute(VIP, OTHER_NODE_IP), SetLocalRoute(VIP, OTHER_NODE_IP)]
        assert await node.routes.write("d0", changes) == []
        assert (await node.routes.read("d0"))[VIP] == [LocalRoute(VIP, OTHER_NODE_IP, 0), LocalRoute(VIP, VIP, 0)]

    async def test_ipv6_kernel_route_is_deleted_with_the_binding(self, node: Node) -> None:
        assert await node.routes.write("d0", [SetLocalRoute(VIP6, NODE_IP6)]) == []
        assert await node.addresses.write("d0", [BindAddress(VIP6)]) == []
        assert (await node.routes.read("d0"))[VIP6] == [LocalRoute(VIP6, NODE_IP6, IPV6_METRIC)]

    async def test_ipv6_kernel_route_wins_when_it_is_kept(self, node: Node) -> None:
        await node.routes.write("d0", [SetLocalRoute(VIP6, NODE_IP6)])
        await bind_with_kernel_route(node)
        kernels, ours = LocalRoute(VIP6, None, 0), LocalRoute(VIP6, NODE_IP6, IPV6_METRIC)
        assert (await node.routes.read("d0"))[VIP6] == [kernels, ours]

    async def test_ipv6_source_changes_in_place_and_takes_the_kernels_route_away(self, node: Node) -> None:
        await bind_with_kernel_route(node)
        for source in (NODE_IP6, OTHER_NODE_IP6):
            assert await node.routes.write("d0", [SetLocalRoute(VIP6, source)]) == []
            assert (await node.routes.read("d0"))[VIP6] == [LocalRoute(VIP6, source, IPV6_METRIC)]

    async def test_ipv6_route_stays_behind_when_the_address_goes(self, node: Node) -> None:
        await node.routes.write("d0", [SetLocalRoute(VIP6, NODE_IP6)])
        await node.addresses.write("d0", [BindAddress(VIP6), UnbindAddress(VIP6)])
        assert (await node.routes.read("d0"))[VIP6] == [LocalRoute(VIP6, NODE_IP6, IPV6_METRIC)]

    @pytest.mark.parametrize("first", [True, False], ids=["before ours", "behind ours"])
    async def test_routes_with_another_source_go_where_ours_is_to_be_alone(self, node: Node, first: bool) -> None:
        ours, ours6 = LocalRoute(VIP, NODE_IP, 0), LocalRoute(VIP6, NODE_IP6, IPV6_METRIC)
        other, other6 = LocalRoute(VIP, OTHER_NODE_IP, 0), LocalRoute(VIP6, OTHER_NODE_IP6, 512 if first else 2048)
        changes = [SetLocalRoute(VIP, NODE_IP), SetLocalRoute(VIP6, NODE_IP6)]
        await node.routes.write("d0", changes)
        for route in (other, other6):
            node.add_foreign_route("d0", route, first=first)
        both = {VIP: [other, ours], VIP6: [other6, ours6]} if first else {VIP: [ours, other], VIP6: [ours6, other6]}
        assert await node.routes.read("d0") == both
        assert await node.routes.write("d0", changes) == []
        assert await node.routes.read("d0") == {**both, VIP: [ours] if first else [ours, other]}
        assert await node.routes.write("d0", [SetLocalRoute(it.address, it.source, alone=True) for it in changes]) == []
        assert await node.routes.read("d0") == {VIP: [ours], VIP6: [ours6]}

    async def test_deleting_takes_our_route_only(self, node: Node) -> None:
        await node.routes.write("d0", [SetLocalRoute(VIP, NODE_IP), SetLocalRoute(VIP6, NODE_IP6)])
        await node.addresses.write("d0", [BindAddress(VIP)])
        await bind_with_kernel_route(node)
        deletions = [DeleteLocalRoute(VIP, NODE_IP), DeleteLocalRoute(VIP6, NODE_IP6)]
        assert await node.routes.write("d0", deletions) == []
        assert await node.routes.read("d0") == {VIP: [LocalRoute(VIP, VIP, 0)], VIP6: [LocalRoute(VIP6, None, 0)]}
        assert await node.routes.write("d0", deletions) == [Failure(each, errno.ESRCH) for each in deletions]

    async def test_a_source_that_is_not_the_nodes_is_refused(self, node: Node) -> None:
        wrong, wrong6 = SetLocalRoute(VIP, "192.168.9.77"), SetLocalRoute(VIP6, "fd99::77")
        failures = await node.routes.write("d0", [wrong, wrong6, SetLocalRoute("10.0.0.2", NODE_IP)])
        assert failures == [Failure(wrong, errno.EINVAL), Failure(wrong6, errno.EINVAL)]
        assert list(await node.routes.read("d0")) == ["10.0.0.2"]

    async def test_a_source_that_leaves_the_node_stays_in_the_route_but_for_ipv6_of_today(self, node: Node) -> None:
        """Linux 6.6 and later remove the source from an IPv6 route, and send no event."""
        await node.routes.write("d0", [SetLocalRoute(VIP, OTHER_NODE_IP), SetLocalRoute(VIP6, OTHER_NODE_IP6)])
        node.delete_address("e0", f"{OTHER_NODE_IP}/24")
        node.delete_address("e0", f"{OTHER_NODE_IP6}/64")
        routes = await node.routes.read("d0")
        assert routes[VIP] == [LocalRoute(VIP, OTHER_NODE_IP, 0)]
        remembered = OTHER_NODE_IP6 if node.kernel_version < (6, 6) else None
        assert routes[VIP6] == [LocalRoute(VIP6, remembered, IPV6_METRIC)]

    async def test_without_interface_everything_is_refused(self, node: Node) -> None:
        change = SetLocalRoute(VIP, NODE_IP)
        assert await node.routes.write("d9", [change]) == [Failure(change, errno.ENODEV)]
        assert await node.routes.read("d9") == {}

    async def test_a_digest_counts_the_routes_with_each_source_and_stays_until_a_route_changes(
        self, node: Node
    ) -> None:
        sources = (OTHER_NODE_IP6, NODE_IP, OTHER_NODE_IP, NODE_IP6)
        set_routes = [SetLocalRoute(it, NODE_IP) for it in (VIP, "10.0.0.2", "10.0.0.3")]
        await node.routes.write("d0", [*set_routes, SetLocalRoute(VIP6, NODE_IP6)])
        await node.addresses.write("d0", [BindAddress(VIP), BindAddress("10.0.0.2")])
        digest = await node.routes.digest("d0", sources)
        assert digest is not None
        assert digest.counts == (0, 3, 0, 1)
        assert await node.routes.digest("d0", sources) == digest
        await node.routes.write("d0", [SetLocalRoute(VIP6, OTHER_NODE_IP6), SetLocalRoute(VIP, OTHER_NODE_IP)])
        changed = await node.routes.digest("d0", sources)
        assert changed is not None
        assert changed.counts == (1, 2, 1, 0)
        assert changed.checksum != digest.checksum


class MonitorContract:
    async def test_addresses_and_their_routes_are_reported(self, node: Node) -> None:
        async with node.monitor(only="d0") as monitor:
            await node.addresses.write("d0", [BindAddress("10.0.0.2"), BindAddress(VIP), UnbindAddress(VIP)])
            events: list[Event | Overrun] = []
            while not any(isinstance(event, AddressEvent) and event.gone for event in events):
                events += await monitor.next()
        index = await node.links.index("d0") or 0
        bound = AddressEvent(False, InterfaceAddress("d0", VIP, 32, "link", ifindex=index))
        assert bound in events
        assert bound._replace(gone=True) in events
        assert RouteEvent(False, "d0", LocalRoute(VIP, VIP, 0)) in events
        assert RouteEvent(True, "d0", LocalRoute(VIP, VIP, 0)) in events

    async def test_our_routes_are_reported(self, node: Node) -> None:
        async with node.monitor(only="d0") as monitor:
            await node.routes.write("d0", [SetLocalRoute(VIP, NODE_IP), DeleteLocalRoute(VIP, NODE_IP)])
            events: list[Event | Overrun] = []
            while len(events) < 2:
                events += await monitor.next()
        assert events == [
            RouteEvent(False, "d0", LocalRoute(VIP, NODE_IP, 0)),
            RouteEvent(True, "d0", LocalRoute(VIP, NODE_IP, 0)),
        ]

    async def test_links_are_reported(self, node: Node) -> None:
        async with node.monitor(only="d1") as monitor:
            await node.links.create_dummy("d1")
            index = await node.links.index("d1")
            await node.links.delete("d1")
            events: list[Event | Overrun] = []
            while not any(isinstance(event, LinkEvent) and event.gone for event in events):
                events += await monitor.next()
        assert any(event == LinkEvent(False, "d1", index or 0, True) for event in events)
        assert events[-1] == LinkEvent(True, "d1", index or 0, False)

    async def test_one_interface_can_be_left_out(self, node: Node) -> None:
        async with node.monitor(except_="d0", routes=False) as monitor:
            await node.addresses.write("d0", [BindAddress(VIP)])
            node.add_address("e0", "192.168.9.7/32")
            index = await node.links.index("e0") or 0
            found = AddressEvent(False, InterfaceAddress("e0", "192.168.9.7", 32, ifindex=index))
            assert await monitor.next() == [found]
