"""A look at IPVS: what it finds between two resyncs, what it leaves alone, and how much it reads.

There is no budget for resyncs here, so after the adoption there are none without a reason.
"""

import errno
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from kroute.base.forwarding import DIRECT_ROUTING, TUNNEL
from kroute.controllers.ipvs import table_look
from kroute.controllers.ipvs.table_look import LEAST_A_LOOK, LEAST_OF_IPV4, TableLook
from kroute.kernel.errors import KernelError
from kroute.kernel.ipvs.objects import (
    AddRealServer,
    AddVirtualServer,
    DeleteRealServer,
    DeleteVirtualServer,
    IpvsChange,
    RealServerKey,
    RealServerState,
    SetRealServer,
    SetVirtualServer,
    VirtualServerOptions,
)
from kroute.kernel.ipvs.objects import VirtualServerKey as KernelKey
from kroute.model.plan import VirtualServer, VirtualServerKey
from kroute.settings import Settings
from tests.fakes.ipvs import FakeIpvs
from tests.fakes.kernel import FakeKernel
from tests.unit.fake_node import FakeNode, plan, server

VIP, VIP6, HASHED = "10.96.0.1", "fd96::1", "10.96.0.3"
KEY, KEY6, KEY_MH, FOREIGN = (6, VIP, 80), (6, VIP6, 80), (6, HASHED, 80), (6, "10.254.0.1", 9999)
REAL, REAL6 = ("10.1.0.1", 8080), ("fd01::1", 8080)
OPTIONS = VirtualServerOptions()


def of_web(generation: int, *more: str) -> tuple[VirtualServer, ...]:
    return (
        server(VIP, 80, "10.1.0.1", "10.1.0.2", *more),
        server(VIP6, 80, "fd01::1", "fd01::2"),
        server(HASHED, 80, "10.1.0.1", "10.1.0.2", scheduler="mh"),
    )


async def serving(tmp_path: Path) -> FakeNode:
    """A node that has looked once since it wrote everything."""
    node = FakeNode(tmp_path, resync_budget=0.0)
    await node.start(plan("web", 1, *of_web(1)))
    await node.resync()
    assert resyncs(node) == 1
    return node


def resyncs(node: FakeNode) -> int:
    return node.service_proxy.statistics().resyncs


async def damage(node: FakeNode, *changes: IpvsChange) -> None:
    """Change the table as another program does: kroute's own client is not asked."""
    assert await FakeIpvs.write(node.ipvs, changes) == []


DAMAGES: dict[str, list[IpvsChange]] = {
    "virtual server deleted": [DeleteVirtualServer(KEY)],
    "options changed": [SetVirtualServer(KEY, VirtualServerOptions("wlc"))],
    "real server deleted": [DeleteRealServer(KEY, REAL)],
    "real server added": [AddRealServer(KEY, ("10.66.0.1", 8080), 1)],
    "real server exchanged": [DeleteRealServer(KEY, REAL), AddRealServer(KEY, ("10.66.0.1", 8080), 1)],
    "weight changed": [SetRealServer(KEY, REAL, 7)],
    "forwarding method changed": [SetRealServer(KEY, REAL, 1, DIRECT_ROUTING)],
    "forwarding method of IPv6 changed": [SetRealServer(KEY6, REAL6, 1, TUNNEL)],
    "order of mh changed": [DeleteRealServer(KEY_MH, REAL), AddRealServer(KEY_MH, REAL, 1)],
    "virtual server of IPv6 deleted": [DeleteVirtualServer(KEY6)],
    "options of IPv6 changed": [SetVirtualServer(KEY6, VirtualServerOptions("wlc"))],
    "real server of IPv6 deleted": [DeleteRealServer(KEY6, REAL6)],
    "all cleared": [DeleteVirtualServer(key) for key in (KEY, KEY6, KEY_MH)],
}


