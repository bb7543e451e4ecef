"""What changes while it is listed: addresses and routes beside thousands of VIPs, and virtual servers.

Nothing half is taken for whole.
"""

import asyncio
import errno
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kroute.controllers.dummy_interface import DummyInterface
from kroute.controllers.live_addresses import LiveAddresses
from kroute.controllers.node_controllers import NodeControllers
from kroute.controllers.service_proxy.vip_addresses import VipAddresses
from kroute.firewall.backend import node_clients
from kroute.kernel.errors import KernelError
from kroute.kernel.ipvs.objects import AddVirtualServer, VirtualServerKey, VirtualServerOptions
from kroute.kernel.modules import kernel_version
from kroute.kernel.net.addresses import Addresses, BindAddress, UnbindAddress
from kroute.kernel.netlink.client import LISTINGS, REHASH_SECONDS, NetlinkClient
from kroute.kernel.netlink.netlink_socket import DUMP_ATTEMPTS, NetlinkSocket
from kroute.kernel.node_kernel import open_kernel
from kroute.model.plan import Plan, Vip
from kroute.reconcile.broadcaster import Broadcaster
from kroute.reconcile.ledger import Ledger
from kroute.reconcile.pass_status import PassStatus
from kroute.reconcile.resync_schedule import DigestPace
from kroute.settings import Settings
from tests.kernel.nodes import HANG, NODE_IP, RealNode, run
from tests.lab.firewall import backend
from tests.unit.fake_node import node_plan, plan, server

VIPS = 2_000
"""So many take a lab machine 20 s, 10,000 three minutes. Their list is five datagrams."""
CHANGES = 10_000
DUMMY = "kube-ipvs0"

Act = Callable[[], Awaitable[None]]


def vips(count: int) -> list[str]:
    return [f"10.96.{number // 250}.{number % 250 + 1}" for number in range(count)]


class Interruptions:
    """Counts the dumps that the kernel reports as interrupted (NLM_F_DUMP_INTR)."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count = 0
        collect = NetlinkSocket._collect_answers

        async def collecting(netlink: NetlinkSocket, *arguments: object) -> object:
            answers = await collect(netlink, *arguments)  # type: ignore[arg-type]
            self.count += answers is None
            return answers

        patch.setattr(NetlinkSocket, "_collect_answers", collecting)


def changes_elsewhere(count: int) -> str:
    """Return so many commands of `ip -batch` that add and remove addresses and routes of the link e1."""
    lines = []
    for number in range(count // 4):
        low, high = number % 250 + 1, number // 250
        lines += [f"addr add 172.16.{high}.{low}/32 dev e1", f"route add 172.20.{high}.{low}/32 dev e1"]
        lines += [f"route del 172.20.{high}.{low}/32 dev e1", f"addr del 172.16.{high}.{low}/32 dev e1"]
    return "\n".join(lines)


@pytest.fixture
async def elsewhere(node: RealNode) -> AsyncIterator[Addresses]:
    """A second link, e1, and a client that changes its addresses."""
    run("ip link add e1 type dummy")
    run("ip link set e1 up")
    async with Addresses() as addresses:
        yield addresses


class Between:
    """Does something after the second datagram of each of the first `times` dumps that a client reads.

    So it comes in the midst of a dump: the kernel fills the third datagram when the second is fetched.
    """

    def __init__(self, patch: pytest.MonkeyPatch, client: NetlinkClient, times: int, act: Act) -> None:
        collect, receive = NetlinkSocket._collect_answers, NetlinkSocket.receive
        received, left = 0, times

        async def collecting(netlink: NetlinkSocket, *arguments: object) -> object:
            nonlocal received
            received = 0
            return await collect(netlink, *arguments)  # type: ignore[arg-type]

        async def receiving(netlink: NetlinkSocket) -> bytes:
            nonlocal received, left
            datagram = await receive(netlink)
            if netlink is client.netlink:
                received += 1
                if received == 2 and left:
                    left -= 1
                    await act()
            return datagram

        patch.setattr(NetlinkSocket, "_collect_answers", collecting)
        patch.setattr(NetlinkSocket, "receive", receiving)


@pytest.mark.parametrize("times", [1, DUMP_ATTEMPTS - 1, DUMP_ATTEMPTS])
async def test_a_list_of_all_links_in_whose_midst_one_changes_is_read_again_and_is_whole_or_refused(
    node: RealNode, elsewhere: Addresses, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    await node.addresses.write("d0", [BindAddress(address) for address in vips(VIPS)])
    changes = itertools.cycle([BindAddress("172.16.0.1"), UnbindAddress("172.16.0.1")])

    async def change() -> None:
        assert await elsewhere.write("e1", [next(changes)]) == []

    Between(monkeypatch, node.addresses, times, change)
    interruptions = Interruptions(monkeypatch)
    if times < DUMP_ATTEMPTS:
        assert {it.address for it in await node.addresses.of_node()} >= set(vips(VIPS))
    else:
        with pytest.raises(KernelError) as refused:
            await node.addresses.of_node()
        assert refused.value.errno == errno.EINTR
    assert interruptions.count == times


LOAD_FACTOR = Path("/proc/sys/net/ipv4/vs/svc_lfactor")
"""By how much the table of virtual servers is to be larger than their number, as a negative power of two."""
RESIZES = kernel_version() >= (7, 0)
"""Whether the kernel resizes that table."""


def set_load_factor(factor: str) -> None:
    LOAD_FACTOR.write_text(factor)


@pytest.mark.parametrize("times", [2, LISTINGS - 1, LISTINGS])
async def test_virtual_servers_are_listed_again_if_the_kernel_has_resized_their_table_meanwhile(
    node: RealNode, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    keys, persistent = {(6, address, 80) for address in vips(VIPS)}, VirtualServerOptions(persistence_timeout=600)
    assert await node.ipvs.write([AddVirtualServer(key, persistent) for key in keys]) == []
    factors = itertools.cycle(["-8", "-1"])
    resizes = 0

    async def resize() -> None:
        nonlocal resizes
        if RESIZES:
            set_load_factor(next(factors))
            resizes += 1
            await asyncio.sleep(REHASH_SECONDS)

    async def scanned() -> set[VirtualServerKey]:
        return {key async for part in node.ipvs.scan(keys) for key, _ in part}

    Between(monkeypatch, node.ipvs, times, resize)
    if times == LISTINGS and RESIZES:
        with pytest.raises(KernelError) as refused:
            await scanned()
        assert refused.value.errno == errno.EINTR
    else:
        assert await scanned() == keys
    assert resizes == (times if RESIZES else 0)


async def test_vips_that_fall_out_of_a_list_because_others_are_deleted_are_not_taken_for_missing(
    node: RealNode, elsewhere: Addresses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel does not report this interruption: it lists one link's addresses by their position."""
    bound, deleted = set(vips(VIPS)), vips(VIPS)[:50]
    await node.addresses.write("d0", [BindAddress(address) for address in vips(VIPS)])

    async def delete() -> None:
        assert await elsewhere.write("d0", [UnbindAddress(address) for address in deleted]) == []

    with monkeypatch.context() as patch:
        Between(patch, node.addresses, 1, delete)
        listed = await node.addresses.read("d0")
    assert len(bound - set(deleted) - listed) == len(deleted)
    await node.addresses.write("d0", [BindAddress(address) for address in deleted])

    first = vips(VIPS)[50:100]
    interface = DummyInterface("d0", node.links, Ledger.open(tmp_path))
    status = PassStatus("service_proxy", time.monotonic)
    served = VipAddresses(
        status, node.addresses, interface, DigestPace(Settings("node"), status.counters), LiveAddresses()
    )
    for address in bound:
        served.desired.note_applied(address, Vip(address, None))

    async def delete_first() -> None:
        assert await elsewhere.write("d0", [UnbindAddress(address) for address in first]) == []

    Between(monkeypatch, node.addresses, 1, delete_first)
    await served.learn()
    assert served.desired.applied.keys() >= bound - set(first)


