"""The node's own addresses are followed, and VIPs are not."""

import asyncio
import errno
import socket
from collections.abc import Callable, Collection
from types import SimpleNamespace

import pytest

from kroute.kernel.errors import KernelError
from kroute.kernel.net.addresses import InterfaceAddress
from kroute.model.node_facts import NodeInterfaces
from kroute.watchers.node import NodeWatcher, default_addresses, default_source, node_interfaces, subnet_edges
from tests.fakes.addresses import FakeAddresses
from tests.fakes.kernel import FakeKernel
from tests.fakes.monitor import FakeMonitor
from tests.fakes.next_hops import FakeNextHops
from tests.unit.watching import eventually, running

DUMMY = "kube-ipvs0"


def no_default_route(_family: socket.AddressFamily) -> str | None:
    return None


def on_eth0(address: str, **flags: object) -> InterfaceAddress:
    prefix_length = 64 if ":" in address else 24
    return InterfaceAddress("eth0", address, prefix_length)._replace(**flags)


@pytest.fixture
def kernel() -> FakeKernel:
    kernel = FakeKernel()
    kernel.add_link("eth0")
    kernel.add_link(DUMMY, kind="dummy")
    kernel.add_address("eth0", "192.168.123.249", 24)
    kernel.add_address(DUMMY, "10.96.0.1", 32)
    return kernel


def watcher(
    kernel: FakeKernel, told: list[NodeInterfaces], resolver: Callable[[], frozenset[str]] = frozenset
) -> NodeWatcher:
    return NodeWatcher(
        DUMMY,
        told.append,
        monitor=FakeMonitor(kernel, except_interface=DUMMY, routes=False),
        addresses=FakeAddresses(kernel),
        source_towards=no_default_route,
        next_hops=FakeNextHops(kernel),
        resolver=resolver,
    )


async def test_addresses_that_come_and_go_are_reported_at_once(kernel: FakeKernel) -> None:
    told: list[NodeInterfaces] = []
    async with running(watcher(kernel, told).run()):
        await eventually(lambda: len(told) == 1)
        kernel.add_address("eth0", "192.168.123.7", 24)
        await eventually(lambda: len(told) == 2)
        kernel.delete_address("eth0", "192.168.123.249")
        await eventually(lambda: len(told) == 3)
    assert [it.own for it in told] == [
        {"192.168.123.249"},
        {"192.168.123.249", "192.168.123.7"},
        {"192.168.123.7"},
    ]
    assert [it.default for it in told] == [("192.168.123.249",), ("192.168.123.249",), ("192.168.123.7",)]


async def test_an_interface_keeps_its_place_while_it_has_no_address(kernel: FakeKernel) -> None:
    """Else, with a new DHCP lease and no default route yet, the pods' bridge would be the node's first interface."""
    kernel.add_link("cbr0")
    kernel.add_address("cbr0", "172.20.0.1", 24)
    told: list[NodeInterfaces] = []
    async with running(watcher(kernel, told).run()):
        await eventually(lambda: len(told) == 1)
        kernel.delete_address("eth0", "192.168.123.249")
        await eventually(lambda: len(told) == 2)
        kernel.add_address("eth0", "192.168.123.239", 24)
        await eventually(lambda: len(told) == 3)
    assert [it.default for it in told] == [("192.168.123.249",), ("172.20.0.1",), ("192.168.123.239",)]


async def test_vips_of_a_proxy_that_is_leaving_are_not_the_nodes_own(kernel: FakeKernel) -> None:
    kernel.add_link("kube-dummy-if", kind="dummy", up=False)
    kernel.add_address("kube-dummy-if", "10.96.0.2", 32)
    told: list[NodeInterfaces] = []
    async with running(watcher(kernel, told).run()):
        await eventually(lambda: len(told) == 1)
        kernel.add_address("kube-dummy-if", "10.96.0.3", 32)
        kernel.delete_link("kube-dummy-if")
        kernel.add_address("eth0", "192.168.123.7", 24)
        await eventually(lambda: len(told) == 2)
    assert [it.own for it in told] == [{"192.168.123.249"}, {"192.168.123.249", "192.168.123.7"}]


