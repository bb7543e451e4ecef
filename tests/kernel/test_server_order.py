"""The order of real servers in the kernel: the tables that mh and sh fill by it, and what a move in it does."""

import asyncio
import contextlib
import itertools
import random
import socket
from collections.abc import AsyncIterator, Sequence

import pytest

from kroute.controllers.ipvs.server_order import ENDS_CONNECTIONS, keeping_connections, place
from kroute.kernel.ipvs.objects import (
    AddRealServer,
    AddVirtualServer,
    DeleteRealServer,
    DeleteVirtualServer,
    SetRealServer,
    VirtualServerOptions,
)
from kroute.kernel.net.addresses import BindAddress
from kroute.kernel.sysctl import Sysctls
from kroute.model.plan import Protocol, RealServer, VirtualServer, VirtualServerKey
from tests.kernel.nodes import HANG, NODE_IP, RealNode
from tests.lab import hash_choices

FAMILIES = (socket.AF_INET, socket.AF_INET6)
FALLBACK = 0x08
CLIENTS = 600


def planned(scheduler: str, family: int, count: int, weights: Sequence[int]) -> VirtualServer:
    """A virtual server on UDP with so many real servers, sorted as in a plan."""
    key = VirtualServerKey(Protocol.UDP, hash_choices.VIPS[family == socket.AF_INET6], 53)
    addresses = hash_choices.servers(family, count)
    servers = (RealServer(address, 53, weight) for address, weight in zip(addresses, itertools.cycle(weights)))
    return VirtualServer(key, scheduler, FALLBACK, None, tuple(sorted(servers)))


async def choices_after(
    node: RealNode, desired: VirtualServer, arrivals: Sequence[RealServer], *, sort: bool
) -> dict[str, str]:
    """Where clients go when the real servers have come one by one, and were put in order each time or never."""
    key = desired.key
    assert not await node.ipvs.write([AddVirtualServer(key, VirtualServerOptions(desired.scheduler, desired.flags))])
    try:
        for count in range(1, len(arrivals) + 1):
            newest = arrivals[count - 1]
            known = VirtualServer(key, desired.scheduler, desired.flags, None, tuple(sorted(arrivals[:count])))
            there = (await node.ipvs.real_servers([key]))[key]
            changes = place(known, there) if sort else [AddRealServer(key, newest[:2], newest.weight)]
            assert not await node.ipvs.write(changes)
        family = socket.AF_INET6 if ":" in key.address else socket.AF_INET
        return hash_choices.choices(key.address, key.port, hash_choices.clients(family, CLIENTS))
    finally:
        await node.ipvs.write([DeleteVirtualServer(key)])


@pytest.mark.parametrize("family", FAMILIES, ids=["IPv4", "IPv6"])
@pytest.mark.parametrize(("scheduler", "weights"), [("mh", (1,)), ("mh", (1, 5, 2, 9)), ("sh", (3, 1))])
async def test_whatever_the_order_of_arrival_clients_are_sent_alike_once_it_is_put_right(
    node: RealNode, scheduler: str, weights: Sequence[int], family: int
) -> None:
    hash_choices.prepare()
    desired = planned(scheduler, family, 30, weights)
    arrivals = [random.Random(seed).sample(desired.real_servers, 30) for seed in (1, 2)]
    sorted_ = [await choices_after(node, desired, order, sort=True) for order in (*arrivals, desired.real_servers)]
    unsorted = [await choices_after(node, desired, order, sort=False) for order in arrivals]
    assert {len(it) for it in sorted_ + unsorted} == {CLIENTS}, "somebody was refused"
    assert sorted_[0] == sorted_[1] == sorted_[2]
    differ = sum(unsorted[0][client] != unsorted[1][client] for client in unsorted[0])
    print(f"{scheduler} {weights}: {differ / CLIENTS:.1%} of the clients differ by the order of arrival")
    assert differ, "the order of arrival makes no difference"


