"""UDP flows through IPVS on a real kernel: stale flows end, and no others do."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from kroute.controllers.service_proxy.udp_flows import UdpFlows
from kroute.kernel.conntrack import Conntrack, Flow
from kroute.kernel.ipvs.objects import (
    AddRealServer,
    AddVirtualServer,
    DeleteRealServer,
    DeleteVirtualServer,
    IpvsChange,
    SetRealServer,
    VirtualServerOptions,
)
from kroute.kernel.sysctl import Sysctls
from kroute.model.plan import Protocol, VirtualServerKey
from kroute.reconcile.pass_status import PassStatus
from tests.kernel.nodes import HANG, NODE_IP, NODE_IP6, OTHER_NODE_IP, OTHER_NODE_IP6, RealNode, run
from tests.lab.cluster import Cluster, Node
from tests.lab.deployment import eventually
from tests.lab.firewall import tool
from tests.lab.patience import patience

CONNECTIONS = Path("/proc/net/ip_vs_conn")
TARGET_PORT, SLOW_PORT = 5353, 5454
PATIENCE = 10.0
"""Seconds within which a call is answered, stalls of the machine not counted."""
SILENCE = 1.0
"""Seconds without an answer after which there is none."""


class Echo(asyncio.DatagramProtocol):
    """A real server: it answers with its own address."""

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:
        self.transport = transport

    def datagram_received(self, _: bytes, client: tuple[str, int]) -> None:
        self.transport.sendto(self.transport.get_extra_info("sockname")[0].encode(), client)


class Slow(asyncio.DatagramProtocol):
    """A real server that answers when it is told to."""

    def __init__(self) -> None:
        self.asked = asyncio.Queue[tuple[str, int]]()

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:
        self.transport = transport

    def datagram_received(self, _: bytes, client: tuple[str, int]) -> None:
        self.asked.put_nowait(client)

    async def takes(self) -> tuple[str, int]:
        """Return the client of the next datagram."""
        async with patience(PATIENCE):
            return await self.asked.get()


class Client:
    """A UDP client that keeps its socket."""

    def __init__(self, server: tuple[str, int]) -> None:
        self._socket = socket.socket(socket.AF_INET6 if ":" in server[0] else socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        try:
            self._socket.connect(server)
        except OSError:
            self._socket.close()
            raise
        self.port = self._socket.getsockname()[1]

    async def ask(self, within: float = PATIENCE) -> str | None:
        """Return who answers within so many seconds, or None."""
        loop = asyncio.get_running_loop()
        try:
            async with patience(within):
                await loop.sock_sendall(self._socket, b"?")
                return (await loop.sock_recv(self._socket, 100)).decode()
        except (TimeoutError, ConnectionRefusedError):
            return None

    def close(self) -> None:
        self._socket.close()


class Balancer:
    """A node with a VIP and two real servers of one family, whose clients are masqueraded."""

    def __init__(self, node: RealNode, family: int) -> None:
        self.node, self.family = node, family
        self.vip, self.first, self.second = (
            ("10.0.0.1", NODE_IP, OTHER_NODE_IP) if family == socket.AF_INET else ("fd00::1", NODE_IP6, OTHER_NODE_IP6)
        )
        self.key = VirtualServerKey(Protocol.UDP, self.vip, 53)
        self.status = PassStatus("service_proxy", time.monotonic)
        self.udp_flows = UdpFlows(self.status, node.conntrack)
        self._closing: list[Callable[[], None]] = []

    async def open(self) -> None:
        for name, value in (("conntrack", "1"), ("expire_nodest_conn", "1")):
            Sysctls().write(f"net.ipv4.vs.{name}", value)
        iptables = tool(self.vip)
        run(f"{iptables} -t nat -A OUTPUT -d {self.vip} -j MARK --set-xmark 0x4000/0x4000")
        run(f"{iptables} -t nat -A POSTROUTING -m mark --mark 0x4000/0x4000 -j MASQUERADE")
        self.node.add_address("e0", f"{self.vip}/32" if self.family == socket.AF_INET else f"{self.vip}/128 nodad")
        for address in (self.first, self.second):
            bound = (address, TARGET_PORT)
            transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(Echo, local_addr=bound)
            self._closing.append(transport.close)
        await eventually(self._are_local)

    def _are_local(self) -> None:
        """Assert that packets to the addresses stay here: the kernel adds the routes of IPv6 addresses a little later.

        IPVS would keep the wrong route to a real server.
        """
        for address in (self.vip, self.first, self.second):
            assert run(f"ip route get {address}").startswith("local ")

    async def close(self) -> None:
        for close in self._closing:
            close()
        await asyncio.sleep(0)

    def client(self, server: tuple[str, int] | None = None) -> Client:
        client = Client(server or (self.vip, 53))
        self._closing.append(client.close)
        return client

    async def serve(self, *addresses: str) -> None:
        """Create the virtual server with these real servers."""
        changes: list[IpvsChange] = [AddVirtualServer(self.key, VirtualServerOptions("rr"))]
        changes += [AddRealServer(self.key, (address, TARGET_PORT), 1) for address in addresses]
        assert await self.node.ipvs.write(changes) == []

    async def change(self, *changes: IpvsChange) -> None:
        assert await self.node.ipvs.write(changes) == []

    async def end_stale(self, *serving: str) -> int:
        """End the stale flows while these real servers serve; return how many were ended."""
        before = self.status.counters.writes
        self.udp_flows.suspect([self.key])
        await self.udp_flows.end_stale(lambda _: [(address, TARGET_PORT) for address in serving])
        return self.status.counters.writes - before

    async def flows(self) -> list[Flow]:
        """Return the flows to the VIP and to the real servers themselves."""
        own = [(address, TARGET_PORT) for address in (self.first, self.second)]
        return await self.node.conntrack.udp_flows(self.family, [(self.vip, 53), *own])


@pytest.fixture(params=[socket.AF_INET, socket.AF_INET6], ids=["IPv4", "IPv6"])
async def balancer(node: RealNode, request: pytest.FixtureRequest) -> AsyncIterator[Balancer]:
    made = Balancer(node, request.param)
    await made.open()
    yield made
    await made.close()


def connections() -> list[str]:
    """Return the client ports in IPVS's own list."""
    return [line.split()[2] for line in CONNECTIONS.read_text().splitlines()[1:]]