@asynccontextmanager
async def served(state_dir: Path) -> AsyncIterator[tuple[NodeControllers, Broadcaster]]:
    """All controllers, with every VIP bound."""
    settings = Settings("node3", state_dir=state_dir, firewall=backend(), resync_period=3600.0, dummy_interface=DUMMY)
    broadcaster = Broadcaster()
    plans: list[Plan] = [node_plan(0, "10.128.0.0/16", ipv4=NODE_IP)]
    plans += [plan(f"web-{at}", 1, server(vip, 80, "10.128.0.1"), source=NODE_IP) for at, vip in enumerate(vips(VIPS))]
    async with (
        open_kernel(only=node_clients(settings)) as kernel,
        NodeControllers(settings, broadcaster, lambda *_: None, kernel) as controllers,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(controllers.run())
        broadcaster.publish(plans)
        async with asyncio.timeout(HANG):
            await controllers.live()
        yield controllers, broadcaster
        controllers.stop()


async def test_ten_thousand_changes_elsewhere_lose_and_repair_no_vip(
    node: RealNode, elsewhere: Addresses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "changes").write_text(changes_elsewhere(CHANGES))
    interruptions = Interruptions(monkeypatch)
    hold_up_readers(monkeypatch)
    whole = refused = 0
    with capture_logs() as logs:
        async with served(tmp_path) as (controllers, broadcaster):
            changing = await asyncio.create_subprocess_exec("ip", "-batch", str(tmp_path / "changes"))
            ended = asyncio.create_task(changing.wait())
            broadcaster.publish([plan("late", 1, server("10.97.0.1", 80, "10.128.0.1"), source=NODE_IP)])
            resync(controllers)
            while not ended.done():
                assert set(vips(VIPS)) <= await node.addresses.read(DUMMY)
                try:
                    assert set(vips(VIPS)) <= {it.address for it in await node.addresses.of_node()}
                    whole += 1
                except KernelError as error:
                    if error.errno != errno.EINTR:
                        raise
                    refused += 1
            assert await ended == 0
            await resynced(controllers)
            assert await node.addresses.read(DUMMY) == {*vips(VIPS), "10.97.0.1"}
            counted = controllers.statistics().values()
    print(f"{interruptions.count} dumps interrupted; {whole} readings whole, {refused} refused")
    assert [(it.repairs, it.failing_for) for it in counted] == [(0, 0.0)] * len(counted)
    assert "repair" not in {line["event"] for line in logs}
    assert interruptions.count > 0


def hold_up_readers(patch: pytest.MonkeyPatch) -> None:
    """Let other processes work between two datagrams, as they do on a machine that has much to do."""
    receive = NetlinkSocket.receive

    async def receiving(netlink: NetlinkSocket) -> bytes:
        datagram = await receive(netlink)
        await asyncio.sleep(0.001)
        return datagram

    patch.setattr(NetlinkSocket, "receive", receiving)


def resync(controllers: NodeControllers) -> None:
    for each in controllers.kernel_writers:
        each.resync_soon()
        each.wake.set()


async def resynced(controllers: NodeControllers) -> None:
    """Return once every controller has read all of its part of the kernel."""
    began = time.time()
    resync(controllers)
    async with asyncio.timeout(HANG):
        while True:
            if all(it.status.counters.last_resync > began for it in controllers.kernel_writers):
                break
            await asyncio.sleep(0.1)