class Echo:
    """A TCP server behind a virtual server with mh on a node that ends connections to deleted real servers."""

    key = (6, "10.0.0.1", 80)
    real = (NODE_IP, 8080)

    def __init__(self, node: RealNode) -> None:
        self.node = node
        self._writers: list[asyncio.StreamWriter] = []
        self._ended = asyncio.Event()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        Sysctls().write(ENDS_CONNECTIONS, "1")
        await self.node.addresses.write("d0", [BindAddress(self.key[1])])
        options = VirtualServerOptions("mh", FALLBACK)
        others = [AddRealServer(self.key, ("10.1.0.9", port), 0) for port in range(1, 10)]
        adds = [AddVirtualServer(self.key, options), AddRealServer(self.key, self.real, 1), *others]
        assert not await self.node.ipvs.write(adds)
        self._server = await asyncio.start_server(self._serve, *self.real)
        reader, writer = await asyncio.open_connection(self.key[1], self.key[2])
        self._writers.append(writer)
        return reader, writer

    async def move(self, between: bytes, writer: asyncio.StreamWriter) -> None:
        """Delete the real server and add it again, and send `between` in the meantime."""
        assert not await self.node.ipvs.write([DeleteRealServer(self.key, self.real)])
        writer.write(between)
        assert not await self.node.ipvs.write([AddRealServer(self.key, self.real, 1)])

    async def close(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await self._ended.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        with contextlib.suppress(ConnectionError):
            while byte := await reader.read(1):
                writer.write(byte)
        writer.transport.abort()
        self._ended.set()


@pytest.fixture
async def served(node: RealNode) -> AsyncIterator[Echo]:
    echo = Echo(node)
    yield echo
    await echo.close()


async def test_a_connection_outlives_the_move_of_its_real_server_with_a_packet_at_the_worst_moment(
    served: Echo,
) -> None:
    async with asyncio.timeout(HANG):
        reader, writer = await served.connect()
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        with keeping_connections(Sysctls()):
            await served.move(b"y", writer)
        assert await reader.readexactly(1) == b"y"
        assert (await served.node.ipvs.read())[served.key].real_servers[served.real].active == 1
        assert Sysctls().read(ENDS_CONNECTIONS) == "1"


async def test_without_care_the_same_packet_ends_the_connection(served: Echo) -> None:
    async with asyncio.timeout(HANG):
        reader, writer = await served.connect()
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        await served.move(b"y", writer)
        with pytest.raises((TimeoutError, ConnectionError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(1), 5)


async def test_a_busy_connection_outlives_a_thousand_moves(served: Echo) -> None:
    moves = [DeleteRealServer(served.key, served.real), AddRealServer(served.key, served.real, 1)] * 10
    async with asyncio.timeout(HANG):
        reader, writer = await served.connect()
        for _ in range(100):
            with keeping_connections(Sysctls()):
                writer.write(b"x")
                assert not await served.node.ipvs.write(moves)
            assert await reader.readexactly(1) == b"x"


async def test_a_real_server_that_drains_keeps_its_places_and_one_that_is_added_with_weight_0_has_none(
    node: RealNode,
) -> None:
    hash_choices.prepare()
    desired = planned("mh", socket.AF_INET, 5, (1,))
    key, addresses = desired.key, hash_choices.clients(socket.AF_INET, CLIENTS)
    adds = [AddRealServer(key, it[:2], 1) for it in desired.real_servers]
    await node.ipvs.write([AddVirtualServer(key, VirtualServerOptions("mh", FALLBACK)), *adds])
    before = hash_choices.choices(key.address, 53, addresses)
    leaving = desired.real_servers[2]
    await node.ipvs.write([SetRealServer(key, leaving[:2], 0)])
    draining = hash_choices.choices(key.address, 53, addresses)
    assert {it for it in before if before[it] != draining[it]} == {it for it in before if before[it] == leaving.address}
    await node.ipvs.write([DeleteRealServer(key, leaving[:2])])
    left = hash_choices.choices(key.address, 53, addresses)
    await node.ipvs.write([AddRealServer(key, leaving[:2], 0)])
    assert hash_choices.choices(key.address, 53, addresses) == left