def is_forgotten(client: Client) -> None:
    assert f"{client.port:04X}" not in connections()


async def test_a_client_goes_on_to_another_real_server_when_its_own_is_gone(balancer: Balancer) -> None:
    await balancer.serve(balancer.first)
    client = balancer.client()
    assert await client.ask() == balancer.first
    await balancer.change(
        AddRealServer(balancer.key, (balancer.second, TARGET_PORT), 1),
        DeleteRealServer(balancer.key, (balancer.first, TARGET_PORT)),
    )
    await balancer.end_stale(balancer.second)
    assert await client.ask() == balancer.second
    assert {flow.reply_source for flow in await balancer.flows()} == {balancer.second}


async def test_an_answer_under_way_comes_from_weight_0_and_is_lost_by_a_deletion(balancer: Balancer) -> None:
    leaving = (balancer.first, SLOW_PORT)
    transport, slow = await asyncio.get_running_loop().create_datagram_endpoint(Slow, local_addr=leaving)
    client = balancer.client()
    try:
        await balancer.serve()
        await balancer.change(AddRealServer(balancer.key, leaving, 1))
        first = asyncio.create_task(client.ask())
        asking = await slow.takes()
        await balancer.change(
            AddRealServer(balancer.key, (balancer.second, TARGET_PORT), 1), SetRealServer(balancer.key, leaving, 0)
        )
        assert await balancer.client().ask() == balancer.second
        transport.sendto(b"slow", asking)
        assert await first == "slow"
        second = asyncio.create_task(client.ask(SILENCE))
        assert await slow.takes() == asking, "the client's flow stays as long as it sends"
        await balancer.change(DeleteRealServer(balancer.key, leaving))
        await eventually(lambda: is_forgotten(client))
        transport.sendto(b"slow", asking)
        assert await second is None
        assert await client.ask() == balancer.second
    finally:
        transport.close()