async def test_vips_and_links_that_change_nothing_are_no_news(kernel: FakeKernel) -> None:
    told: list[NodeInterfaces] = []
    async with running(watcher(kernel, told).run()):
        await eventually(lambda: len(told) == 1)
        kernel.add_address(DUMMY, "10.96.0.2", 32)
        kernel.add_link("veth1")
        kernel.add_address("veth1", "172.20.0.1", 24)
        await eventually(lambda: len(told) == 2)
        kernel.delete_link("veth1")
        await eventually(lambda: len(told) == 3)
    assert [it.own for it in told] == [
        {"192.168.123.249"},
        {"192.168.123.249", "172.20.0.1"},
        {"192.168.123.249"},
    ]


async def test_lost_events_are_made_up_for_by_reading_again(kernel: FakeKernel) -> None:
    told: list[NodeInterfaces] = []
    async with running(watcher(kernel, told).run()):
        await eventually(lambda: len(told) == 1)
        del kernel.links["eth0"].addresses["192.168.123.249"]  # without an event
        kernel.overrun()
        await eventually(lambda: len(told) == 2)
    assert told[-1].own == frozenset()


def test_an_address_is_the_nodes_own_once_no_other_machine_is_known_to_have_it() -> None:
    found = [on_eth0("fd00::1", tentative=True), on_eth0("fd00::2", deprecated=True), on_eth0("fd00::3")]
    assert node_interfaces(found, no_default_route) == NodeInterfaces(
        frozenset({"fd00::2", "fd00::3"}),
        ("fd00::3",),
        subnet_edges=frozenset({"fd00::"}),
        on_links=frozenset({("eth0", "fd00::2/64"), ("eth0", "fd00::3/64")}),
    )


@pytest.mark.parametrize(
    ("addresses", "sources", "expected"),
    [
        pytest.param(
            [on_eth0("10.0.0.1"), on_eth0("10.0.0.2")], {"10.0.0.2"}, ("10.0.0.2",), id="what the default route uses"
        ),
        pytest.param([on_eth0("10.0.0.1")], {"172.16.0.1"}, ("10.0.0.1",), id="but only if it is the node's own"),
        pytest.param(
            [on_eth0("10.0.0.9", secondary=True), on_eth0("10.0.0.1")], set(), ("10.0.0.1",), id="a primary one"
        ),
        pytest.param(
            [on_eth0("127.0.0.1", scope="host"), on_eth0("fe80::1", scope="link")], set(), (), id="of global scope"
        ),
        pytest.param(
            [on_eth0("fd00::1", tentative=True), on_eth0("fd00::2", deprecated=True), on_eth0("fd00::3")],
            set(),
            ("fd00::3",),
            id="settled",
        ),
        pytest.param([on_eth0("fd00::3"), on_eth0("10.0.0.1")], set(), ("10.0.0.1", "fd00::3"), id="of each family"),
    ],
)
def test_the_default_address_is(
    addresses: list[InterfaceAddress], sources: set[str], expected: tuple[str, ...]
) -> None:
    def source_towards(family: socket.AddressFamily) -> str | None:
        return next((it for it in sources if (":" in it) == (family == socket.AF_INET6)), None)

    assert default_addresses(addresses, source_towards) == expected


def test_without_a_route_there_is_no_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kroute.watchers.node.ELSEWHERE", {socket.AF_INET: "255.255.255.255"})
    assert default_source(socket.AF_INET) is None


def test_a_source_is_an_address_of_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kroute.watchers.node.ELSEWHERE", {socket.AF_INET: "127.0.0.9"})
    assert default_source(socket.AF_INET) == "127.0.0.1"