@pytest.mark.parametrize("changes", DAMAGES.values(), ids=DAMAGES.keys())
async def test_the_next_look_finds_and_repairs(tmp_path: Path, changes: Sequence[IpvsChange]) -> None:
    node = await serving(tmp_path)
    whole = await node.ipvs.read()
    order = list(whole[KEY_MH].real_servers)
    await damage(node, *changes)
    await node.resync()
    assert node.service_proxy.statistics().repairs >= 1
    await node.resync()  # until then a real server that was not planned drains
    assert await node.ipvs.read() == whole
    assert list((await node.ipvs.read())[KEY_MH].real_servers) == order


async def test_nothing_is_read_in_full_while_nothing_changes(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    for _ in range(5):
        await node.resync()
    statistics = node.service_proxy.statistics()
    assert (statistics.resyncs, statistics.repairs) == (1, 0)
    assert statistics.looks >= 6
    assert statistics.last_look >= statistics.last_resync > 0


async def test_what_kroute_writes_itself_is_no_reason(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    await node.apply(plan("web", 2, *of_web(2, "10.1.0.3")), plan("new", 1, server("10.96.0.9", 80, "10.1.0.1")))
    await node.resync()
    await node.apply(plan("web", 3, *of_web(3)[1:]), plan("new", 2))
    await node.resync()
    assert resyncs(node) == 1


async def test_a_draining_real_server_is_no_reason(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    node.ipvs.set_connections(KEY, REAL, 1, 0)
    await node.apply(plan("web", 2, server(VIP, 80, "10.1.0.2"), *of_web(2)[1:]))
    await node.resync()
    assert (await node.ipvs.read())[KEY].real_servers[REAL].weight == 0
    assert resyncs(node) == 1


async def test_a_draining_real_server_that_gets_new_connections_again_is_found(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    node.ipvs.set_connections(KEY, REAL, 1, 0)
    await node.apply(plan("web", 2, server(VIP, 80, "10.1.0.2"), *of_web(2)[1:]))
    await damage(node, SetRealServer(KEY, REAL, 7))
    await node.resync()
    assert (await node.ipvs.read())[KEY].real_servers[REAL].weight == 0
    assert node.service_proxy.statistics().repairs == 1


async def test_the_drain_of_a_real_server_that_another_program_has_deleted_ends(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    both = REAL6, ("fd01::2", 8080)
    for real in both:
        node.ipvs.set_connections(KEY6, real, 1, 0)
    await node.apply(plan("web", 2, server(VIP, 80, "10.1.0.1", "10.1.0.2"), server(VIP6, 80), of_web(2)[2]))
    assert [it.weight for it in (await node.ipvs.read())[KEY6].real_servers.values()] == [0, 0]
    await damage(node, *(DeleteRealServer(KEY6, real) for real in both))
    await node.resync()
    assert KEY6 not in await node.ipvs.read()
    assert resyncs(node) == 1


@pytest.mark.parametrize(
    "change",
    [DeleteVirtualServer(KEY), DeleteRealServer(KEY, REAL), SetVirtualServer(KEY, VirtualServerOptions("wlc"))],
)
async def test_damage_to_what_kroute_has_just_written_is_found(tmp_path: Path, change: IpvsChange) -> None:
    node = await serving(tmp_path)
    await node.apply(plan("web", 2, *of_web(2, "10.1.0.3")))
    whole = await node.ipvs.read()
    await damage(node, change)
    await node.resync()
    assert await node.ipvs.read() == whole
    assert node.service_proxy.statistics().repairs == 1


@pytest.mark.parametrize("protocol", [6, 47])
async def test_foreign_virtual_servers_come_and_go_without_a_reason(tmp_path: Path, protocol: int) -> None:
    node, foreign = await serving(tmp_path), (protocol, *FOREIGN[1:])
    await damage(node, AddVirtualServer(foreign, OPTIONS), AddRealServer(foreign, REAL, 1))
    await node.resync()
    await damage(node, DeleteVirtualServer(foreign))
    await node.resync()
    assert resyncs(node) == 1


async def test_a_kernel_without_the_call_is_read_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = await serving(tmp_path)

    async def unknown() -> None:
        raise KernelError("no such option", errno=errno.ENOPROTOOPT)

    monkeypatch.setattr(node.ipvs, "outlines", unknown)
    await node.resync()
    await node.resync()
    assert resyncs(node) == 3


async def test_a_look_that_fails_is_a_reason_and_no_failed_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await serving(tmp_path)

    async def interrupted(_interface: str) -> None:
        raise KernelError("the addresses change faster than they can be read", errno=errno.EINTR)

    monkeypatch.setattr(node.service_proxy, "look", lambda: interrupted("kube-ipvs0"))
    await node.resync()
    assert resyncs(node) == 2
    assert node.service_proxy.statistics().failures == 0


class CountingIpvs(FakeIpvs):
    """Remembers whose real servers were read."""

    def __init__(self, kernel: FakeKernel) -> None:
        super().__init__(kernel)
        self.read_singly: list[KernelKey] = []

    async def real_servers(self, keys: Sequence[KernelKey]) -> dict[KernelKey, dict[RealServerKey, RealServerState]]:
        self.read_singly += keys
        return await super().real_servers(keys)


async def first_look(
    ipvs: CountingIpvs, applied: Mapping[VirtualServerKey, VirtualServer], seconds_each: float
) -> TableLook:
    """Look once, with a budget of 32 ms a period, where reading a virtual server singly takes `seconds_each`."""
    settings = Settings("node", resync_period=32.0, resync_budget=0.001)
    look = TableLook(ipvs, settings, clock=lambda: len(ipvs.read_singly) * seconds_each)
    await look.begin()
    assert not await look.finds_change(applied, lambda _: (), applied.keys)
    return look


@pytest.mark.parametrize(("seconds_each", "a_look"), [(1.0, 32 + LEAST_A_LOOK), (0.0001, 164), (0.0, 1000)])
async def test_a_look_reads_as_many_as_its_share_allows_and_all_in_time(
    monkeypatch: pytest.MonkeyPatch, seconds_each: float, a_look: int
) -> None:
    monkeypatch.setattr(table_look, "LEAST_OF_IPV6", 32)
    ipvs = CountingIpvs(FakeKernel())
    await ipvs.open()
    servers = [server(f"10.96.{at >> 8}.{at & 255}", 80, "10.1.0.1") for at in range(900)]
    servers += [server(f"fd96::{at:x}", 80, "fd01::1") for at in range(100)]
    for each in servers:
        real = each.real_servers[0]
        await ipvs.write([AddVirtualServer(each.key, OPTIONS), AddRealServer(each.key, (real.address, real.port), 1)])
    applied = {each.key: each for each in servers}
    look = await first_look(ipvs, applied, seconds_each)  # 16 ms for each look
    assert len(ipvs.read_singly) == len(set(ipvs.read_singly)) == a_look
    are_ipv6 = [":" in key[1] for key in ipvs.read_singly]
    assert [sum(are_ipv6[:32]), sum(are_ipv6[32:][:LEAST_A_LOOK])] == [32, LEAST_A_LOOK * 3 // 4]
    for _ in range(4 * 1000 // a_look):
        assert not await look.finds_change(applied, lambda _: (), applied.keys)
    assert set(ipvs.read_singly) == applied.keys()


@pytest.mark.parametrize(("seconds_each", "a_look"), [(1.0, LEAST_OF_IPV4), (0.0001, 32), (0.0, 100)])
async def test_where_all_are_of_ipv4_fewer_are_read_as_outlines_show_what_is_missing(
    seconds_each: float, a_look: int
) -> None:
    ipvs = CountingIpvs(FakeKernel())
    await ipvs.open()
    servers = [server(f"10.96.0.{at}", 80, "10.1.0.1") for at in range(100)]
    for each in servers:
        await ipvs.write([AddVirtualServer(each.key, OPTIONS), AddRealServer(each.key, ("10.1.0.1", 8080), 1)])
    applied = {each.key: each for each in servers}
    await first_look(ipvs, applied, seconds_each)  # 2 ms for each look
    assert len(ipvs.read_singly) == len(set(ipvs.read_singly)) == a_look