async def test_just_the_flows_of_the_gone_real_server_end(balancer: Balancer) -> None:
    Sysctls().write("net.ipv4.vs.expire_nodest_conn", "0")  # otherwise IPVS would end them first
    await balancer.serve(balancer.first, balancer.second)
    by_server = {await client.ask(): client for client in (balancer.client(), balancer.client())}
    assert set(by_server) == {balancer.first, balancer.second}
    direct = balancer.client((balancer.first, TARGET_PORT))
    assert await direct.ask() == balancer.first
    before = await balancer.flows()
    assert len(before) == 3
    await balancer.change(DeleteRealServer(balancer.key, (balancer.first, TARGET_PORT)))
    assert await balancer.end_stale(balancer.second) == 1
    gone = by_server[balancer.first].port
    assert set(await balancer.flows()) == {flow for flow in before if flow.source_port != gone}
    assert await by_server[balancer.second].ask() == balancer.second


async def test_flows_of_real_servers_that_serve_stay_when_all_is_suspect(balancer: Balancer) -> None:
    await balancer.serve(balancer.first, balancer.second)
    for client in (balancer.client(), balancer.client()):
        assert await client.ask()
    before = set(await balancer.flows())
    assert len(before) == 2
    assert await balancer.end_stale(balancer.first, balancer.second) == 0
    assert set(await balancer.flows()) == before


async def test_a_client_that_asked_before_there_was_a_virtual_server_is_served(balancer: Balancer) -> None:
    client = balancer.client()
    assert await client.ask(SILENCE) is None
    await balancer.serve(balancer.first)
    assert await client.ask(SILENCE) is None, "its flow keeps the address that it was given without the virtual server"
    assert await balancer.end_stale(balancer.first) == 1
    assert await client.ask() == balancer.first


VIP_AND_ENDPOINT = pytest.mark.parametrize(
    ("vip", "endpoint"),
    [("10.254.0.10", "{}:{}"), ("fd00:10:254::10", "[{}]:{}")],
    ids=["IPv4", "IPv6"],
)


@VIP_AND_ENDPOINT
async def test_an_answer_of_a_pod_looks_like_that_to_an_earlier_call_of_its_service(
    cluster: Cluster, vip: str, endpoint: str
) -> None:
    """The client has called the Service from the same port, and calls the pod's own address."""
    node, attribute = cluster.node("node1"), "ip6" if ":" in vip else "ip"
    client, web = await node.pod("client-pod"), await cluster.node("node2").pod("web", udp=TARGET_PORT)
    source, target = getattr(client, attribute), getattr(web, attribute)

    async def ask(address: str, port: int, by: int, within: float = PATIENCE) -> str:
        return (await client.udp(address, port, source=(source, by), timeout=within)).peer

    node.sysctl("net.ipv4.vs.conntrack", 1)
    node.namespace.ip(f"link add sink type dummy\nlink set sink up\naddress add {vip} dev sink {nodad(vip)}\n")
    balance(node, endpoint.format(vip, 53), endpoint.format(target, TARGET_PORT))
    assert await eventually(lambda: ask(vip, 53, by=4000)) == source
    with pytest.raises(TimeoutError):
        await ask(target, TARGET_PORT, by=4000, within=SILENCE)
    assert await ask(target, TARGET_PORT, by=4001) == source


def nodad(address: str) -> str:
    return "nodad" if ":" in address else ""


def balance(node: Node, virtual_server: str, real_server: str) -> None:
    node.run("ipvsadm", "-R", stdin=f"-A -u {virtual_server} -s rr\n-a -u {virtual_server} -r {real_server} -m\n")


