"""Events from a real kernel: lost events, and which program caused an event."""

import pytest

from kroute.kernel.net.addresses import BindAddress, UnbindAddress
from kroute.kernel.net.monitor import AddressEvent, Event, LinkEvent, Monitor, Overrun, OwnPorts, RouteEvent
from kroute.kernel.net.routes import SetLocalRoute
from tests.kernel.nodes import NODE_IP, RealNode, run


async def test_lost_events_are_reported_once_and_older_ones_are_dropped(
    node: RealNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Monitor, "receive_buffer", 4096)
    async with node.monitor(only="d0") as monitor:
        await node.addresses.write("d0", [BindAddress(f"10.0.0.{number}") for number in range(1, 100)])
        events: list[Event | Overrun] = []
        while Overrun() not in events:
            events += await monitor.next()
        assert events[-1] == Overrun()
        await node.addresses.write("d0", [UnbindAddress("10.0.0.7")])
        seen = await monitor.next()
    gone = {it.assigned.address for it in seen if isinstance(it, AddressEvent)}
    gone |= {it.route.address for it in seen if isinstance(it, RouteEvent)}
    assert gone == {"10.0.0.7"}


async def test_an_address_that_moves_is_gone_there_and_new_here(node: RealNode) -> None:
    async with node.monitor(except_="d0", routes=False) as monitor:
        run("ip addr del 192.168.9.2/24 dev e0")
        run("ip link add e1 type dummy")
        run("ip addr add 192.168.9.2/32 dev e1")
        events: list[Event | Overrun] = []
        while not any(isinstance(event, AddressEvent) and event.interface == "e1" for event in events):
            events += await monitor.next()
    moved = [(event.gone, event.interface) for event in events if isinstance(event, AddressEvent)]
    assert moved == [(True, "e0"), (False, "e1")]


async def test_an_interface_that_is_made_again_keeps_its_name(node: RealNode) -> None:
    async with node.monitor(only="d0") as monitor:
        await node.links.delete("d0")
        await node.links.create_dummy("d0")
        await node.addresses.write("d0", [BindAddress("10.0.0.1")])
        events: list[Event | Overrun] = []
        while not any(isinstance(event, AddressEvent) for event in events):
            events += await monitor.next()
    assert {event.interface for event in events if not isinstance(event, Overrun)} == {"d0"}
    assert any(isinstance(event, LinkEvent) and event.gone for event in events)


async def test_what_the_own_sockets_change_is_not_reported_but_what_the_kernel_and_others_do_is(node: RealNode) -> None:
    own = OwnPorts(node.addresses.netlink.port, node.routes.netlink.port)
    async with Monitor(only_interface="d0", own=own) as monitor:
        await node.routes.write("d0", [SetLocalRoute("10.0.0.1", NODE_IP)])
        await node.addresses.write("d0", [BindAddress("10.0.0.1"), BindAddress("10.0.0.2"), UnbindAddress("10.0.0.2")])
        await node.addresses.write("d0", [BindAddress("fd00:9::1", keep_kernel_route=False)])
        run("ip addr del 10.0.0.1/32 dev d0")
        events: list[Event | Overrun] = []
        while not any(isinstance(event, AddressEvent) and event.gone for event in events):
            events += await monitor.next()
    addresses = [(it.gone, it.assigned.address) for it in events if isinstance(it, AddressEvent)]
    assert [it for it in addresses if ":" not in it[1]] == [(True, "10.0.0.1")]
    routes = [(it.gone, it.route.address, it.route.source) for it in events if isinstance(it, RouteEvent)]
    assert (False, "10.0.0.1", NODE_IP) not in routes
    assert (True, "fd00:9::1", None) in routes, "the kernel's route, deleted by the socket for addresses"