class TestWhatTheNodeNeeds:
    """Changes of gateways, subnets' first and last addresses, and DNS servers are passed on."""

    async def test_gateways_that_come_and_go(self, kernel: FakeKernel) -> None:
        told: list[NodeInterfaces] = []
        kernel.gateways = {"192.168.123.1"}
        async with running(watcher(kernel, told).run()):
            await eventually(lambda: len(told) == 1)
            kernel.gateways = {"192.168.123.2"}
            kernel.routes_changed.set()
            await eventually(lambda: len(told) == 2)
        assert [it.gateways for it in told] == [{"192.168.123.1"}, {"192.168.123.2"}]

    async def test_routes_that_go_silently_with_a_link(self, kernel: FakeKernel) -> None:
        told: list[NodeInterfaces] = []
        kernel.gateways = {"192.168.123.1"}
        async with running(watcher(kernel, told).run()):
            await eventually(lambda: len(told) == 1)
            kernel.gateways = set()
            kernel.delete_link("eth0")
            await eventually(lambda: told[-1].gateways == frozenset())

    async def test_gateways_that_change_after_an_hour_of_silence_and_soon_again(
        self, kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The pause depends on how long reading takes, not on how long nothing has changed."""
        now = 0.0
        monkeypatch.setattr("kroute.watchers.node.time", SimpleNamespace(monotonic=lambda: now))
        monkeypatch.setattr("kroute.watchers.node.SHORTEST_PAUSE", 0.0)
        told: list[NodeInterfaces] = []
        async with running(watcher(kernel, told).run()):
            await eventually(lambda: len(told) == 1)
            for number in range(2, 5):
                await asyncio.sleep(0.01)  # it waits for the next change
                now += 3600.0
                kernel.gateways = {f"192.168.123.{number}"}
                kernel.routes_changed.set()
                await eventually(lambda number=number: len(told) == number)

    async def test_dns_servers_that_change(self, kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("kroute.watchers.node.LOOK_EVERY", 0.01)
        servers = frozenset({"192.168.123.53"})
        told: list[NodeInterfaces] = []
        async with running(watcher(kernel, told, lambda: servers).run()):
            await eventually(lambda: len(told) == 1)
            servers = frozenset({"192.168.123.54"})
            await eventually(lambda: len(told) == 2)
        assert [it.dns_servers for it in told] == [{"192.168.123.53"}, {"192.168.123.54"}]

    async def test_the_ends_of_a_subnet_go_with_its_address(self, kernel: FakeKernel) -> None:
        told: list[NodeInterfaces] = []
        async with running(watcher(kernel, told).run()):
            await eventually(lambda: len(told) == 1)
            kernel.delete_address("eth0", "192.168.123.249")
            await eventually(lambda: len(told) == 2)
        assert [it.subnet_edges for it in told] == [{"192.168.123.0", "192.168.123.255"}, set()]

    @pytest.mark.parametrize(
        ("address", "length", "expected"),
        [
            pytest.param("10.1.2.3", 24, ("10.1.2.0", "10.1.2.255"), id="a subnet"),
            pytest.param("10.1.2.3", 8, ("10.0.0.0", "10.255.255.255"), id="a large one"),
            pytest.param("10.1.2.3", 31, (), id="a link between two (RFC 3021)"),
            pytest.param("10.1.2.3", 32, (), id="a single address"),
            pytest.param("fd00:1::3", 64, ("fd00:1::",), id="of IPv6, which has no broadcast"),
            pytest.param("fd00:1::3", 127, (), id="an IPv6 link between two (RFC 6164)"),
        ],
    )
    def test_the_ends_of(self, address: str, length: int, expected: tuple[str, ...]) -> None:
        assert subnet_edges(address, length) == expected


async def test_addresses_that_change_faster_than_they_are_read_are_read_again_and_end_nothing(
    kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[NodeInterfaces] = []
    read, attempts = FakeAddresses.of_node, 0

    async def interrupted(self: FakeAddresses, leave_out: Collection[str]) -> list[InterfaceAddress]:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise KernelError("the kernel's state changes faster than it can be read", errno=errno.EINTR)
        return await read(self, leave_out)

    monkeypatch.setattr(FakeAddresses, "of_node", interrupted)
    async with running(watcher(kernel, told).run()):
        await eventually(lambda: len(told) == 1)
    assert attempts == 3