@VIP_AND_ENDPOINT
async def test_a_pod_that_asked_too_early_is_served_as_itself(cluster: Cluster, vip: str, endpoint: str) -> None:
    """While the VIP is not bound, its first packets leave the node by another route. Nothing is masqueraded."""
    node, attribute = cluster.node("node1"), "ip6" if ":" in vip else "ip"
    client, web = await node.pod("client-pod"), await cluster.node("node2").pod("web", udp=TARGET_PORT)
    address = getattr(client, attribute)

    async def ask(within: float = PATIENCE) -> str:
        return (await client.udp(vip, 53, source=(address, 4000), timeout=within)).peer

    node.run(tool(vip), "-t", "nat", "-A", "POSTROUTING", "-m", "mark", "--mark", "0x4000/0x4000", "-j", "MASQUERADE")
    node.sysctl("net.ipv4.vs.conntrack", 1)
    node.namespace.ip(f"link add sink type dummy\nlink set sink up\nroute add {vip} dev sink\n")
    with pytest.raises(TimeoutError):
        await ask(SILENCE)
    node.namespace.ip(f"address add {vip} dev sink {nodad(vip)}\n")
    balance(node, endpoint.format(vip, 53), endpoint.format(getattr(web, attribute), TARGET_PORT))
    conntrack = Conntrack()
    with node.namespace.inside():
        await conntrack.open()
    udp_flows = UdpFlows(PassStatus("service_proxy", time.monotonic), conntrack)
    with pytest.raises(TimeoutError):
        await ask(SILENCE)
    udp_flows.suspect([VirtualServerKey(Protocol.UDP, vip, 53)])
    await udp_flows.end_stale(lambda _: [(getattr(web, attribute), TARGET_PORT)])
    await conntrack.close()
    assert await eventually(ask) == address


async def test_flows_to_a_virtual_server_that_is_gone_end(balancer: Balancer) -> None:
    await balancer.serve(balancer.first)
    assert await balancer.client().ask() == balancer.first
    await balancer.change(DeleteVirtualServer(balancer.key))
    await balancer.end_stale()
    assert await balancer.flows() == []


async def test_a_tcp_connection_to_the_same_address_and_port_goes_on(balancer: Balancer) -> None:
    served = asyncio.Event()

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while byte := await reader.read(1):
            writer.write(byte)
        writer.close()
        await writer.wait_closed()
        served.set()

    tcp, real_server = balancer.key._replace(protocol=Protocol.TCP), (balancer.first, TARGET_PORT)
    await balancer.serve(balancer.first)
    await balancer.change(AddVirtualServer(tcp, VirtualServerOptions()), AddRealServer(tcp, real_server, 1))
    async with asyncio.timeout(HANG), await asyncio.start_server(echo, *real_server):
        reader, writer = await asyncio.open_connection(balancer.vip, 53)
        await balancer.end_stale()
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        writer.close()
        await writer.wait_closed()
        await served.wait()


@pytest.mark.parametrize("whole", [False, True], ids=["real server", "virtual server"])
async def test_ipvs_expires_its_own_entries_of_what_is_deleted(balancer: Balancer, whole: bool) -> None:
    await balancer.serve(balancer.first)
    client = balancer.client()
    assert await client.ask() == balancer.first
    assert connections() == [f"{client.port:04X}"]
    real_server = (balancer.first, TARGET_PORT)
    await balancer.change(DeleteVirtualServer(balancer.key) if whole else DeleteRealServer(balancer.key, real_server))

    def assert_expired() -> None:
        assert connections() == []

    await eventually(assert_expired)


async def test_a_long_list_leaves_turns_to_other_tasks(node: RealNode) -> None:
    many = [
        Flow(
            f"10.9.{number // 250}.{number % 250 + 1}", 4000, "10.0.0.1", 53, "10.1.0.1", 53, "10.2.0.1", 5000 + number
        )
        for number in range(2000)
    ]
    await node.add_flows(*many)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        counter = group.create_task(count_turns())
        found = await node.conntrack.udp_flows(socket.AF_INET, [("10.0.0.1", 53)])
        counter.cancel()
    assert {flow._replace(id=0) for flow in found} == set(many)
    assert turns > 10
    assert await node.conntrack.delete(found) == []
    assert await node.conntrack.udp_flows(socket.AF_INET, [("10.0.0.1", 53)]) == []
